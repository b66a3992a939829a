"""FlashAttention, our own: exact attention tile by tile, at a cost that follows what is seen. [dao2022 alg.1]"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qkv.parts.attention.bands import band_of
from qkv.parts.attention.blocks import TileLists, TileMap, tile_map
from qkv.parts.attention.kernels import flash_tiled
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.flash_tiled import like_a_stream
from qkv.parts.attention.kernels.refusals import refuse_dropout, refuse_recording
from qkv.parts.attention.visibility import Everything, Mask, Tokens

NO_BAND = (1, -1)  # an operator of torch takes numbers alone, and no key lies in this band


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    record: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Same meaning as `exact`. Tiles of the table that no query sees cost nothing, forwards and backwards."""
    refuse_recording("flash", record)
    refuse_dropout("flash", dropout)
    if mask is None:
        mask = Mask(Everything(), Tokens(q.shape[2]), Tokens(k.shape[2]), q.device)
    mask.must_fit(q, k)
    if not k.shape[2] or not q.numel():  # there is no tile
        return exact(q, k, v, mask, bias, scale=scale)
    if bias is not None:
        bias = bias.expand(*bias.shape[:3], k.shape[2])
    tiles = tile_map(mask)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return _flash(q, k, v, bias, _apart(tiles), tiles.rows, *(band_of(mask) or NO_BAND), scale)[0]


@torch.library.custom_op("qkv::flash", mutates_args=())
def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    tiles: list[Tensor],
    map_rows: int,
    least: int,
    most: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Triton's programs on a GPU, the algorithm in torch ops elsewhere."""
    joined = _joined(tiles, map_rows)
    if not q.is_cuda:
        return flash_tiled.forward(q, k, v, bias, joined, scale)
    from qkv.parts.attention.kernels import flash_triton  # Triton comes with torch's builds for GPUs only

    return flash_triton.forward(q, k, v, bias, joined, scale, _band(least, most))


@torch.library.custom_op("qkv::flash_backward", mutates_args=())
def _flash_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    tiles: list[Tensor],
    map_rows: int,
    least: int,
    most: int,
    scale: float,
    o: Tensor,
    log_sum: Tensor,
    from_above: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    given = (q, k, v, bias, _joined(tiles, map_rows), scale, o, log_sum, from_above)
    if q.is_cuda:
        from qkv.parts.attention.kernels import flash_triton

        dq, dk, dv, dbias = flash_triton.backward(*given, _band(least, most))
    else:
        dq, dk, dv, dbias = flash_tiled.backward(*given)
    return dq, dk, dv, q.new_empty(0) if dbias is None else dbias


def _band(least: int, most: int) -> tuple[int, int] | None:
    return None if (least, most) == NO_BAND else (least, most)


@_flash.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, tiles: Any, map_rows: int, least: int, most: int, scale: float
) -> Any:
    b, h, queries, _ = q.shape
    return like_a_stream(q, v.shape[3]), q.new_empty(b, h, queries, dtype=torch.float32)


@_flash_backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, tiles: Any, map_rows: int, least: int, most: int,
    scale: float, o: Tensor, log_sum: Tensor, from_above: Tensor,
) -> Any:  # fmt: skip
    room = (like_a_stream(x, x.shape[3]) for x in (q, k, v))
    return (*room, q.new_empty(0) if bias is None else torch.empty_like(bias))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, bias, tiles, *ctx.numbers = inputs
    ctx.save_for_backward(q, k, v, bias, *output, *tiles)


def _go_back(ctx: Any, from_above: Tensor, _: Tensor) -> tuple[Any, ...]:
    q, k, v, bias, o, log_sum, *tiles = ctx.saved_tensors
    dq, dk, dv, dbias = _flash_backward(q, k, v, bias, tiles, *ctx.numbers, o, log_sum, from_above)
    return dq, dk, dv, None if bias is None else dbias, [None] * len(tiles), None, None, None, None


_flash.register_autograd(_go_back, setup_context=_keep)


def _apart(tiles: TileMap) -> list[Tensor]:
    """A map as the flat list of tensors that an operator of torch takes."""
    of_queries, of_keys = tiles.of_queries, tiles.of_keys
    return [
        *(of_queries.begin, of_queries.partial, of_queries.tiles, of_queries.pattern),
        *(of_keys.begin, of_keys.partial, of_keys.tiles, of_keys.pattern),
        tiles.patterns,
    ]


def _joined(tiles: list[Tensor], rows: int) -> TileMap:
    return TileMap(rows, TileLists(*tiles[:4]), TileLists(*tiles[4:8]), tiles[8])
