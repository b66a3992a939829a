"""Launches the programs of a step, in the order that a plan says, with steps that suit the sizes at hand.

Shapes: r rows, d width of the stream, v vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from qkv.generate import step_attention_programs, step_maps_cuda, step_maps_triton, step_programs
from qkv.generate.turns import turns_of

if TYPE_CHECKING:
    from qkv.generate.fused import Cross, Layer, Plan
    from qkv.generate.recording import Recording

ENOUGH = 528  # programs of attention that fill a GPU
MOST_SHARES = 64  # of a head's slots
AT_A_TIME = 2048  # numbers of keys, and as many of values, that such a program reads together
STAGES = 4  # of these, all but one under way while one is used
WARPS = 2
ALIGNED = 8  # logits, where rows of them begin
TILE = 2048  # tokens of the vocabulary that are looked through together


def shares_of(lines: int, capacity: int, step: int) -> int:
    """Into how many the slots of a head are divided, of `lines` heads of all rows; `step` slots are read together."""
    shares = 1
    while shares < MOST_SHARES and shares * lines < ENOUGH and capacity // shares > step:
        shares *= 2
    return shares


def maps_of(plan: Plan, x: Tensor) -> step_maps_triton.Maps:
    """What suits the rows of a stream x [r d]."""
    if step_maps_triton.are_few(*x.shape):
        return step_maps_triton.RowByRow(x)
    if step_maps_cuda.fits(plan, x):
        return step_maps_cuda.InClusters(plan, x)
    return step_maps_triton.ByLibrary(plan, x)


class FusedStep:
    """One step over the buffers of a recording: `step` reads its tokens, writes its logits and moves it on."""

    def __init__(self, plan: Plan, recording: Recording) -> None:
        rows, first = recording.shape.rows, plan.layers[0]
        few = step_maps_triton.are_few(rows, plan.tokens.shape[1])
        self.plan, self.recording = plan, recording
        attention = first.attention
        self.rows, self.width = rows, plan.tokens.shape[1]
        self.heads, self.groups, self.head_width = attention.heads, attention.key_value_heads, attention.key_width
        self.scale = attention.key_width**-0.5 if attention.scale is None else attention.scale
        self.capacity, self.vocabulary = recording.shape.capacity, len(plan.head.weight)
        self.slots = max(1, AT_A_TIME // self.head_width)
        self.shares = shares_of(rows * self.heads, self.capacity, self.slots)
        self.memory_shares = shares_of(rows * self.heads, recording.shape.slots, self.slots)
        most = max(self.shares, self.memory_shares)
        narrow, wide = plan.tokens.new_empty, plan.tokens.new_zeros
        self.x = wide(rows, self.width, dtype=torch.float32)
        self.qkv = narrow(rows, len(first.project.weight))
        self.query = narrow(rows, self.heads * self.head_width)
        self.attended = narrow(rows, self.heads * self.head_width)
        self.parts = wide(rows, self.heads, most, self.head_width, dtype=torch.float32)
        self.stat = wide(rows, self.heads, most, 2, dtype=torch.float32)
        self.done = wide(rows, self.heads, dtype=torch.int32)
        self.inner = narrow(rows, first.outer.weight.shape[1])
        kind, columns = torch.float32 if few else plan.head.weight.dtype, self.vocabulary
        # A library's product into rows that begin at odd places is several times slower.
        self.logits = narrow(rows, columns if few else -(-columns // ALIGNED) * ALIGNED, dtype=kind)[:, :columns]
        self.tiles = -(-self.vocabulary // TILE)
        self.tile_stat = wide(rows, 3, self.tiles, dtype=torch.float32)
        self.tile_at = wide(rows, self.tiles, dtype=torch.int32)
        self.turns = {
            layer.attention: turns_of(layer.attention.rotary, self.capacity, self.head_width, self.x)
            for layer in plan.layers
        }
        if len({layer.attention.rotary for layer in plan.layers}) == 1 or attention.rotary is None:
            self.turns = dict.fromkeys(self.turns, self.turns[attention])  # one table for all
        self.bucket, self.table = self.done, self.x  # of each distance; of each bucket and head
        if plan.bias is not None:
            back = -torch.arange(self.capacity, device=self.x.device)
            self.bucket, self.table = plan.bias.bucket(back).to(torch.int32), plan.bias.weight.detach()
        self.maps = maps_of(plan, self.x)
        self.launched = self.maps.launched

    def step(self) -> Tensor:
        self._read()
        self._choose()
        return self.logits

    def _read(self) -> None:
        """The logits of the tokens that follow."""
        record, plan, rows = self.recording, self.plan, self.rows
        step_programs.embed[(rows,)](
            record.tokens, record.positions, plan.tokens, plan.tokens if plan.places is None else plan.places, self.x,
            plan.scale, K=self.width, WIDE=triton.next_power_of_2(self.width), PLACED=plan.places is not None,
            **self.launched,
        )  # fmt: skip
        for layer in plan.layers:
            self._layer(layer)
        self.maps.normed(plan.norm, plan.head, self.logits)

    def _choose(self) -> None:
        """The likeliest of them become the tokens to be read."""
        record, rows = self.recording, self.rows
        step_programs.best_of_tiles[(rows, self.tiles)](
            self.logits, record.forbidden.view(torch.uint8), self.tile_stat, self.tile_at, self.logits.stride(0),
            self.vocabulary, self.tiles, TILE=TILE, **self.launched,
        )  # fmt: skip
        step_programs.take_best[(rows,)](
            self.tile_stat, self.tile_at, record.tokens, record.positions, record.count, record.written,
            record.log_probabilities, self.tiles, self.vocabulary,
            ROUND=len(record.written), TILES=triton.next_power_of_2(self.tiles), **self.launched,
        )  # fmt: skip

    def _layer(self, layer: Layer) -> None:
        maps = self.maps
        maps.normed(layer.norm, layer.project, self.qkv)
        self._attend(layer)
        maps.added(self.attended, layer.out)
        if layer.cross is not None:
            maps.normed(layer.cross.norm, layer.cross.query, self.query)
            self._attend_memory(layer.cross)
            maps.added(self.attended, layer.cross.out)
        maps.normed(layer.next_norm, layer.inner, self.inner, layer)
        maps.added(self.inner, layer.outer)

    def _attend(self, layer: Layer) -> None:
        record = self.recording
        keys, values = record.cache.room(layer.attention)
        cos, sin, partner = self.turns[layer.attention]
        step_attention_programs.attend[(self.rows * self.heads, self.shares)](
            self.qkv, keys, values, self.attended, self.parts, self.stat, self.done, record.positions, record.first,
            cos, sin, partner, self.bucket, self.table, self.scale, self.capacity, H=self.heads, G=self.groups,
            D=self.head_width, SHARES=self.shares, STEP=self.slots, STAGES=STAGES,
            ROTARY=layer.attention.rotary is not None, BIASED=self.plan.bias is not None, num_warps=WARPS,
            **self.launched,
        )  # fmt: skip

    def _attend_memory(self, cross: Cross) -> None:
        record = self.recording
        keys, values = record.cache.memory_room(cross.attention)
        step_attention_programs.attend_memory[(self.rows * self.heads, self.memory_shares)](
            self.query, keys, values, record.cache.memory_real, self.attended, self.parts, self.stat, self.done,
            self.scale, record.shape.slots, H=self.heads, G=self.groups, D=self.head_width,
            BEAMS=self.rows // record.shape.sources, SHARES=self.memory_shares, STEP=self.slots,
            STAGES=STAGES, num_warps=WARPS, **self.launched,
        )  # fmt: skip
