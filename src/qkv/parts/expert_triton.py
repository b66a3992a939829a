"""Launches the programs that carry tokens to their experts and back."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from qkv.parts import expert_programs as programs
from qkv.parts.attention.kernels.launch_triton import launch

AT_ONCE = 4096  # numbers of a step: slots times experts
ROWS, COLUMNS = 4, 1024  # of a step, of what is carried


class Choice(NamedTuple):
    """For b rows of s slots and e experts."""

    experts: Tensor  # [b s] long
    weights: Tensor  # [b s] float32, 0 where the expert is full
    number: Tensor  # [b s] long: tokens before it that chose the same
    kept: Tensor  # [b s] bool
    log_sum: Tensor  # [b s] float32
    sums: Tensor  # [b 2e+3] float32, each row's part of a tally


def _steps(slots: int, experts: int) -> dict[str, int]:
    wide = triton.next_power_of_2(max(experts, 2))
    return {"T": max(16, min(AT_ONCE // wide, triton.next_power_of_2(slots))), "E": wide}


def choose(logits: Tensor, room: int) -> Choice:
    """[b s e]"""
    b, s, e = logits.shape
    whole, real = (torch.empty(2, b, s, dtype=kind, device=logits.device) for kind in (torch.long, torch.float32))
    kept = torch.empty(b, s, dtype=torch.bool, device=logits.device)
    sums = torch.empty(b, 2 * e + 3, dtype=torch.float32, device=logits.device)
    (experts, number), (weights, log_sum) = whole, real
    launch(
        programs.choose,
        (b, 1),
        (logits, experts, weights, number, kept.view(torch.int8), log_sum, sums),
        (s, e, room),
        _steps(s, e),
        num_warps=4,
    )
    return Choice(experts, weights, number, kept, log_sum, sums)


def choose_backward(
    logits: Tensor,
    experts: Tensor,
    kept: Tensor,
    log_sum: Tensor,
    from_weights: Tensor | None,
    from_sums: Tensor | None,
) -> Tensor:
    """The gradient of the logits. [b s e]"""
    b, s, e = logits.shape
    to_logits, steps = torch.empty_like(logits), _steps(s, e)
    if from_weights is not None:
        from_weights = from_weights.contiguous()
    if from_sums is not None and from_sums.stride(1) != 1:
        from_sums = from_sums.contiguous()
    launch(
        programs.choose_backward,
        (triton.cdiv(s, steps["T"]), b),
        (
            logits, experts, kept.view(torch.int8), log_sum,
            logits if from_weights is None else from_weights, logits if from_sums is None else from_sums, to_logits,
        ),
        (s, e, 0 if from_sums is None else from_sums.stride(0)),
        {"WEIGHED": from_weights is not None, "SUMMED": from_sums is not None, **steps},
        num_warps=4,
    )  # fmt: skip
    return to_logits


def even_places(experts: Tensor, number: Tensor, sums: Tensor, count: int, room: int) -> tuple[Tensor, Tensor]:
    """The place of each token [n], and who is in each place [count · b · room]. [b s] [b s] [b 2e+3]"""
    b, s = experts.shape
    place = torch.empty(b * s, dtype=torch.long, device=experts.device)
    order = torch.empty(count * b * room, dtype=torch.long, device=experts.device)
    steps = _steps(max(s, room), count)
    launch(programs.places_of, (b, 1), (experts, number, sums, place, order), (s, count, room), steps, num_warps=4)
    return place, order


def sorted_places(experts: Tensor, number: Tensor, sums: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The place of each token [n] by expert, who is in each, whose place it is, and where experts end [e]."""
    b, s = experts.shape
    place, order = torch.empty(2, b * s, dtype=torch.long, device=experts.device)
    group = torch.empty(b * s, dtype=torch.int16, device=experts.device)
    ends = torch.empty(count, dtype=torch.int32, device=experts.device)
    steps = _steps(s, count)
    launch(
        programs.sorted_places,
        (b, 1),
        (experts, number, sums, place, order, group, ends),
        (s, count),
        {**steps, "B": max(2, min(triton.next_power_of_2(b), AT_ONCE // steps["E"]))},
        num_warps=4,
    )
    return place, order, group, ends


def carry(
    x: Tensor,
    index: Tensor,
    dtype: torch.dtype,
    *,
    copies: int = 1,
    share: int = 1,
    own: Tensor | None = None,
    theirs: Tensor | None = None,
) -> Tensor:
    """Σ over `copies` of x[index / share], times weights of their own or of what the index says. [n d] → [m d]"""
    rows, width = len(index) // copies, x.shape[1]
    moved = torch.empty(rows, width, dtype=dtype, device=x.device)
    columns = min(COLUMNS, triton.next_power_of_2(width))
    weights = theirs if own is None else own
    launch(
        programs.carry,
        (triton.cdiv(rows, ROWS), triton.cdiv(width, columns)),
        (x.contiguous(), index, x if weights is None else weights, moved),
        (rows, width, share),
        {"COPIES": copies, "OWN": own is not None, "THEIRS": theirs is not None, "R": ROWS, "D": columns},
        num_warps=4,
    )
    return moved


def products(x: Tensor, index: Tensor, other: Tensor) -> Tensor:
    """Σ other · x[index] over columns, in float32. [n d] [m] [m d] → [m]"""
    rows, width = len(index), x.shape[1]
    made = torch.empty(rows, dtype=torch.float32, device=x.device)
    columns = min(COLUMNS, triton.next_power_of_2(width))
    launch(
        programs.products,
        (triton.cdiv(rows, ROWS), 1),
        (x.contiguous(), index, other.contiguous(), made),
        (rows, width),
        {"R": ROWS, "D": columns},
        num_warps=4,
    )
    return made
