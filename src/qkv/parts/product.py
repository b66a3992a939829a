"""Products of matrices with what comes behind them, by the program of `product.cu`, for Hopper GPUs.

Shapes: m rows, k inputs, n outputs; x [m k], W [n k] (or [k n], where it says so). Rows begin at multiples of 16 bytes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.parts import cuda
from qkv.parts.programs import has_copy_engine, multiprocessors

FILE = Path(__file__).with_suffix(".cu")
THREADS = 384  # a warpgroup that orders copies, two that multiply
WARPS = 8  # which multiply
INPUTS = 64  # of a stage
ROOM = 16, 64  # rows and columns that a warp stores at once
ACTIVATIONS = {"": 0, "gelu": 1, "gelu_tanh": 2, "gelu_quick": 3, "silu": 4, "relu": 5}  # as the program counts them


class Tiling(NamedTuple):
    rows: int
    columns: int
    stages: int  # of inputs on their way
    rooms: int  # stores of a warp on their way
    cluster: int = 1  # blocks that share the columns of W which they read
    group: int = 8  # tiles of a cluster below each other that come one after the other

    @property
    def shared(self) -> int:
        """Bytes of shared memory, as the program lays it out."""
        of_stages = self.stages * (self.rows + self.columns) * INPUTS * 2
        of_warps = WARPS * (self.rooms * ROOM[0] * ROOM[1] * 2 + self.columns * 4)
        of_barriers = (2 * self.stages + 2 + WARPS * self.rooms + 1) * 8
        return of_stages + of_warps + of_barriers + 1024  # to begin at a multiple of it


WIDE, TALL = Tiling(128, 192, stages=4, rooms=2, cluster=2), Tiling(192, 128, stages=4, rooms=2, cluster=2)
READING = Tiling(128, 192, stages=4, rooms=3)  # z comes into the rooms from which y is stored
MOST = 4096  # launches at hand
ALIGNED = 16  # bytes, as the copy engine asks


def runs_on(device: torch.device) -> bool:
    return device.type == "cuda" and has_copy_engine(device) and cuda.has_bindings()


runs_on._dynamo_marked_constant = True  # type: ignore[attr-defined]  # for compilers: a fact, not to be traced


def storing(outputs: int) -> Tiling:
    """Tiles of which the fewest columns lie past the outputs."""
    return min(WIDE, TALL, key=lambda tiling: -outputs % tiling.columns)


def activated_map(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, tiling: Tiling | None = None
) -> Tensor:
    """activation(x Wᵀ + b), [m k] [n k] [n] → [m n]; "": as it is."""
    y = x.new_empty(x.shape[0], weight.shape[0])
    _run(tiling or storing(y.shape[1]), x, weight, y, y, bias, y, activation=activation, early=True)
    return y


def map_into(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, tiling: Tiling | None = None) -> None:
    """y = x Wᵀ + b, [m n] [m k] [n k] [n]"""
    _run(tiling or storing(y.shape[1]), x, weight, y, y, bias, y)


def both(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, tiling: Tiling | None = None
) -> tuple[Tensor, Tensor]:
    """z = x Wᵀ + b and activation(z)."""
    z, y = x.new_empty(len(x), len(weight)), x.new_empty(len(x), len(weight))
    _run(tiling or storing(y.shape[1]), x, weight, y, z, bias, y, activation=activation, keeps=1)
    return z, y


def map_times_slope(
    x: Tensor, weight: Tensor, z: Tensor, activation: str, tiling: Tiling = READING
) -> tuple[Tensor, Tensor]:
    """dz = (x W) · activation'(z) and its sum over rows in float32, [m k] [k n] [m n] → [m n] [n]"""
    from qkv.parts.sum_norm_triton import of_programs  # Triton comes with torch's builds for GPUs only

    dz, sums = torch.empty_like(z), z.new_empty(z.shape[1], dtype=torch.float32)
    kept = sums.new_empty(-(-len(z) // tiling.rows), z.shape[1])
    _run(tiling, x, weight, dz, z, None, kept, activation=activation, across=1, reads=2)
    of_programs(kept, sums)
    return dz, sums


def add_map(x: Tensor, weight: Tensor, stream: Tensor, tiling: Tiling | None = None) -> None:
    """stream += x Wᵀ, [m k] [n k] [m n]"""
    _run(tiling or storing(stream.shape[1]), x, weight, stream, stream, None, stream, reads=1, early=True)


def map_across(x: Tensor, weight: Tensor, tiling: Tiling | None = None) -> Tensor:
    """x W, [m k] [k n] → [m n]"""
    y = x.new_empty(len(x), weight.shape[1])
    _run(tiling or storing(y.shape[1]), x, weight, y, y, None, y, across=1)
    return y


def aligned(x: Tensor) -> Tensor:
    """Rows as the copy engine takes them."""
    fits = x.stride(1) == 1 and x.stride(0) * x.itemsize % ALIGNED == 0 and x.data_ptr() % ALIGNED == 0
    return x if fits and x.stride(0) >= x.shape[1] else x.clone(memory_format=torch.contiguous_format)


_launches: dict[tuple[object, ...], cuda.Launch] = {}  # they come again: weights stay, torch gives the same memory anew


def _run(
    tiling: Tiling, x: Tensor, weight: Tensor, y: Tensor, z: Tensor, bias: Tensor | None, sums: Tensor,
    *, activation: str = "", across: int = 0, keeps: int = 0, reads: int = 0, early: bool = False,
) -> None:  # fmt: skip
    """What reads or writes nothing but tensors that passes without gradients make may begin `early`."""
    if bias is not None:
        bias = (bias if bias.dtype == x.dtype else bias.float()).contiguous()
        bias = bias.clone() if bias.data_ptr() % ALIGNED else bias
    given = (x, weight, y, z, sums) if bias is None else (x, weight, y, z, sums, bias)
    places = tuple([(each.data_ptr(), each.shape, each.stride()[0]) for each in given])
    stream = cuda.current_stream(x.device.index)
    key = (tiling, stream, x.dtype, bias is None or bias.dtype, activation, across, keeps, reads, early, places)
    launch = _launches.get(key)
    if launch is None:
        if len(_launches) >= MOST:
            _launches.clear()
        launch = _prepared(tiling, x, weight, y, z, bias, sums, activation, across, keeps, reads, early)
        _launches[key] = launch
    launch.run()


def _prepared(
    tiling: Tiling, x: Tensor, weight: Tensor, y: Tensor, z: Tensor, bias: Tensor | None, sums: Tensor,
    activation: str, across: int, keeps: int, reads: int, early: bool,
) -> cuda.Launch:  # fmt: skip
    rows, columns, _, _, cluster, _ = tiling
    kind = 0 if bias is None else 1 if bias.dtype == x.dtype else 2
    program = _program(tiling, x.dtype == torch.float16, kind, activation, across, keeps, reads)
    box = (INPUTS // cluster, ROOM[1]) if across else (columns // cluster, INPUTS)
    arguments = (
        cuda.tiles_of(x, rows, INPUTS),
        cuda.tiles_of(weight, *box),
        cuda.tiles_of(y, *ROOM),
        cuda.tiles_of(z, *ROOM),
        x if bias is None else bias,
        sums,
        z,
        *y.shape,
        x.shape[1],
        z.stride(0),
    )
    tiles = -(-len(y) // (rows * cluster)) * -(-y.shape[1] // columns)
    blocks = cluster * min(tiles, multiprocessors(y.device) // cluster)
    return program.prepared((blocks, 1), arguments, cluster=cluster, early=early)


@cache
def _program(
    tiling: Tiling, half: bool, bias: int, activation: str, across: int, keeps: int, reads: int
) -> cuda.Program:
    numbers = {
        "BM": tiling.rows,
        "BN": tiling.columns,
        "STAGES": tiling.stages,
        "ROOMS": tiling.rooms,
        "CLUSTER": tiling.cluster,
        "GROUP": tiling.group,
        "HALF": int(half),
        "BIAS": bias,
        "ACTIVATION": ACTIVATIONS[activation],
        "ACROSS": across,
        "KEEPS": keeps,
        "READS": reads,
    }
    return cuda.program(FILE, "product", tuple(numbers.items()), THREADS, tiling.shared)
