"""The way back of attention over short rows on a GPU: launches its program, with steps that suit the sizes at hand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from qkv.parts.attention.kernels import short_backward_programs
from qkv.parts.attention.kernels.launch_triton import launch
from qkv.parts.attention.kernels.short_triton import filled_up, row_of, side_by_side

ALIGNED = 16  # bytes, as the copy engine asks


@dataclass(frozen=True)
class BackSteps:
    """How a program goes through a row: room for its queries, keys at a time, warps, loads under way."""

    queries: int
    keys: int
    warps: int
    stages: int


def back_over_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    documents: Tensor | None,
    o: Tensor,
    log_sum: Tensor,
    above: Tensor,
    into: tuple[Tensor, Tensor, Tensor],
    *,
    causal: bool,
    scale: float,
    steps: BackSteps | None = None,
) -> Tensor:
    """Writes the gradients of q, k and v, all [b h s d] with as many heads, into tensors that are `aligned`.

    Their sums over the slots of each row are given back, [b 3 h d]. `o` and `log_sum` are those of
    `attend_rows_and_keep`, with the same documents and a scale above 0.
    """
    (b, h, queries, d), keys = q.shape, k.shape[2]
    wide = filled_up(d)
    steps = steps or back_steps(queries, wide)
    dq, dk, dv = into
    kept = log_sum.new_empty(b, 3, h, wide)
    if documents is not None:
        documents = side_by_side(documents)

    def tiles(x: Tensor, slots: int) -> TensorDescriptor:
        return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, slots, wide])

    launch(
        short_backward_programs.back_over_rows,
        (b * h, 1),
        (
            log_sum,
            log_sum if documents is None else documents,
            kept,
            tiles(aligned(q), steps.queries),
            tiles(aligned(k), steps.keys),
            tiles(aligned(v), steps.keys),
            tiles(aligned(o), steps.queries),
            tiles(aligned(above), steps.queries),
            tiles(dq, steps.queries),
            tiles(dk, steps.keys),
            tiles(dv, steps.keys),
        ),
        (row_of(documents), h, queries, keys, scale),
        {
            "CAUSAL": causal,
            "PADDED": documents is not None,
            "M": steps.queries,
            "N": steps.keys,
            "D": wide,
            "STAGES": steps.stages,
        },
        num_warps=steps.warps,
    )
    return kept[..., :d]


def back_steps(queries: int, wide: int) -> BackSteps:
    """Room for all queries, of which a warpgroup takes 64, and as many keys as leave their products in registers."""
    room = 64 if queries <= 64 else 128 if queries <= 128 else 256
    stages = 1 if wide > 64 else 3 if room == 256 else 2
    return BackSteps(room, 64, 8 if room * wide > 128 * 64 else 4, stages)


def aligned(x: Tensor) -> Tensor:
    """As the copy engine takes it: every step between numbers that are no neighbours is a multiple of 16 bytes."""
    steps = [step * x.itemsize for step in x.stride()[:-1]]
    fits = x.stride(-1) == 1 and x.data_ptr() % ALIGNED == 0 and all(step and step % ALIGNED == 0 for step in steps)
    return x if fits else x.clone(memory_format=torch.contiguous_format)
