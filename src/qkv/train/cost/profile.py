"""What a device reaches, as it was measured: matrix products, attentions, reading and writing, and its host."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from qkv.errors import QkvError
from qkv.files import is_file, own_folder, read_json, write_whole
from qkv.train.cost.grid import Grid, between
from qkv.train.cost.operators import AttentionShape, Product, Work

FORMAT = "qkv-device-1"
# What makers promise, in operations a second; for other devices the fastest product that was measured counts.
PROMISED = {
    "H200": {"float8": 1979e12, "bfloat16": 989e12, "float32": 67e12},
    "H100": {"float8": 1979e12, "bfloat16": 989e12, "float32": 67e12},
    "A100": {"bfloat16": 312e12, "float32": 19.5e12},
}


@dataclass(frozen=True)
class DeviceProfile:
    """Measured by `qkv cost --measure`; times in seconds."""

    name: str  # "NVIDIA H200"
    kind: str  # "cuda" or "cpu"
    torch: str
    memory: int  # bytes
    libraries: int  # bytes that matrix products hold for themselves from their first on
    launch: float  # of the smallest kernel
    host: Mapping[str, float]  # by precision and phase, for each operator; what some kernels take besides, by name
    attention_order: tuple[str, ...]
    products: tuple[tuple[Any, ...], ...]  # Product's fields, seconds
    attentions: tuple[tuple[Any, ...], ...]  # AttentionShape's fields, seconds, bytes taken for each number of q
    traffic: Mapping[str, tuple[tuple[float, float], ...]]  # kind -> (bytes, seconds), rising
    generation: int | None = None  # of a GPU, as CUDA counts them: 9 is Hopper; None: a file from before it was told
    sustained: Mapping[str, float] = field(default_factory=dict)  # by precision: of products in steps that go on for
    # seconds, how many times longer they take
    format: str = field(default=FORMAT, repr=False)

    def peak(self, precision: str) -> float:
        """Operations a second that the device has at most."""
        for name, promised in PROMISED.items():
            if name in self.name:
                return promised[precision]
        rates = [2 * b * m * n * k / t for dtype, _, b, m, n, k, _, t in self.products if dtype == precision]
        return max(rates, default=0.0)

    def seconds(self, work: Work) -> float:
        """How long the device is busy with one operator."""
        if work.kind == "nothing":
            return 0.0
        if work.kind == "product":
            product = Product(*work.shape)
            multiplied = self._product(product, work.flops) * self.sustained.get(product.dtype, 1.0)
            return max(multiplied, self._moved("copy", work.bytes), self.launch)
        if work.kind == "attention":
            return max(self._attention(AttentionShape(*work.shape), work.flops), self.launch)
        return max(self._moved(work.kind, work.bytes), self.launch)

    def workspace(self, work: Work) -> int:
        """Bytes that a kernel takes for itself while it runs."""
        if work.kind != "attention" or not work.workspace:
            return 0
        shape = AttentionShape(*work.shape)
        found = [row[-1] for row in self.attentions if row[:3] == (shape.kernel, shape.dtype, True)]
        return int(work.workspace * max(found, default=0.0))

    def _moved(self, kind: str, size: int) -> float:
        points = self.traffic.get(kind) or self.traffic["pointwise"]
        return between(points, max(1, size))

    def _product(self, shape: Product, flops: int) -> float:
        grid = self._product_grids.get((shape.dtype, shape.layout, shape.batch > 1, shape.aligned))
        grid = grid or self._product_grids.get((shape.dtype, shape.layout, shape.batch > 1, True))
        grid = (
            grid or self._product_grids.get((shape.dtype, "nn", False, True)) or self._product_grids[self._any_product]
        )
        return flops / grid.at(shape.m, shape.n, shape.k)

    def _attention(self, shape: AttentionShape, flops: int) -> float:
        whole = -(-shape.queries // 64) * 64 * -(-shape.keys // 32) * 32  # tiles, which programs for short rows cut
        cut = 1.0 if shape.kernel == "short" else whole / (shape.queries * shape.keys)
        likely = itertools.product((shape.masked, False), (shape.dropout, False), (shape.causal, not shape.causal))
        for masked, dropout, causal in likely:
            grid = self._attention_grids.get((shape.kernel, shape.dtype, shape.back, causal, masked, dropout))
            if grid is not None:
                return flops * cut / grid.at(shape.keys, shape.width)
        of_tiles = self._attention_grids.get(("tiles", "bfloat16", shape.back, True, False, False))
        if of_tiles is not None and shape.dtype == "bfloat16":
            return flops / of_tiles.at(shape.keys, shape.width)
        side = min(shape.queries, shape.keys)  # what two products of its shape would take
        return self._product(Product(shape.dtype, "nn", 2, shape.queries, shape.width, side, True), flops)

    @cached_property
    def _product_grids(self) -> dict[tuple[Any, ...], Grid]:
        found: dict[tuple[Any, ...], dict[tuple[float, ...], float]] = {}
        for dtype, layout, batch, m, n, k, aligned, seconds in self.products:
            values = found.setdefault((dtype, layout, batch > 1, aligned), {})
            values[float(m), float(n), float(k)] = 2 * batch * m * n * k / seconds
        return {key: Grid(values) for key, values in found.items()}

    @cached_property
    def _any_product(self) -> tuple[Any, ...]:
        return next(iter(self._product_grids))

    @cached_property
    def _attention_grids(self) -> dict[tuple[Any, ...], Grid]:
        found: dict[tuple[Any, ...], dict[tuple[float, ...], float]] = {}
        for kernel, dtype, back, causal, masked, dropout, heads, queries, keys, width, seconds, _ in self.attentions:
            pairs = heads * queries * keys // (2 if causal and queries == keys else 1)
            flops = 4 * pairs * width * (2.5 if back else 1)
            values = found.setdefault((kernel, dtype, back, causal, masked, dropout), {})
            values[float(keys), float(width)] = flops / seconds
        return {key: Grid(values) for key, values in found.items()}

    def save(self, file: Path) -> None:
        """As JSON, a line for each thing that was measured."""
        lines = [f"{json.dumps(name)}: {_in_lines(value)}" for name, value in asdict(self).items()]
        write_whole(file, ("{\n" + ",\n".join(lines) + "\n}\n").encode())

    @staticmethod
    def load(file: Path) -> DeviceProfile:
        values = read_json(file)
        known = {each.name for each in fields(DeviceProfile)}
        later = {"generation", "sustained"}  # what files from before do not tell
        told = isinstance(values, dict) and values.get("format") == FORMAT and {*values} | later == known
        if not told or not isinstance(values.get("sustained", {}), dict):
            raise QkvError(f"The file {file} is not a measured device: make it anew with qkv cost --measure.")
        tuples = {name: tuple(map(tuple, values[name])) for name in ("products", "attentions")}
        traffic = {kind: tuple(map(tuple, points)) for kind, points in values["traffic"].items()}
        order = tuple(values["attention_order"])
        return DeviceProfile(**{**values, **tuples, "traffic": traffic, "attention_order": order})


def _in_lines(value: Any) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return "[\n" + ",\n".join(json.dumps(row) for row in value) + "\n]"
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in value.items()) + "\n}"
    return json.dumps(value)


def shipped() -> dict[str, Path]:
    """The devices whose profiles come with qkv, by their short names."""
    folder = Path(str(files("qkv.train.cost"))) / "devices"
    return {file.stem: file for file in sorted(folder.glob("*.json"))}


def own_profiles() -> Path:
    """Where profiles of a person's own machines are kept."""
    return own_folder("devices")


def device_name(place: torch.device) -> str:
    """As its maker calls it."""
    if place.type == "cuda":
        return torch.cuda.get_device_name(place)
    import platform

    return f"{platform.machine()} with {torch.get_num_threads()} threads"


def short_name(name: str) -> str:
    """A name that a person can type and a file can have: NVIDIA H200 → h200."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("nvidia", "")).strip("-")


def find_profile(device: str) -> DeviceProfile | None:
    """The profile of a device by its short name, or of `cpu` or `cuda` as this machine has it; None: not measured."""
    if device in ("cpu", "cuda") or device.startswith("cuda:"):
        place = torch.device(device)
        if place.type == "cuda" and not torch.cuda.is_available():
            return None
        device = short_name(device_name(place))
    own = own_profiles() / f"{device}.json"
    for file in (own, shipped().get(device)):
        if file is not None and is_file(file):
            return DeviceProfile.load(file)
    return None


def known_devices() -> list[str]:
    own = own_profiles()
    return sorted({*shipped(), *(file.stem for file in own.glob("*.json"))})
