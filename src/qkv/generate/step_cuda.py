"""Launches a whole step of a few rows as one program, `step.cu`, whose blocks hold as much as a GPU can.

Shapes: r rows, d width of the stream, v vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.generate import step_maps_triton
from qkv.generate.step_triton import FusedStep
from qkv.parts import cuda
from qkv.parts.programs import multiprocessors

if TYPE_CHECKING:
    from qkv.generate.fused import Layer, Map, Norm, Plan
    from qkv.generate.recording import Recording, Shape

FILE = Path(__file__).with_name("step.cu")
ROOM = 227 * 1024  # bytes of shared memory that a block may have
WARPS = 8  # that do arithmetic
FILLERS = 2  # warps that fill the ring
TALL = 4  # rows of a matrix in a slot of the ring
LONGEST = 2048  # inputs of a row in a slot; longer rows come in pieces
KEPT = 16  # slots of a cache in a slot of the ring
KEPT_OF_SHORT, SHORT = 8, 512  # the same where a cache has no more than so many: more warps have a part of them
MOST_SHARES = 8  # of a head's slots
LEAST = 128  # slots of a share, where there are several
UNDER_WAY = 39 * 1024  # bytes that a block waits for at a time: enough for all of the speed of memory, or nearly
FEWEST, MOST = 4, 64  # slots that make a ring
LINE = 32  # words that lie together
COLUMNS = 16  # of the table of pointers
ACTIVATIONS = ("none", "gelu", "gelu_tanh", "gelu_quick", "silu", "relu")  # as they are numbered there


def pieces_of(inputs: int, width: int) -> int | None:
    """Into how many a row of a matrix is cut, so that none is much longer than the stream is wide."""
    most = min(LONGEST, max(width, 512))
    return next((many for many in range(1, 65) if inputs % (8 * many) == 0 and inputs // many <= most), None)


@dataclass(frozen=True)
class Room:
    """The shared memory of a block: a ring of slots, what is multiplied, and sums."""

    pieces: tuple[int, int, int]  # of a row as wide as the stream, as all heads, as the hidden units
    stage: int  # bytes of a slot
    stages: int
    scratch: int

    @property
    def bytes(self) -> int:
        """Of a block, but for what is no larger for larger rows."""
        return self.stage * self.stages + self.scratch


def room_of(plan: Plan, rows: int, blocks: int) -> Room | None:
    """None: a block cannot hold it."""
    first, width = plan.layers[0], plan.tokens.shape[1]
    attended, hidden = first.out.weight.shape[1], first.outer.weight.shape[1]
    pieces = [pieces_of(inputs, width) for inputs in (width, attended, hidden)]
    if None in pieces:
        return None
    of_width, of_attended, of_hidden = (many for many in pieces if many is not None)
    longest = max(width // of_width, attended // of_attended, hidden // of_hidden)
    stage = _rounded(TALL * longest * 2)
    x = _rounded(rows * 2 * max(2 * width, attended, hidden))
    sums = max(
        _each(len(first.project.weight), blocks) * of_width,
        _each(width, blocks) * max(of_attended, of_hidden),
        _each(hidden, blocks) * of_width * (2 if first.gated else 1),
        _each(len(plan.head.weight), blocks) * of_width,
    )
    scratch = x + _rounded(4 * rows * sums)
    fixed = 8 * COLUMNS * (len(plan.layers) + 1) + 8 * WARPS * rows + 2048  # and barriers
    fixed += 4 * (WARPS * (first.attention.key_width + 2) + rows * _each(width, blocks))
    stages = min((ROOM - scratch - fixed) // stage, MOST)
    stages -= stages % (WARPS if stages > WARPS else FILLERS)  # as many for each warp
    return Room((of_width, of_attended, of_hidden), stage, stages, scratch) if stages >= FEWEST else None


def fits(plan: Plan, shape: Shape) -> bool:
    """Whether the program knows all of a plan, and its device and rows are what it is for."""
    weight = plan.tokens
    if not (weight.is_cuda and torch.version.hip is None and cuda.has_bindings()):
        return False
    known = plan.bias is None and all(layer.cross is None for layer in plan.layers)
    if not known or weight.dtype != torch.bfloat16 or not step_maps_triton.are_few(shape.rows, weight.shape[1]):
        return False
    return (
        torch.cuda.get_device_capability(weight.device) >= (9, 0)
        and _alike(plan)
        and all(each % 16 == 0 for each in _pointers(plan))
        and room_of(plan, shape.rows, blocks_of(plan)) is not None
    )


class SingleStep(FusedStep):
    """The same step over the same buffers, but that one program reads all there is to read."""

    def __init__(self, plan: Plan, recording: Recording) -> None:
        super().__init__(plan, recording)
        device = self.x.device
        self.blocks = blocks_of(plan)
        self.pointers = torch.tensor(self._pointers(), dtype=torch.int64, device=device)  # [layers + 1, COLUMNS]
        # What blocks tell each other; a word says of which layer it is, of all since these zeros.
        self.words = torch.zeros(self._words(), dtype=torch.int32, device=device)
        self.clock = torch.zeros(1, dtype=torch.int32, device=device)
        self.program = self.program_of()
        self.arguments = (
            self.pointers, plan.tokens, plan.tokens if plan.places is None else plan.places, recording.tokens,
            recording.positions, recording.first, self.words, self.clock, self.logits,
            self.turns[plan.layers[0].attention][2], self.clock, float(plan.norm.epsilon), float(plan.scale),
            float(plan.norm.scale), float(self.scale), self.capacity,
        )  # fmt: skip

    @property
    def single_shares(self) -> int:
        return max(1, min(self.blocks // (self.rows * self.heads), MOST_SHARES))

    def _words(self) -> int:
        """As `step.cu` counts them: the stream, twice; queries, keys and values; shares of heads; hidden units."""
        parts = self.heads * self.single_shares * (self.head_width + 4)
        sizes = (self.width, self.width, self.qkv.shape[1], parts, self.inner.shape[1])
        return sum(_rounded(self.rows * size, LINE) for size in sizes)

    def _read(self) -> None:
        self.program.launch((self.blocks, 1), self.arguments, at_once=True)

    def program_of(self, timed: bool = False) -> cuda.Program:
        """`timed`: blocks note when they do what, into [blocks, phases, 8] in place of the second clock."""
        plan, first = self.plan, self.plan.layers[0]
        kept = KEPT_OF_SHORT if self.capacity <= SHORT else KEPT
        room = room_of(plan, self.rows, self.blocks)
        assert room is not None
        numbers = {
            "ROWS": self.rows, "WIDTH": self.width, "HEADS": self.heads, "GROUPS": self.groups,
            "HEAD_WIDTH": self.head_width, "HIDDEN": self.inner.shape[1], "VOCABULARY": self.vocabulary,
            "LAYERS": len(plan.layers), "BLOCKS": self.blocks, "WIDTH_PIECES": room.pieces[0],
            "ATTENDED_PIECES": room.pieces[1], "HIDDEN_PIECES": room.pieces[2], "STAGE": room.stage,
            "STAGES": room.stages, "KEPT": min(kept, room.stage // (4 * self.head_width)),
            "SHARES": self.single_shares, "LEAST": LEAST, "WARPS": WARPS, "FILLERS": FILLERS, "UNDER_WAY": UNDER_WAY,
            "RMS": int(plan.norm.rms), "GATED": int(first.gated), "ACTIVATION": ACTIVATIONS.index(first.activation),
            "ROTARY": int(first.attention.rotary is not None), "PLACED": int(plan.places is not None),
            "GAP_FROM": first.project.gap[0], "GAP_TO": first.project.gap[1], "TIMED": int(timed),
        }  # fmt: skip
        return cuda.program(FILE, "step", tuple(numbers.items()), 32 * (WARPS + FILLERS), room.bytes)

    def _pointers(self) -> list[list[int]]:
        rows = []
        for layer in self.plan.layers:
            keys, values = self.recording.cache.room(layer.attention)
            cos, sin, _ = self.turns[layer.attention]
            rows.append([*_pointers_of(layer), *(each.data_ptr() for each in (keys, values, cos, sin))])
        last = [*_of_norm(self.plan.norm), *_of_map(self.plan.head)]
        return [*rows, [*last, *[0] * (COLUMNS - len(last))]]


def blocks_of(plan: Plan) -> int:
    """One for each processor, but that each has a part of the stream."""
    return min(multiprocessors(plan.tokens.device), plan.tokens.shape[1])


def _alike(plan: Plan) -> bool:
    """Whether what the program is told once holds for all layers."""
    norms = [plan.norm, *(norm for layer in plan.layers for norm in (layer.norm, layer.next_norm))]
    gaps = {layer.project.gap for layer in plan.layers}
    plain = all(each.gap == (0, 0) for layer in plan.layers for each in (layer.out, layer.inner, layer.outer))
    rotary = [layer.attention.rotary for layer in plan.layers]
    turned = all(each is None for each in rotary) or all(
        each is not None and rotary[0] is not None and each.pairing is rotary[0].pairing
        and each.rates.shape == rotary[0].rates.shape
        for each in rotary
    )  # fmt: skip
    same = len({(norm.epsilon, norm.rms) for norm in norms}) == 1 and all(norm.scale == 1.0 for norm in norms[1:])
    return same and plain and turned and len(gaps) == 1 and plan.head.gap == (0, 0)


def _pointers(plan: Plan) -> list[int]:
    given = [plan.tokens.data_ptr(), 0 if plan.places is None else plan.places.data_ptr()]
    given += [each for layer in plan.layers for each in _pointers_of(layer)]
    return [*given, *_of_norm(plan.norm), *_of_map(plan.head)]


def _pointers_of(layer: Layer) -> list[int]:
    of_attention = [*_of_norm(layer.norm), *_of_map(layer.project), *_of_map(layer.out)]
    return [*of_attention, *_of_norm(layer.next_norm), *_of_map(layer.inner), *_of_map(layer.outer)]


def _of_norm(norm: Norm) -> list[int]:
    return [norm.gain.data_ptr(), _or_none(norm.shift)]


def _of_map(linear: Map) -> list[int]:
    return [linear.weight.data_ptr(), _or_none(linear.bias)]


def _or_none(given: Tensor | None) -> int:
    return 0 if given is None else given.data_ptr()


def _each(outputs: int, blocks: int) -> int:
    return -(-outputs // blocks)


def _rounded(number: int, step: int = 128) -> int:
    return -(-number // step) * step
