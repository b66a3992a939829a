"""Programs in CUDA C, for what Triton cannot say: warps of one program with different work, and copies that run ahead.

torch's builds for GPUs bring the compiler (NVRTC) and its bindings along. A file `*.cu` is compiled on its first use,
in a second or two, and kept for the next time in the folder of `QKV_CACHE`, `XDG_CACHE_HOME` or `~/.cache`. It may
include the files `*.cuh` that lie beside it or beside this one.
"""

from __future__ import annotations

import ctypes
import hashlib
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.parts import program_cache

TYPES = {torch.bfloat16: 9, torch.float16: 6, torch.float32: 7, torch.float8_e4m3fn: 0}  # as the driver counts them
SWIZZLED = 3  # by 128 bytes
READ_AHEAD = 3  # 256 bytes at once into L2


@cache
def has_bindings() -> bool:
    """Whether programs in CUDA C can be compiled here, by what torch has brought."""
    return find_spec("cuda") is not None and find_spec("cuda.bindings") is not None


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: what a launch asks for, by its number, and three numbers at most."""

    _fields_ = [("kind", ctypes.c_uint32), ("", ctypes.c_uint32), ("value", ctypes.c_uint32 * 16)]


class _Configuration(ctypes.Structure):
    """CUlaunchConfig"""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint32),
    ]


def current_stream(device: int) -> int:
    """Its address; `torch.cuda.current_stream` takes longer, because it makes an object of it."""
    found: int = torch._C._cuda_getCurrentRawStream(device)
    return found


AT_ONCE, CLUSTER, EARLY = 2, 4, 6  # attributes of a launch, as the driver counts them


class Launch:
    """A program with all that it is given, for the current stream: to make one takes longer than to run it again."""

    def __init__(
        self,
        program: Program,
        grid: tuple[int, int],
        arguments: tuple[Argument, ...],
        asked: dict[int, tuple[int, ...]],
    ) -> None:
        self.held = [_held(each) for each in arguments]
        self.places = (ctypes.c_void_p * len(self.held))(*(place for _, place in self.held))
        attributes = [_Attribute(kind, 0, (ctypes.c_uint32 * 16)(*value)) for kind, value in asked.items()]
        self.attributes = (_Attribute * len(attributes))(*attributes)
        block, count = (program.threads, 1, 1), len(attributes)
        stream = current_stream(torch.cuda.current_device())
        self.configuration = _Configuration((*grid, 1), block, program.shared, stream, self.attributes, count)
        self.given = ctypes.byref(self.configuration), ctypes.c_void_p(int(program.function)), self.places, None
        self.start = _driver().cuLaunchKernelEx

    def run(self) -> None:
        status = self.start(*self.given)
        if status != 0:
            raise QkvError(f"CUDA cannot run a program: error {status}.")


class Program:
    """A function of a compiled file, with its threads in a block and bytes of shared memory."""

    def __init__(self, file: Path, name: str, numbers: tuple[tuple[str, int | str], ...], threads: int, shared: int):
        from cuda.bindings import driver

        self.threads, self.shared = threads, shared
        self._clusters: dict[int, int] = {}  # that can run at once, by how many blocks they have
        self.function = _done(driver.cuModuleGetFunction(_module(file, numbers, _architecture()), name.encode()))
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _done(driver.cuFuncSetAttribute(self.function, limit, shared))

    def prepared(
        self,
        grid: tuple[int, int],
        arguments: tuple[Argument, ...],
        *,
        cluster: int = 1,
        early: bool = False,
        at_once: bool = False,
    ) -> Launch:
        """`cluster`: blocks that share their memory; `early`: it may begin before the last program ends.

        Then it waits by itself (griddepcontrol.wait) before it reads or writes anything.
        `at_once`: all blocks run at the same time, or none does, so that they may wait for each other.
        """
        asked: dict[int, tuple[int, ...]] = {CLUSTER: (cluster, 1, 1)} if cluster > 1 else {}
        if early:
            asked[EARLY] = (1,)
        if at_once:
            asked[AT_ONCE] = (1,)
        return Launch(self, grid, arguments, asked)

    def clusters_at_once(self, cluster: int) -> int:
        """How many clusters of so many blocks can run: their blocks are neighbours, so processors may be left over."""
        if cluster not in self._clusters:
            asked, found = self.prepared((cluster, 1), (), cluster=cluster), ctypes.c_int()
            status = _driver().cuOccupancyMaxActiveClusters(ctypes.byref(found), asked.given[1], asked.given[0])
            if status != 0 or found.value < 1:
                raise QkvError(f"CUDA cannot run a cluster of {cluster} blocks: error {status}.")
            self._clusters[cluster] = found.value
        return self._clusters[cluster]

    def launch(self, grid: tuple[int, int], arguments: tuple[Argument, ...], **how: Any) -> None:
        """Once, on the current stream."""
        self.prepared(grid, arguments, **how).run()


@cache
def program(
    file: Path, name: str, numbers: tuple[tuple[str, int | str], ...], threads: int, shared: int = 0
) -> Program:
    """`numbers` stand in the file as if by #define."""
    return Program(file, name, numbers, threads, shared)


class Tiles:
    """What the copy engine knows of a tensor: 128 bytes at a multiple of 128, as the driver asks; bindings do not."""

    def __init__(
        self, address: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...]
    ):
        self.room = ctypes.create_string_buffer(256)
        self.place = (ctypes.addressof(self.room) + 127) // 128 * 128
        rank, size = len(shape), dtype.itemsize
        row = -(-shape[-1] * size // 16) * 16
        steps = [step * size if many > 1 else row for step, many in zip(strides[:-1], shape[:-1], strict=True)]
        status = _driver().cuTensorMapEncodeTiled(
            ctypes.c_void_p(self.place),
            TYPES[dtype],
            rank,
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * rank)(*reversed(shape)),
            (ctypes.c_uint64 * (rank - 1))(*reversed(steps)),
            (ctypes.c_uint32 * rank)(*reversed(box)),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            0,
            SWIZZLED if box[-1] * size == 128 else 0,
            READ_AHEAD,
            0,
        )
        if status != 0:
            raise QkvError(f"CUDA has no tiles of {box} for a tensor of {shape}: error {status}.")


Argument = Tensor | int | float | Tiles


def tiles_of(x: Tensor, rows: int, columns: int) -> Tiles:
    """For the copy engine: tiles of x [.. m n], swizzled where a row of one has 128 bytes; outside are zeros.

    Rows of x begin at multiples of 16 bytes. A tile is named by its first column, then its first row, then which of
    the matrices it is of, the innermost first.
    """
    box = (*[1] * (x.dim() - 2), rows, columns)
    return _tiles(x.data_ptr(), x.dtype, tuple(x.shape), x.stride(), box)


_tiles = lru_cache(maxsize=4096)(Tiles)  # they come again: weights stay, and torch gives the same memory anew


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _held(argument: Argument) -> tuple[Any, int]:
    """Something that keeps an argument's value, and where it is."""
    if isinstance(argument, Tiles):
        return argument, argument.place
    value: Any
    if isinstance(argument, Tensor):
        value = ctypes.c_void_p(argument.data_ptr())
    elif isinstance(argument, int):
        if not -(2**31) <= argument < 2**31:  # ctypes would cut off the rest
            raise QkvError(f"A program for a GPU counts in 32 bits, and {argument:,} is more than that.")
        value = ctypes.c_int32(argument)
    else:
        value = ctypes.c_float(argument)
    return value, ctypes.addressof(value)


def _architecture() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"  # a: with what only this generation has


@cache
def _module(file: Path, numbers: tuple[tuple[str, int | str], ...], architecture: str) -> Any:
    from cuda.bindings import driver

    return _done(driver.cuModuleLoadData(compiled(file, numbers, architecture)))


def compiled(file: Path, numbers: tuple[tuple[str, int | str], ...], architecture: str) -> bytes:
    """The machine code of a file, from the last time if nothing has changed of it, its includes and the compiler."""
    from cuda.bindings import nvrtc

    source = file.read_bytes()
    headers = _headers_of(file)
    options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
    options += [f"-D{name}={number}".encode() for name, number in numbers]
    version = _done(nvrtc.nvrtcVersion())
    known = [source, *headers, *headers.values(), *options, repr(version).encode()]
    named = hashlib.sha256(b"\0".join(known)).hexdigest()
    name = f"{file.stem}-{named}"
    if (kept := program_cache.kept(name, ".cubin")) is not None:
        return kept.read_bytes()
    made = _done(nvrtc.nvrtcCreateProgram(source, file.name.encode(), len(headers), [*headers.values()], [*headers]))
    (status,) = nvrtc.nvrtcCompileProgram(made, len(options), options)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * _done(nvrtc.nvrtcGetProgramLogSize(made))
        _done(nvrtc.nvrtcGetProgramLog(made, log))
        raise QkvError(f"{file.name} cannot be compiled for {architecture}: {log.decode(errors='replace').strip()}")
    code = b" " * _done(nvrtc.nvrtcGetCUBINSize(made))
    _done(nvrtc.nvrtcGetCUBIN(made, code))
    program_cache.keep(name, ".cubin", code)
    return code


def _headers_of(file: Path) -> dict[bytes, bytes]:
    """What a file may include, by name: what all programs share, and what lies beside it."""
    folders = Path(__file__).parent, file.parent
    return {each.name.encode(): each.read_bytes() for folder in folders for each in sorted(folder.glob("*.cuh"))}


def _done(answer: tuple[Any, ...]) -> Any:
    """What a function of the bindings has found; it says first whether it went well."""
    status, *found = answer
    if int(status) != 0:
        raise QkvError(f"CUDA says {status.name}.")
    return found[0] if len(found) == 1 else tuple(found)
