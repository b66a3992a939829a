"""FlashAttention on a GPU: launches the programs of `flash_programs.py`, with steps that suit the widths at hand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from qkv.parts.attention.blocks import TILE, WORD, TileLists, TileMap
from qkv.parts.attention.kernels import flash_programs as programs
from qkv.parts.attention.kernels.flash_tiled import like_a_stream

Band = tuple[int, int] | None


@dataclass(frozen=True)
class Steps:
    """How much a program takes at a time: queries, keys, warps, and loads under way at once."""

    queries: int
    keys: int
    warps: int
    stages: int


def forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, tiles: TileMap, scale: float, band: Band
) -> tuple[Tensor, Tensor]:
    """As `flash_tiled.forward`; where the rule is a band, its two numbers spare the programs the reading of bits."""
    b, h, queries, d = q.shape
    q, k, v = _rows_in_line(q), _rows_in_line(k), _rows_in_line(v)
    o = like_a_stream(q, v.shape[3])
    log_sum = torch.empty(b, h, queries, dtype=torch.float32, device=q.device)
    steps = forward_steps(q)
    programs.forward[(triton.cdiv(queries, steps.queries), b * h)](
        q, k, v, q if bias is None else bias, o, log_sum, *_lists(tiles.of_queries), tiles.patterns,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *_bias_strides(bias), h, h // k.shape[1], queries,
        k.shape[2], tiles.rows, *(band or (0, 0)), scale, d, v.shape[3],
        BAND=band is not None, BIASED=bias is not None, **_common(q, k, v),
        M=steps.queries, N=steps.keys, num_warps=steps.warps, num_stages=steps.stages,
    )  # fmt: skip
    return o, log_sum


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    tiles: TileMap,
    scale: float,
    o: Tensor,
    log_sum: Tensor,
    from_above: Tensor,
    band: Band,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """As `flash_tiled.backward`."""
    b, h, queries, d = q.shape
    keys, e, key_heads = k.shape[2], v.shape[3], k.shape[1]
    q, k, v = _rows_in_line(q), _rows_in_line(k), _rows_in_line(v)
    above = from_above.transpose(1, 2).contiguous().transpose(1, 2)  # [b h q e], as a stream lies in memory
    difference = torch.empty_like(log_sum)
    programs.difference_of[(triton.cdiv(queries, TILE), b * h)](
        o, above, difference, h, queries, e, M=TILE, E=triton.next_power_of_2(e)
    )
    dq, dk, dv = like_a_stream(q, d), like_a_stream(k, d), like_a_stream(v, e)
    dbias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
    given = q if bias is None else bias
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *_bias_strides(bias))
    sizes = (h, h // key_heads, queries, keys, tiles.rows, *(band or (0, 0)), scale, d, e)
    common = {"BAND": band is not None, "BIASED": bias is not None, **_common(q, k, v)}
    steps = backward_keys_steps(q)
    programs.backward_keys[(triton.cdiv(keys, steps.keys), b * key_heads)](
        q, k, v, given, above, log_sum, difference, dk, dv, *_lists(tiles.of_keys), tiles.patterns, *strides, *sizes,
        **common, M=steps.queries, N=steps.keys, num_warps=steps.warps, num_stages=steps.stages,
    )  # fmt: skip
    steps = backward_queries_steps(q)
    programs.backward_queries[(triton.cdiv(queries, steps.queries), b * h)](
        q, k, v, given, above, log_sum, difference, dq, q if dbias is None else dbias, *_lists(tiles.of_queries),
        tiles.patterns, *strides, *_bias_strides(dbias), *sizes, **common, LEARNED=dbias is not None,
        M=steps.queries, N=steps.keys, num_warps=steps.warps, num_stages=steps.stages,
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


def _lists(lists: TileLists) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return lists.begin, lists.partial, lists.tiles, lists.pattern


def _common(q: Tensor, k: Tensor, v: Tensor) -> dict[str, object]:
    d, e = q.shape[3], v.shape[3]
    wide, high = triton.next_power_of_2(max(d, 16)), triton.next_power_of_2(max(e, 16))  # a product takes 16 at least
    fits = q.shape[2] % TILE == 0 and k.shape[2] % TILE == 0 and wide == d and high == e
    precision = "ieee" if q.dtype == torch.float32 else "tf32"  # of float32 alone; the narrower types have but one
    return {"FITS": fits, "PRECISION": precision, "TILE": TILE, "WORD": WORD, "D": wide, "E": high}


def _bias_strides(bias: Tensor | None) -> tuple[int, int, int]:
    """Of rows, heads and queries: 0 where all share one."""
    if bias is None:
        return 0, 0, 0
    return tuple(0 if size == 1 else step for size, step in zip(bias.shape[:3], bias.stride()[:3], strict=True))  # type: ignore[return-value]


def _rows_in_line(x: Tensor) -> Tensor:
    """The kernels want the numbers of one token side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()
