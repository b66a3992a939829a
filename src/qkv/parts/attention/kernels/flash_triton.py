"""FlashAttention on a GPU: launches its programs, with steps that suit the widths at hand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from qkv.parts.attention.bands import Band
from qkv.parts.attention.blocks import TILE, WORD, TileMap
from qkv.parts.attention.kernels import flash_backward_programs, flash_programs
from qkv.parts.attention.kernels.flash_tiled import like_a_stream


@dataclass(frozen=True)
class Steps:
    """How much a program takes at a time: queries, keys, warps, and loads under way at once."""

    queries: int
    keys: int
    warps: int
    stages: int


def forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, reach: Band | TileMap, scale: float
) -> tuple[Tensor, Tensor]:
    """As `flash_tiled.forward`; what is seen may also be told as a band."""
    b, h, queries, d = q.shape
    q, k, v = _rows_in_line(q), _rows_in_line(k), _rows_in_line(v)
    q, scale = (q, scale) if scale > 0 else (q * scale, 1.0)
    o = like_a_stream(q, v.shape[3])
    log_sum = torch.empty(b, h, queries, dtype=torch.float32, device=q.device)
    steps = forward_steps(q)
    flash_programs.forward[(triton.cdiv(queries, steps.queries), b * h)](
        q, k, v, q if bias is None else bias, o, log_sum, *_reach(reach, q, of_queries=True),
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *_bias_strides(bias), h, h // k.shape[1], queries,
        k.shape[2], *_numbers(reach), scale, d, v.shape[3],
        BIASED=bias is not None, **_common(q, k, v, reach),
        M=steps.queries, N=steps.keys, num_warps=steps.warps, num_stages=steps.stages,
    )  # fmt: skip
    return o, log_sum


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    reach: Band | TileMap,
    scale: float,
    o: Tensor,
    log_sum: Tensor,
    from_above: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """As `flash_tiled.backward`."""
    b, h, queries, d = q.shape
    keys, e, key_heads = k.shape[2], v.shape[3], k.shape[1]
    q, k, v = _rows_in_line(q), _rows_in_line(k), _rows_in_line(v)
    above = from_above.transpose(1, 2).contiguous().transpose(1, 2)  # [b h q e], as a stream lies in memory
    difference = torch.empty_like(log_sum)
    flash_backward_programs.difference_of[(triton.cdiv(queries, TILE), b * h)](
        o, above, difference, h, queries, e, M=TILE, E=triton.next_power_of_2(e)
    )
    dq, dk, dv = like_a_stream(q, d), like_a_stream(k, d), like_a_stream(v, e)
    dbias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
    given = q if bias is None else bias
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *_bias_strides(bias))
    sizes = (h, h // key_heads, queries, keys, *_numbers(reach), scale, d, e)
    common = {"BIASED": bias is not None, **_common(q, k, v, reach)}
    steps = backward_keys_steps(q)
    flash_backward_programs.backward_keys[(triton.cdiv(keys, steps.keys), b * key_heads)](
        q, k, v, given, above, log_sum, difference, dk, dv, *_reach(reach, q, of_queries=False), *strides, *sizes,
        **common, M=steps.queries, N=steps.keys, num_warps=steps.warps, num_stages=steps.stages,
    )  # fmt: skip
    steps = backward_queries_steps(q)
    flash_backward_programs.backward_queries[(triton.cdiv(queries, steps.queries), b * h)](
        q, k, v, given, above, log_sum, difference, dq, q if dbias is None else dbias,
        *_reach(reach, q, of_queries=True), *strides, *_bias_strides(dbias), *sizes, **common,
        LEARNED=dbias is not None, M=steps.queries, N=steps.keys, num_warps=steps.warps, num_stages=steps.stages,
    )  # fmt: skip
    return dq, dk, dv, dbias if bias is None or dbias is None else dbias.to(bias.dtype)


# The quickest of those tried on an H200, for look-ahead masks in bfloat16 at widths of 64 and 128.
def forward_steps(q: Tensor) -> Steps:
    if q.dtype == torch.float32 or q.shape[3] > 128:
        return Steps(128, 64, 8, 2)
    return Steps(64, 64, 4, 3) if q.shape[3] <= 64 else Steps(128, 128, 8, 3)


def backward_keys_steps(q: Tensor) -> Steps:
    if q.dtype == torch.float32 or q.shape[3] > 128:
        return Steps(32, 64, 4, 2)
    return Steps(64, 64, 4, 2) if q.shape[3] <= 64 else Steps(64, 128, 8, 2)


def backward_queries_steps(q: Tensor) -> Steps:
    return Steps(64, 32, 4, 2) if q.dtype == torch.float32 or q.shape[3] > 128 else Steps(64, 64, 4, 3)


def _reach(reach: Band | TileMap, unused: Tensor, *, of_queries: bool) -> tuple[Tensor, ...]:
    """What programs read of it: lists and patterns of tiles, runs of queries and keys, and what each tile may meet."""
    if isinstance(reach, TileMap):
        lists = reach.of_queries if of_queries else reach.of_keys
        return lists.begin, lists.partial, lists.tiles, lists.pattern, reach.patterns, unused, unused, unused
    if reach.runs is None:
        return (unused,) * 8
    met = reach.runs.keys_met if of_queries else reach.runs.queries_met
    return *(unused,) * 5, reach.runs.of_queries, reach.runs.of_keys, met


def _numbers(reach: Band | TileMap) -> tuple[int, int, int]:
    """Rows of the map or of the runs, and the ends of the band."""
    if isinstance(reach, TileMap):
        return reach.rows, 0, 0
    return 1 if reach.runs is None else len(reach.runs.of_queries), reach.least, reach.most


def _common(q: Tensor, k: Tensor, v: Tensor, reach: Band | TileMap) -> dict[str, object]:
    d, e = q.shape[3], v.shape[3]
    wide, high = triton.next_power_of_2(max(d, 16)), triton.next_power_of_2(max(e, 16))  # a product takes 16 at least
    return {
        "BAND": isinstance(reach, Band),
        "RUNS": isinstance(reach, Band) and reach.runs is not None,
        "FITS": q.shape[2] % TILE == 0 and k.shape[2] % TILE == 0 and wide == d and high == e,
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",  # of float32 alone; narrower types have but one
        "TILE": TILE,
        "WORD": WORD,
        "D": wide,
        "E": high,
    }


def _bias_strides(bias: Tensor | None) -> tuple[int, int, int]:
    """Of rows, heads and queries: 0 where all share one."""
    if bias is None:
        return 0, 0, 0
    return tuple(0 if size == 1 else step for size, step in zip(bias.shape[:3], bias.stride()[:3], strict=True))  # type: ignore[return-value]


def _rows_in_line(x: Tensor) -> Tensor:
    """The kernels want the numbers of one token side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()
