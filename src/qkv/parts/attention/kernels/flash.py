"""FlashAttention, our own: exact attention tile by tile, at a cost that follows what is seen. [dao2022 alg.1]"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qkv.parts.attention.bands import Band, Runs, band_of
from qkv.parts.attention.blocks import TileLists, TileMap, tile_map
from qkv.parts.attention.factors import Factor, factors_of, joined
from qkv.parts.attention.kernels import flash_tiled
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.flash_dropout import Lot
from qkv.parts.attention.kernels.flash_tiled import like_a_stream
from qkv.parts.attention.kernels.refusals import refuse_recording
from qkv.parts.attention.visibility import Everything, Mask, Tokens
from qkv.parts.programs import is_served, unwatched
from qkv.parts.uncompiled import uncompiled


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
    if mask is None:
        mask = Mask(Everything(), Tokens(q.shape[2]), Tokens(k.shape[2]), q.device)
    mask.must_fit(q, k)
    if not k.shape[2] or not q.numel():  # there is no tile
        return exact(q, k, v, mask, bias, scale=scale, dropout=dropout)
    if bias is not None:
        bias = bias.expand(*bias.shape[:3], k.shape[2])
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    factors = factors_of(mask) if bias is None and not dropout else None
    if factors is None:
        seed = torch.randint(2**31, (1,), device=q.device) if dropout else None
        return _Flash.apply(q, k, v, bias, *_apart(_reach(mask, q)), scale, seed, dropout)
    return _attend_by_factors(q, k, v, factors, scale)


def _reach(mask: Mask, q: Tensor) -> Band | TileMap:
    """What is seen, in the plainest way: bands are for programs on a GPU."""
    band = band_of(mask) if is_served(q) else None
    return tile_map(mask) if band is None else band


class _Flash(torch.autograd.Function):
    """Forwards and backwards, joined. (Torch can join two operators by itself, at several times the cost of a call.)"""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        tensors: list[Tensor],
        rows: int,
        least: int,
        most: int,
        scale: float,
        seed: Tensor | None,
        dropout: float,
    ) -> Tensor:
        attend = _forward if unwatched(q) else _flash
        o, log_sum = attend(q, k, v, bias, tensors, rows, least, most, scale, seed, dropout)
        ctx.save_for_backward(q, k, v, bias, o, log_sum, seed, *tensors)
        ctx.numbers = rows, least, most, scale, dropout
        return o

    @staticmethod
    def backward(ctx: Any, from_above: Tensor) -> tuple[Any, ...]:
        q, k, v, bias, o, log_sum, seed, *tensors = ctx.saved_tensors
        rows, least, most, scale, dropout = ctx.numbers
        go_back = _backward if unwatched(q) else _flash_backward
        dq, dk, dv, dbias = go_back(
            q, k, v, bias, tensors, rows, least, most, scale, o, log_sum, from_above, seed, dropout
        )
        return dq, dk, dv, None if bias is None else dbias, None, None, None, None, None, None, None


@uncompiled  # factors are values of Python, and each call of a kernel is an operator by itself
def _attend_by_factors(q: Tensor, k: Tensor, v: Tensor, factors: list[Factor], scale: float) -> Tensor:
    return _Factors.apply(q, k, v, factors, scale)


class _Factors(torch.autograd.Function):
    """Several factors as one softmax: going back, each makes its weights again from the sum over all of them."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, factors: list[Factor], scale: float) -> Tensor:
        attend, answers, length = _forward if unwatched(q) else _flash, [], q.shape[2]
        for factor in factors:
            queries, keys, values = factor.laid_out(q), factor.keys_of(k), factor.keys_of(v)
            o, log_sum = attend(queries, keys, values, None, *_apart(_reach(factor.mask, q)), scale)
            answers.append((factor.laid_back(o, length), factor.laid_back(log_sum[..., None], length)[..., 0]))
        o, log_sum = joined(answers)
        ctx.save_for_backward(q, k, v, o, log_sum)
        ctx.factors, ctx.scale = factors, scale
        return o

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Any, ...]:
        q, k, v, o, log_sum = ctx.saved_tensors
        go_back, length = _backward if unwatched(q) else _flash_backward, q.shape[2]
        sums: list[Tensor] = []
        for factor in ctx.factors:
            queries, keys, values = factor.laid_out(q), factor.keys_of(k), factor.keys_of(v)
            answers = factor.laid_out(o), factor.laid_out(log_sum[..., None], torch.inf)[..., 0]
            dq, dk, dv, _ = go_back(
                queries,
                keys,
                values,
                None,
                *_apart(_reach(factor.mask, q)),
                ctx.scale,
                *answers,
                factor.laid_out(above),
            )
            found = [factor.laid_back(dq, length), *(factor.back_to_keys(x, length) for x in (dk, dv))]
            sums = [mine + more for mine, more in zip(sums, found, strict=True)] if sums else found
        return *sums, None, None


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    tensors: list[Tensor],
    rows: int,
    least: int,
    most: int,
    scale: float,
    seed: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Triton's programs on a GPU, the algorithm in torch ops elsewhere."""
    reach, lot = _joined(tensors, rows, least, most), None if seed is None else Lot(seed, dropout)
    if not is_served(q):
        assert isinstance(reach, TileMap)
        return flash_tiled.forward(q, k, v, bias, reach, scale, lot)
    from qkv.parts.attention.kernels import flash_triton  # Triton comes with torch's builds for GPUs only

    return flash_triton.forward(q, k, v, bias, reach, scale, lot)


def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    tensors: list[Tensor],
    rows: int,
    least: int,
    most: int,
    scale: float,
    o: Tensor,
    log_sum: Tensor,
    from_above: Tensor,
    seed: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lot = None if seed is None else Lot(seed, dropout)
    given = (q, k, v, bias, _joined(tensors, rows, least, most), scale, o, log_sum, from_above, lot)
    if is_served(q):
        from qkv.parts.attention.kernels import flash_triton

        dq, dk, dv, dbias = flash_triton.backward(*given)
    else:
        dq, dk, dv, dbias = flash_tiled.backward(*given)  # type: ignore[arg-type]
    return dq, dk, dv, q.new_empty(0) if dbias is None else dbias


_flash = torch.library.custom_op("qkv::flash", _forward, mutates_args=())
_flash_backward = torch.library.custom_op("qkv::flash_backward", _backward, mutates_args=())


@_flash.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, tensors: Any, rows: int, least: int, most: int, scale: float,
    seed: Tensor | None = None, dropout: float = 0.0,
) -> Any:  # fmt: skip
    b, h, queries, _ = q.shape
    return like_a_stream(q, v.shape[3]), q.new_empty(b, h, queries, dtype=torch.float32)


@_flash_backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, tensors: Any, rows: int, least: int, most: int,
    scale: float, o: Tensor, log_sum: Tensor, from_above: Tensor, seed: Tensor | None = None, dropout: float = 0.0,
) -> Any:  # fmt: skip
    room = (like_a_stream(x, x.shape[3]) for x in (q, k, v))
    return (*room, q.new_empty(0) if bias is None else torch.empty_like(bias))


def _apart(reach: Band | TileMap) -> tuple[list[Tensor], int, int, int]:
    """What is seen, as an operator of torch takes it: a flat list of tensors, and numbers."""
    if isinstance(reach, TileMap):
        lists = [[each.begin, each.partial, each.tiles, each.pattern] for each in (reach.of_queries, reach.of_keys)]
        return [*lists[0], *lists[1], reach.patterns], reach.rows, 0, 0
    runs = reach.runs
    tensors = [] if runs is None else [runs.of_queries, runs.of_keys, runs.keys_met, runs.queries_met]
    return tensors, 1 if runs is None else len(runs.of_queries), reach.least, reach.most


def _joined(tensors: list[Tensor], rows: int, least: int, most: int) -> Band | TileMap:
    """The inverse of `_apart`, told by how many tensors there are."""
    if len(tensors) > 4:
        return TileMap(rows, TileLists(*tensors[:4]), TileLists(*tensors[4:8]), tensors[8])
    return Band(least, most, Runs(*tensors) if tensors else None)
