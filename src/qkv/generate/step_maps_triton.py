"""Ways to launch the maps of a step, by how many rows there are; each with the norm before and the sum after it.

`normed` makes y of the norm of the stream, `added` adds a map of h to it. Shapes: r rows, d width of the stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
import triton
from torch import Tensor

from qkv.generate import step_programs
from qkv.parts.programs import may_begin_early

if TYPE_CHECKING:
    from qkv.generate.fused import Layer, Map, Norm, Plan

FEW = 4  # rows up to which a map row by row is quicker than one by a library of matrix products
HELD = 16384  # and numbers of these rows: a program holds all of them behind a norm
ENOUGH = 264  # programs of a map that fill a GPU
AT_ONCE = 2048  # weights that a warp holds
WIDEST = 8192  # inputs that a program holds at once
EARLY: dict[str, Any] = {
    "EARLY": True,
    "launch_pdl": True,
}  # how a program is launched that begins before the last ends
IN_TURN: dict[str, Any] = {"EARLY": False}  # and one that does not


class Maps(Protocol):
    """The maps of a step, in the order of a plan."""

    launched: dict[str, Any]  # how programs between them are launched

    def normed(self, norm: Norm, linear: Map, y: Tensor, layer: Layer | None = None) -> None:
        """y [r outputs], by the activation of a layer where one is given."""

    def added(self, h: Tensor, linear: Map) -> None:
        """The stream [r d] plus the map of h [r inputs]."""


def are_few(rows: int, width: int) -> bool:
    return rows <= FEW and rows * width <= HELD


@dataclass(frozen=True)
class Tall:
    """How much of a map a program does: outputs, inputs at a time and how often, and with how many warps."""

    outputs: int
    step: int
    chunks: int
    warps: int


def tall_of(outputs: int, inputs: int, maps: int = 1) -> Tall:
    """For a map row by row, or for `maps` of them side by side."""
    step = min(triton.next_power_of_2(inputs), WIDEST)
    warps = 4 if step <= 1024 else 8
    tall = max(1, warps * AT_ONCE // (step * maps))
    while tall > 1 and outputs // tall < ENOUGH:
        tall //= 2
    return Tall(tall, step, triton.cdiv(inputs, step), warps)


class RowByRow:
    """For a few rows: every weight is read once, and multiplied with each of them."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.rows, self.width = x.shape
        self.launched = EARLY if may_begin_early(x.device) else IN_TURN

    def normed(self, norm: Norm, linear: Map, y: Tensor, layer: Layer | None = None) -> None:
        outputs, gated = y.shape[1], layer is not None and layer.gated
        tall = tall_of(outputs, self.width, 2 if gated else 1)
        step_programs.norm_map[(triton.cdiv(outputs, tall.outputs),)](
            self.x, norm.gain, _or(norm.shift, norm.gain), linear.weight, _or(linear.bias, linear.weight), y, outputs,
            norm.epsilon, norm.scale, K=self.width, WIDE=tall.step, ROWS=self.rows, TALL=tall.outputs, RMS=norm.rms,
            SHIFTED=norm.shift is not None, BIASED=linear.bias is not None, FROM=linear.gap[0], TO=linear.gap[1],
            ACTIVATION="none" if layer is None else layer.activation, GATED=gated, num_warps=tall.warps,
            **self.launched,
        )  # fmt: skip

    def added(self, h: Tensor, linear: Map) -> None:
        tall = tall_of(self.width, h.shape[1])
        step_programs.map_add[(triton.cdiv(self.width, tall.outputs),)](
            h, linear.weight, _or(linear.bias, linear.weight), self.x, self.width, K=h.shape[1], STEP=tall.step,
            CHUNKS=tall.chunks, ROWS=self.rows, PADDED=triton.next_power_of_2(self.rows), TALL=tall.outputs,
            BIASED=linear.bias is not None, num_warps=tall.warps, **self.launched,
        )  # fmt: skip


class ByLibrary:
    """Products by a library, which do not wait for what has begun early, and programs for all that stands between."""

    def __init__(self, plan: Plan, x: Tensor) -> None:
        self.x, self.launched = x, IN_TURN
        self.rows, self.width = x.shape
        narrow = plan.tokens.new_empty
        self.h, self.sum = narrow(self.rows, self.width), narrow(self.rows, self.width)
        self.before = narrow(self.rows, len(plan.layers[0].inner.weight))
        self.waiting = False  # whether `sum` is to be added to the stream

    def normed(self, norm: Norm, linear: Map, y: Tensor, layer: Layer | None = None) -> None:
        add_norm(self.x, self.sum if self.waiting else None, norm, self.h, self.launched)
        self.waiting = False
        product(self.h, linear, y if layer is None else self.before)
        if layer is not None:
            step_programs.activate[(self.rows, triton.cdiv(y.shape[1], 1024))](
                self.before, y, y.shape[1], ACTIVATION=layer.activation, GATED=layer.gated, STEP=1024,
                **self.launched,
            )  # fmt: skip

    def added(self, h: Tensor, linear: Map) -> None:
        product(h, linear, self.sum)
        self.waiting = True


def add_norm(x: Tensor, added: Tensor | None, norm: Norm, h: Tensor, launched: dict[str, Any]) -> None:
    """x += added, where something is; h = norm(x). [r d]"""
    step_programs.add_norm[(len(x),)](
        x, _or(added, h), norm.gain, _or(norm.shift, norm.gain), h, norm.epsilon, norm.scale,
        K=x.shape[1], WIDE=triton.next_power_of_2(x.shape[1]), ADDED=added is not None, RMS=norm.rms,
        SHIFTED=norm.shift is not None, **launched,
    )  # fmt: skip


def product(x: Tensor, linear: Map, y: Tensor) -> None:
    first, last = linear.gap
    if linear.bias is not None and first == last:
        torch.addmm(linear.bias, x, linear.weight.T, out=y)
        return
    torch.mm(x, linear.weight.T, out=y)
    if linear.bias is not None:
        y[:, :first] += linear.bias[:first]
        y[:, last:] += linear.bias[first:]


def _or(given: Tensor | None, unused: Tensor) -> Tensor:
    """A program takes a tensor where it reads none."""
    return unused if given is None else given
