"""Launches the programs of a step, in the order that a plan says, with steps that suit the sizes at hand.

Shapes: r rows, d width of the stream, v vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from qkv.generate import step_programs as programs
from qkv.parts.position import Rotary, rotate_halves

if TYPE_CHECKING:
    from qkv.generate.fused import Layer, Map, Norm, Plan
    from qkv.generate.recording import Recording

FEW = 4  # rows up to which a map by our own programs is quicker than by a library of matrix products
ENOUGH = 264  # programs that fill a GPU
AT_ONCE = 2048  # weights that a warp holds
WIDEST = 8192  # inputs that a program holds at once
TILE = 2048  # tokens of the vocabulary that are looked through together
EARLY = False  # whether programs begin before the one before them has ended


@dataclass(frozen=True)
class Tall:
    """How much of a map a program does: outputs, inputs at a time and how often, and with how many warps."""

    outputs: int
    step: int
    chunks: int
    warps: int


def tall_of(outputs: int, inputs: int, maps: int = 1) -> Tall:
    """For a map, or for `maps` of them side by side."""
    step = min(triton.next_power_of_2(inputs), WIDEST)
    warps = 4 if step <= 1024 else 8
    tall = max(1, warps * AT_ONCE // (step * maps))
    while tall > 1 and outputs // tall < ENOUGH:
        tall //= 2
    return Tall(tall, step, -(-inputs // step), warps)


def shares_of(lines: int, capacity: int) -> int:
    """Into how many the slots of a head are divided, of `lines` heads of all rows."""
    shares = 1
    while shares < 8 and shares * lines < ENOUGH and capacity // shares > 64:
        shares *= 2
    return shares


class FusedStep:
    """One step over the buffers of a recording: `step` reads its tokens, writes its logits and moves it on."""

    def __init__(self, plan: Plan, recording: Recording) -> None:
        self.plan, self.recording, self.early = plan, recording, EARLY and recording.shape.rows <= FEW
        self.launched = {"launch_pdl": True} if self.early else {}
        rows, first = recording.shape.rows, plan.layers[0]
        attention = first.attention
        self.rows, self.width, self.hidden = rows, plan.tokens.shape[1], first.outer.weight.shape[1]
        self.heads, self.groups, self.head_width = attention.heads, attention.key_value_heads, attention.key_width
        self.scale = attention.key_width**-0.5 if attention.scale is None else attention.scale
        self.capacity, self.vocabulary = recording.shape.capacity, len(plan.head.weight)
        self.shares = shares_of(rows * self.heads, self.capacity)
        narrow, wide = plan.tokens.new_empty, plan.tokens.new_zeros
        self.x = wide(rows, self.width, dtype=torch.float32)
        self.qkv = narrow(rows, len(first.project.weight))
        self.attended = narrow(rows, self.heads * self.head_width)
        self.parts = wide(rows, self.heads, self.shares, self.head_width, dtype=torch.float32)
        self.stat = wide(rows, self.heads, self.shares, 2, dtype=torch.float32)
        self.done = wide(rows, self.heads, dtype=torch.int32)
        self.inner = narrow(rows, self.hidden)
        few = rows <= FEW
        self.logits = narrow(rows, self.vocabulary, dtype=torch.float32 if few else plan.head.weight.dtype)
        self.tiles = -(-self.vocabulary // TILE)
        self.tile_stat = wide(rows, 3, self.tiles, dtype=torch.float32)
        self.tile_at = wide(rows, self.tiles, dtype=torch.int32)
        if not few:
            self.normed, self.added = narrow(rows, self.width), narrow(rows, self.width)
            self.before = narrow(rows, len(first.inner.weight))
        self.turns = {
            layer.attention: turns_of(layer.attention.rotary, self.capacity, self.head_width, self.x)
            for layer in plan.layers
        }
        if len({layer.attention.rotary for layer in plan.layers}) == 1 or attention.rotary is None:
            self.turns = dict.fromkeys(self.turns, self.turns[attention])  # one table for all
        self.blocks = self._few if few else self._many

    def step(self) -> Tensor:
        record = self.recording
        plan, rows = self.plan, self.rows
        programs.embed[(rows,)](
            record.tokens, record.positions, plan.tokens, plan.tokens if plan.places is None else plan.places, self.x,
            plan.scale, K=self.width, WIDE=triton.next_power_of_2(self.width), PLACED=plan.places is not None,
            EARLY=self.early, **self.launched,
        )  # fmt: skip
        self.blocks()
        programs.best_of_tiles[(rows, self.tiles)](
            self.logits, record.forbidden.view(torch.uint8), self.tile_stat, self.tile_at, self.vocabulary, self.tiles,
            TILE=TILE, EARLY=self.early, **self.launched,
        )  # fmt: skip
        programs.take_best[(rows,)](
            self.tile_stat, self.tile_at, record.tokens, record.positions, record.count, record.written,
            record.log_probabilities, self.tiles, self.vocabulary,
            ROUND=len(record.written), TILES=triton.next_power_of_2(self.tiles), EARLY=self.early,
            **self.launched,
        )  # fmt: skip
        return self.logits

    def _few(self) -> None:
        """Five programs a layer."""
        for layer in self.plan.layers:
            self._norm_map(layer.norm, layer.project, self.qkv)
            self._attend(layer)
            self._map_add(self.attended, layer.out)
            self._norm_map(layer.next_norm, layer.inner, self.inner, layer.activation, layer.gated)
            self._map_add(self.inner, layer.outer)
        self._norm_map(self.plan.norm, self.plan.head, self.logits)

    def _many(self) -> None:
        """Products by a library, and programs for all that stands between them."""
        added = None
        for layer in self.plan.layers:
            self._add_norm(added, layer.norm)
            product(self.normed, layer.project, self.qkv)
            self._attend(layer)
            product(self.attended, layer.out, self.added)
            self._add_norm(self.added, layer.next_norm)
            product(self.normed, layer.inner, self.before)
            self._activate(layer)
            product(self.inner, layer.outer, self.added)
            added = self.added
        self._add_norm(added, self.plan.norm)
        product(self.normed, self.plan.head, self.logits)

    def _norm_map(self, norm: Norm, linear: Map, y: Tensor, activation: str = "none", gated: bool = False) -> None:
        outputs = y.shape[1]
        tall = tall_of(outputs, self.width, 2 if gated else 1)
        programs.norm_map[(triton.cdiv(outputs, tall.outputs),)](
            self.x, norm.gain, _or(norm.shift, norm.gain), linear.weight, _or(linear.bias, linear.weight), y, outputs,
            norm.epsilon, K=self.width, WIDE=tall.step, ROWS=self.rows, TALL=tall.outputs, RMS=norm.rms,
            SHIFTED=norm.shift is not None, BIASED=linear.bias is not None, ACTIVATION=activation, GATED=gated,
            EARLY=self.early, num_warps=tall.warps, **self.launched,
        )  # fmt: skip

    def _map_add(self, h: Tensor, linear: Map) -> None:
        tall = tall_of(self.width, h.shape[1])
        programs.map_add[(triton.cdiv(self.width, tall.outputs),)](
            h, linear.weight, _or(linear.bias, linear.weight), self.x, self.width, K=h.shape[1], STEP=tall.step,
            CHUNKS=tall.chunks, ROWS=self.rows, PADDED=triton.next_power_of_2(self.rows), TALL=tall.outputs,
            BIASED=linear.bias is not None, EARLY=self.early, num_warps=tall.warps, **self.launched,
        )  # fmt: skip

    def _attend(self, layer: Layer) -> None:
        record = self.recording
        keys, values = record.cache.room(layer.attention)
        cos, sin, partner = self.turns[layer.attention]
        step, warps = (64, 2) if self.shares == 1 else (32, 1)
        programs.attend[(self.rows * self.heads, self.shares)](
            self.qkv, keys, values, self.attended, self.parts, self.stat, self.done, record.positions, record.first,
            cos, sin, partner, self.scale, self.capacity, H=self.heads, G=self.groups, D=self.head_width,
            SHARES=self.shares, STEP=step, ROTARY=layer.attention.rotary is not None, EARLY=self.early,
            num_warps=warps,
            **self.launched,
        )  # fmt: skip

    def _add_norm(self, added: Tensor | None, norm: Norm) -> None:
        programs.add_norm[(self.rows,)](
            self.x, _or(added, self.x), norm.gain, _or(norm.shift, norm.gain), self.normed, norm.epsilon,
            K=self.width, WIDE=triton.next_power_of_2(self.width), ADDED=added is not None, RMS=norm.rms,
            SHIFTED=norm.shift is not None,
        )  # fmt: skip

    def _activate(self, layer: Layer) -> None:
        programs.activate[(self.rows, triton.cdiv(self.hidden, 1024))](
            self.before, self.inner, self.hidden, ACTIVATION=layer.activation, GATED=layer.gated, STEP=1024
        )


def product(x: Tensor, linear: Map, y: Tensor) -> None:
    if linear.bias is None:
        torch.mm(x, linear.weight.T, out=y)
    else:
        torch.addmm(linear.bias, x, linear.weight.T, out=y)


def turns_of(rotary: Rotary | None, positions: int, width: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """cos and sin of each position and place of a head, and the place that a place is turned with. [p d] [p d] [d]

    y[i] = x[i] · cos[i] + x[partner[i]] · sin[i]; a place that is not turned has cos 1 and sin 0.
    """
    if rotary is None:
        return like, like, like
    pairs, place = len(rotary.rates), torch.arange(width, device=like.device)
    angles = torch.arange(positions, device=like.device)[:, None].to(rotary.rates.dtype) * rotary.rates.to(like.device)
    if rotary.pairing is rotate_halves:
        first, pair = place < pairs, place % pairs
        partner = torch.where(first, place + pairs, place - pairs)
    else:
        first, pair = place % 2 == 0, place // 2
        partner = torch.where(first, place + 1, place - 1)
    turned = place < 2 * pairs
    angles = angles[:, pair.clamp(max=pairs - 1)]  # [p d]
    cos = torch.where(turned, angles.cos(), 1.0)
    sin = torch.where(turned, torch.where(first, -angles.sin(), angles.sin()), 0.0)
    return cos.to(like.dtype), sin.to(like.dtype), torch.where(turned, partner, place).to(torch.int32)


def _or(given: Tensor | None, unused: Tensor) -> Tensor:
    """A program takes a tensor where it reads none."""
    return unused if given is None else given
