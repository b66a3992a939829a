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
    cluster: int = 1  # blocks that share the columns of W which they read, or, where they norm, the rows of x
    group: int = 8  # tiles of a cluster below each other that come one after the other
    norms: bool = False  # whole rows, which lie in the blocks of a cluster
    attends: bool = False  # a tile is one head of one row: its queries, keys and values

    @property
    def shared(self) -> int:
        """Bytes of shared memory, as the program lays it out."""
        of_stages = self.stages * (self.rows + self.columns) * INPUTS * 2
        of_rooms = WARPS * self.rooms * ROOM[0] * ROOM[1] * 2
        of_norm = self.columns * 8 + 2 * 2 * self.rows * self.cluster * 8  # gain and shift; two numbers of each row
        beside = of_norm if self.norms else 0 if self.attends else WARPS * self.columns * 4
        of_barriers = (2 * self.stages + 2 + WARPS * self.rooms + 1 + 2 * WARPS * self.norms) * 8
        return of_stages + of_rooms + beside + of_barriers + 1024  # to begin at a multiple of it


class Norm(NamedTuple):
    """Of rows: (x − mean) / √(variance + epsilon) · gain + shift; `rms`: no mean is taken off."""

    gain: Tensor  # [n]
    shift: Tensor | None  # [n]
    epsilon: float
    rms: bool


WIDE, TALL = Tiling(128, 192, stages=4, rooms=2, cluster=2), Tiling(192, 128, stages=4, rooms=2, cluster=2)
READING = Tiling(128, 192, stages=4, rooms=3)  # z comes into the rooms from which y is stored
NORMING = Tiling(128, 192, stages=4, rooms=2, norms=True), Tiling(128, 128, stages=5, rooms=2, norms=True)
ATTENDING = Tiling(128, 192, stages=4, rooms=4, cluster=2, attends=True)  # keys and values come into the rooms
SLOTS, HEAD = 128, 64  # of a row, and numbers of a query, where a product attends
MOST = 4096  # launches at hand
MOST_NORMED = 768  # outputs; with more, clusters are so large that some processors have none
ALIGNED = 16  # bytes, as the copy engine asks


def runs_on(device: torch.device) -> bool:
    return device.type == "cuda" and has_copy_engine(device) and cuda.has_bindings()


runs_on._dynamo_marked_constant = True  # type: ignore[attr-defined]  # for compilers: a fact, not to be traced


def storing(outputs: int) -> Tiling:
    """Tiles of which the fewest columns lie past the outputs."""
    return min(WIDE, TALL, key=lambda tiling: -outputs % tiling.columns)


@cache
def norming(outputs: int) -> Tiling | None:
    """Tiles of a cluster that has just these outputs; None: there are none."""
    for tiling in NORMING:
        made = tiling._replace(cluster=outputs // tiling.columns)
        whole = outputs % tiling.columns == 0 and made.cluster > 1 and outputs <= MOST_NORMED
        if whole and tiling.rows % (8 * made.cluster) == 0:  # each gets a part of x's rows
            return made
    return None


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


def add_normed_map(x: Tensor, weight: Tensor, bias: Tensor | None, stream: Tensor, norm: Norm) -> None:
    """stream = norm(stream + x Wᵀ + b) of n outputs for which there is a `norming`, [m k] [n k] [n] [m n]

    The sum is normed as it is; two passes would round it before.
    """
    tiling = norming(stream.shape[1])
    assert tiling is not None
    _run(tiling, x, weight, stream, stream, bias, stream, reads=1, norm=norm, early=True)


def attended_map(x: Tensor, weight: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """What queries read in rows of `SLOTS` slots: softmax(scale · q kᵀ) v of each head, [m k] [n k] [n] → [m n/3]

    Queries, keys and values of all heads, each `HEAD` wide, are the thirds of x Wᵀ + b. The scale is above 0.
    """
    y = x.new_empty(x.shape[0], weight.shape[0] // 3)
    _run(ATTENDING, x, weight, y, y, bias, y, scale=scale, early=True)
    return y


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
    *, activation: str = "", across: int = 0, keeps: int = 0, reads: int = 0, norm: Norm | None = None,
    scale: float | None = None, early: bool = False,
) -> None:  # fmt: skip
    """What reads or writes nothing but tensors that passes without gradients make may begin `early`."""
    bias = None if bias is None else _taken(bias, x)
    given = (x, weight, y, z, sums) if bias is None else (x, weight, y, z, sums, bias)
    places = tuple([(each.data_ptr(), each.shape, each.stride()[0]) for each in given])
    normed: tuple[object, ...] = ()
    if norm is not None:
        norm = Norm(_taken(norm.gain, x), None if norm.shift is None else _taken(norm.shift, x), *norm[2:])
        shifted = norm.shift is not None and (norm.shift.data_ptr(), norm.shift.dtype)
        normed = norm.gain.data_ptr(), norm.gain.dtype, shifted, norm.epsilon, norm.rms
    stream = cuda.current_stream(x.device.index)
    kind = bias is None or bias.dtype
    key = (tiling, stream, x.dtype, kind, activation, across, keeps, reads, normed, scale, early, places)
    launch = _launches.get(key)
    if launch is None:
        if len(_launches) >= MOST:
            _launches.clear()
        launch = _prepared(tiling, x, weight, y, z, bias, sums, activation, across, keeps, reads, norm, scale, early)
        _launches[key] = launch
    launch.run()


def _taken(vector: Tensor, x: Tensor) -> Tensor:
    """A vector as the program takes it: as narrow as x or float32, from a multiple of 16 bytes on."""
    vector = (vector if vector.dtype == x.dtype else vector.float()).contiguous()
    return vector.clone() if vector.data_ptr() % ALIGNED else vector


def _prepared(
    tiling: Tiling, x: Tensor, weight: Tensor, y: Tensor, z: Tensor, bias: Tensor | None, sums: Tensor,
    activation: str, across: int, keeps: int, reads: int, norm: Norm | None,
    scale: float | None, early: bool,
) -> cuda.Launch:  # fmt: skip
    rows, columns, cluster = tiling.rows, tiling.columns, tiling.cluster
    vectors = (bias, None, None) if norm is None else (bias, norm.gain, norm.shift)
    kinds = tuple([0 if each is None else 1 if each.dtype == x.dtype else 2 for each in vectors])
    rms = norm is not None and norm.rms
    program = _program(tiling, x.dtype == torch.float16, kinds, rms, activation, across, keeps, reads)
    of_x, of_weight = (rows // cluster, columns) if tiling.norms else (rows, columns // cluster)
    if tiling.attends:
        of_weight = HEAD // cluster
    outputs = weight.shape[across]
    box = (INPUTS // cluster, ROOM[1]) if across else (of_weight, INPUTS)
    arguments: tuple[cuda.Argument, ...] = (
        cuda.tiles_of(x, of_x, INPUTS),
        cuda.tiles_of(weight, *box),
        cuda.tiles_of(y, *ROOM),
        cuda.tiles_of(z, *ROOM),
        x if bias is None else bias,
        sums,
        z,
        len(y),
        outputs,
        x.shape[1],
        z.stride(0),
    )
    if scale is not None:
        arguments += (scale,)
    if norm is not None:
        arguments += norm.gain, norm.gain if norm.shift is None else norm.shift, float(norm.epsilon)
        tiles, at_once = -(-len(y) // rows), program.clusters_at_once(cluster)
    else:
        tiles = -(-len(y) // (rows * cluster)) * -(-outputs // columns)
        at_once = multiprocessors(y.device) // cluster
    return program.prepared((cluster * min(tiles, at_once), 1), arguments, cluster=cluster, early=early)


@cache
def _program(
    tiling: Tiling, half: bool, kinds: tuple[int, ...], rms: bool, activation: str, across: int, keeps: int, reads: int
) -> cuda.Program:
    """`kinds` of bias, gain and shift: 0 none, 1 narrow, 2 float32."""
    bias, gain, shift = kinds
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
        "GAIN": gain,
        "SHIFT": shift,
        "RMS": int(rms),
        "ATTENDS": int(tiling.attends),
    }
    return cuda.program(FILE, "product", tuple(numbers.items()), THREADS, tiling.shared)
