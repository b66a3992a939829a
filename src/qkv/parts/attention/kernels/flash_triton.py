"""FlashAttention on a GPU: launches its programs, with steps that suit the widths at hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.attention.bands import Band
from qkv.parts.attention.blocks import TILE, WORD, TileMap
from qkv.parts.attention.kernels import flash_backward_programs as programs
from qkv.parts.attention.kernels import flash_bias_programs, flash_programs
from qkv.parts.attention.kernels.flash_dropout import Lot
from qkv.parts.attention.kernels.flash_tiled import like_a_stream
from qkv.parts.attention.kernels.launch_triton import launch

LIMIT = 2**31  # numbers of one head's bias, whose places are counted in 32 bits


@dataclass(frozen=True)
class Steps:
    """How much a program takes at a time: queries, keys, warps, and loads under way at once."""

    queries: int
    keys: int
    warps: int
    stages: int

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class Layout:
    """All that programs are told of how tensors lie in memory, worked out once for tensors of one shape."""

    queries: int
    keys: int
    lines: int  # rows times query heads
    key_lines: int
    strides: tuple[int, ...]  # of rows, heads and slots: q, k, v
    sizes: tuple[int, int, int, int]  # query heads, how many share a key, queries, keys
    widths: tuple[int, int]
    constants: dict[str, object]
    forward: Steps
    backward_keys: Steps
    backward_queries: Steps
    backward_bias: Steps


@lru_cache(maxsize=1024)
def layout_of(
    shapes: tuple[torch.Size, ...], strides: tuple[tuple[int, ...], ...], dtype: torch.dtype, *, band: bool, runs: bool
) -> Layout:
    (b, h, queries, d), (_, key_heads, keys, _), (_, _, _, e) = shapes
    wide, high = triton.next_power_of_2(max(d, 16)), triton.next_power_of_2(max(e, 16))  # a product takes 16 at least
    constants: dict[str, object] = {
        "BAND": band,
        "RUNS": runs,
        "FITS": queries % TILE == 0 and keys % TILE == 0 and wide == d and high == e,
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",  # of float32 alone; narrower types have but one
        "TILE": TILE,
        "WORD": WORD,
        "D": wide,
        "E": high,
    }
    large = dtype == torch.float32 or d > 128
    steps = forward_steps(large), backward_keys_steps(d, large), backward_queries_steps(d, large)
    if dtype == torch.float32 and max(d, e) > 128:
        steps = (LARGEST,) * 3
    return Layout(
        queries, keys, b * h, b * key_heads, tuple(step for each in strides for step in each[:3]),
        (h, h // key_heads, queries, keys), (d, e), constants, *steps, backward_bias_steps(large),
    )  # fmt: skip


def _layout(q: Tensor, k: Tensor, v: Tensor, reach: Band | TileMap) -> Layout:
    return layout_of(
        (q.shape, k.shape, v.shape),
        (q.stride(), k.stride(), v.stride()),
        q.dtype,
        band=isinstance(reach, Band),
        runs=isinstance(reach, Band) and reach.runs is not None,
    )


def forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, reach: Band | TileMap, scale: float, lot: Lot | None = None
) -> tuple[Tensor, Tensor]:
    """As `flash_tiled.forward`; what is seen may also be told as a band."""
    q, k, v = _rows_in_line(q), _rows_in_line(k), _rows_in_line(v)
    q, scale = (q, scale) if scale > 0 else (q * scale, 1.0)
    o = like_a_stream(q, v.shape[3])
    log_sum = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    layout = _layout(q, k, v, reach)
    steps = layout.forward
    launch(
        flash_programs.forward,
        (-(-layout.queries // steps.queries), layout.lines),
        (q, k, v, q if bias is None else bias, o, log_sum, _seed(lot, q), *_reach(reach, q, of_queries=True)),
        (*layout.strides, *_bias_strides(bias), *layout.sizes, *_numbers(reach), scale, *layout.widths, *_drops(lot)),
        {"BIASED": bias is not None, "DROPS": lot is not None, **layout.constants, "M": steps.queries, "N": steps.keys},
        **steps.options,
    )
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
    lot: Lot | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """As `flash_tiled.backward`."""
    q, k, v = _rows_in_line(q), _rows_in_line(k), _rows_in_line(v)
    o, above = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (o, from_above))  # as a stream lies in memory
    log_sum = log_sum.contiguous()
    layout = _layout(q, k, v, reach)
    (d, e), heads = layout.widths, layout.sizes[0]
    difference = torch.empty_like(log_sum)
    launch(
        programs.difference_of,
        (-(-layout.queries // TILE), layout.lines),
        (o, above, difference),
        (heads, layout.queries, e),
        {"M": TILE, "E": layout.constants["E"]},
        num_warps=4,
    )
    dq, dk, dv = like_a_stream(q, d), like_a_stream(k, d), like_a_stream(v, e)
    by_tiles = isinstance(reach, Band)  # elsewhere programs add to the gradient of a bias as they come
    dbias = None if bias is None or by_tiles else torch.zeros_like(bias, dtype=torch.float32)
    strides = (*layout.strides, *_bias_strides(bias))
    given = (q, k, v, q if bias is None else bias, above, log_sum, difference, _seed(lot, q))
    rest = (*layout.sizes, *_numbers(reach), scale, d, e, *_drops(lot))
    constants = {"BIASED": bias is not None, "DROPS": lot is not None, **layout.constants}
    steps = layout.backward_keys
    launch(
        programs.backward_keys,
        (-(-layout.keys // steps.keys), layout.key_lines),
        (*given, dk, dv, *_reach(reach, q, of_queries=False)),
        (*strides, *rest),
        {**constants, "M": steps.queries, "N": steps.keys},
        **steps.options,
    )
    steps = layout.backward_queries
    launch(
        programs.backward_queries,
        (-(-layout.queries // steps.queries), layout.lines),
        (*given, dq, q if dbias is None else dbias, *_reach(reach, q, of_queries=True)),
        (*strides, *_bias_strides(dbias), *rest),
        {**constants, "LEARNED": dbias is not None, "M": steps.queries, "N": steps.keys},
        **steps.options,
    )
    if bias is not None and isinstance(reach, Band):
        dbias = _backward_bias(bias, reach, layout, given, (*strides, *rest), drops=lot is not None)
    return dq, dk, dv, dbias if bias is None or dbias is None else dbias.to(bias.dtype)


def _backward_bias(
    bias: Tensor,
    reach: Band,
    layout: Layout,
    given: tuple[Tensor, ...],
    numbers: tuple[int | float, ...],
    *,
    drops: bool,
) -> Tensor:
    """The gradient of a bias, tile by tile, summed over all that share it. [1|b 1|h 1|q k] float32"""
    (b, h), q, steps = bias.shape[:2], given[0], layout.backward_bias
    made = torch.empty(b, h, layout.queries, layout.keys, dtype=torch.float32, device=bias.device)
    runs = (q, q) if reach.runs is None else (reach.runs.of_queries, reach.runs.of_keys)
    heads = layout.sizes[0]
    names = ("RUNS", "FITS", "PRECISION", "TILE", "WORD")
    launch(
        flash_bias_programs.backward_bias,
        (-(-layout.queries // steps.queries) * -(-layout.keys // steps.keys), b * h),
        (*given, made, *runs),
        (*numbers, 1 if b > 1 else layout.lines // heads, 1 if h > 1 else heads),
        {
            "DROPS": drops,
            **{name: layout.constants[name] for name in names},
            "M": steps.queries,
            "N": steps.keys,
            "D": layout.constants["D"],
            "E": layout.constants["E"],
        },
        **steps.options,
    )
    return made if bias.shape[2] == layout.queries else made.sum(2, keepdim=True)


LARGEST = Steps(32, 32, 4, 1)  # of float32 and more than those widths: larger ones find no room in shared memory


# The quickest of those tried on an H200, for look-ahead masks in bfloat16 at widths of 64 and 128.
def forward_steps(large: bool) -> Steps:
    """`large`: more than those widths, or of float32, which takes as much room again."""
    return Steps(128, 64, 8, 2) if large else Steps(64, 64, 4, 3)


def backward_keys_steps(width: int, large: bool) -> Steps:
    if large:
        return Steps(32, 64, 4, 2)
    return Steps(64, 64, 4, 3) if width <= 64 else Steps(64, 128, 8, 3)


def backward_queries_steps(width: int, large: bool) -> Steps:
    if large:
        return Steps(64, 32, 4, 2)
    return Steps(64, 64, 4, 3) if width <= 64 else Steps(128, 64, 8, 3)


def backward_bias_steps(large: bool) -> Steps:
    return Steps(32, 32, 4, 2) if large else Steps(64, 64, 4, 2)


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


def _seed(lot: Lot | None, unused: Tensor) -> Tensor:
    return unused if lot is None else lot.seed


def _drops(lot: Lot | None) -> tuple[int, float]:
    """How many of 2³¹ weights go, and by what the others grow."""
    return (0, 1.0) if lot is None else (lot.dropped, lot.scale)


def _bias_strides(bias: Tensor | None) -> tuple[int, int, int]:
    """Of rows, heads and queries: 0 where all share one."""
    if bias is None:
        return 0, 0, 0
    if bias.stride(2) * bias.shape[2] > LIMIT:
        queries, keys = bias.shape[2:]
        raise QkvError(f"A bias of {queries:,} × {keys:,} is more than programs find their way in: take shorter rows.")
    return tuple(0 if size == 1 else step for size, step in zip(bias.shape[:3], bias.stride()[:3], strict=True))  # type: ignore[return-value]


def _rows_in_line(x: Tensor) -> Tensor:
    """The kernels want the numbers of one token side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()
