"""The maps of a step for some rows, by the program of `step_product.cu`, for Hopper GPUs; see `step_maps_triton`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from qkv.generate.step_maps_triton import EARLY, add_norm
from qkv.parts import cuda
from qkv.parts.product import ACTIVATIONS, ALIGNED
from qkv.parts.product import runs_on as has_program
from qkv.parts.programs import multiprocessors

if TYPE_CHECKING:
    from qkv.generate.fused import Layer, Map, Norm, Plan

FILE = Path(__file__).with_name("step_product.cu")
THREADS = 160  # four warps that multiply, one that orders copies
ROWS = 16, 32, 64  # for which there are programs
INPUTS, OUTPUTS = 64, 64  # of a stage; of a cluster
ROOM = 100 * 1024  # bytes of a block, so that two share a processor: one reads weights while the other still sums up
MOST_TOGETHER = 8  # blocks of a cluster
FEWEST = 6  # stages of inputs that are worth a block


class Tiling(NamedTuple):
    rows: int
    cluster: int
    gated: bool = False  # outputs have a row of weights for their gate too

    @property
    def stage(self) -> int:
        return (self.rows + (2 if self.gated else 1) * OUTPUTS) * INPUTS * 2

    @property
    def stages(self) -> int:
        return ROOM // self.stage

    @property
    def shared(self) -> int:
        """Bytes of shared memory, as the program lays it out."""
        return self.stages * (self.stage + 2 * 8) + 1024  # to begin at a multiple of it


def fits(plan: Plan, x: Tensor) -> bool:
    """Whether the program does the maps of a plan for the rows of a stream x [r d]."""
    if not has_program(x.device) or len(x) > ROWS[-1] or plan.tokens.dtype not in (torch.bfloat16, torch.float16):
        return False
    return all(_can_be_copied(linear.weight) for linear in _maps_of(plan))


def _maps_of(plan: Plan) -> Iterator[Map]:
    yield plan.head
    for layer in plan.layers:
        yield from (layer.project, layer.out, layer.inner, layer.outer)
        if layer.cross is not None:
            yield from (layer.cross.query, layer.cross.out)


def _can_be_copied(weight: Tensor) -> bool:
    """Whether its rows, and those of what it is multiplied with, begin where the copy engine can."""
    return weight.data_ptr() % ALIGNED == 0 and weight.shape[1] * weight.itemsize % ALIGNED == 0


@cache
def tiling_of(rows: int, outputs: int, inputs: int, gated: bool, processors: int) -> Tiling:
    """As many blocks as run at once, two on each processor, that have inputs enough to be worth their while."""
    padded = next(each for each in ROWS if rows <= each)
    tiles, chunks = -(-outputs // OUTPUTS), -(-inputs // INPUTS)
    at_once = 2 * processors // tiles
    return Tiling(padded, max(1, min(at_once, MOST_TOGETHER, chunks // FEWEST)), gated)


class InClusters:
    """Weights of a map are read by clusters of blocks, with whatever comes behind the product in the same program."""

    def __init__(self, plan: Plan, x: Tensor) -> None:
        self.x, self.launched = x, EARLY
        self.rows, self.width = x.shape
        self.h = plan.tokens.new_empty(self.rows, self.width)
        self.launches: dict[tuple[int, ...], cuda.Launch] = {}

    def normed(self, norm: Norm, linear: Map, y: Tensor, layer: Layer | None = None) -> None:
        add_norm(self.x, None, norm, self.h, self.launched)
        self._map(self.h, linear, y, "" if layer is None else layer.activation, layer is not None and layer.gated)

    def added(self, h: Tensor, linear: Map) -> None:
        self._map(h, linear, self.x)

    def _map(self, h: Tensor, linear: Map, y: Tensor, activation: str = "", gated: bool = False) -> None:
        key = cuda.current_stream(h.device.index), linear.weight.data_ptr(), y.data_ptr()
        if key not in self.launches:
            self.launches[key] = prepared(h, linear, y, activation, gated)
        self.launches[key].run()


def prepared(
    h: Tensor, linear: Map, y: Tensor, activation: str = "", gated: bool = False, tiling: Tiling | None = None
) -> cuda.Launch:
    """y = activation(h Wᵀ + b), or y += h Wᵀ + b in float32, on the current stream; [r k] [n k] [n] [r n]"""
    outputs, inputs = y.shape[1], h.shape[1]
    tiling = tiling or tiling_of(len(h), outputs, inputs, gated, multiprocessors(h.device))
    half, adds = h.dtype == torch.float16, y.dtype == torch.float32
    program = _program(tiling, half, linear.bias is not None, activation, adds)
    arguments = (
        cuda.tiles_of(linear.weight, OUTPUTS, INPUTS),
        cuda.tiles_of(h, tiling.rows, INPUTS),
        linear.weight if linear.bias is None else linear.bias,
        y,
        len(h),
        outputs,
        inputs,
        y.stride(0),
        *linear.gap,
    )
    return program.prepared((-(-outputs // OUTPUTS) * tiling.cluster, 1), arguments, cluster=tiling.cluster, early=True)


@cache
def _program(tiling: Tiling, half: bool, biased: bool, activation: str, adds: bool) -> cuda.Program:
    numbers = {
        "ROWS": tiling.rows,
        "STAGES": tiling.stages,
        "CLUSTER": tiling.cluster,
        "HALF": int(half),
        "BIASED": int(biased),
        "ACTIVATION": ACTIVATIONS[activation],
        "GATED": int(tiling.gated),
        "ADDS": int(adds),
    }
    return cuda.program(FILE, "step_product", tuple(numbers.items()), THREADS, tiling.shared)
