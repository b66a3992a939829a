"""Files that nobody wrote, through every reader of a model folder and of data: what they say, or one sentence.

The same inputs in every run. `make fuzz` reads a million others.
"""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkv.data.published_tokenizer import read_tokenizer
from qkv.data.table import read_table
from qkv.errors import LONGEST, QkvError
from qkv.files import read_json, read_tensors
from qkv.train.history import read_history
from qkv.weights.load import load_model
from tests.fuzz.folders import Place, Seed, put, seed_of
from tests.fuzz.mutations import change_json
from tests.fuzz.seeds_of_models import published_models, sharded_models
from tests.fuzz.seeds_of_runs import run_folders
from tests.fuzz.seeds_of_texts import tokenizers

SAME_EVERY_TIME = settings(
    derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck), max_examples=150
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
NUMPY = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4", "U8": "u1", "I8": "i1", "BOOL": "?"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("damaged"))


def of_folder(make: Any, factory: pytest.TempPathFactory) -> list[Seed]:
    torch.manual_seed(0)
    return list(make(factory.mktemp("seeds")))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Seed]:
    return of_folder(published_models, tmp_path_factory)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Seed]:
    return of_folder(sharded_models, tmp_path_factory)


@pytest.fixture(scope="module")
def cutters(tmp_path_factory: pytest.TempPathFactory) -> list[Seed]:
    return of_folder(tokenizers, tmp_path_factory)


def refused(error: QkvError) -> None:
    assert 0 < len(str(error)) <= LONGEST


@st.composite
def tensor_headers(draw: st.DrawFn) -> tuple[dict[str, Any], bytes]:
    """Tensors of all kinds whose notes are mostly right: one after the other, or somewhere else."""
    size = draw(st.integers(0, 64))
    header: dict[str, Any] = {}
    place = 0
    for name in draw(st.lists(st.text(max_size=3), max_size=3, unique=True)):
        dtype = draw(st.sampled_from([*NUMPY, "BF16", "F4", "X"]))
        shape = draw(st.lists(st.integers(0, 3) | st.sampled_from([2**31, 2**63, -1]), max_size=3))
        width = np.dtype(NUMPY.get(dtype, "<f4")).itemsize
        end = place + width * int(np.prod([max(0, min(side, 4)) for side in shape], dtype=np.int64))
        offsets = draw(st.just([place, end]) | st.lists(st.integers(-1, 70), min_size=2, max_size=2))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        place = end
    numbers = draw(st.binary(min_size=place, max_size=place)) if draw(st.booleans()) and place < 2**10 else bytes(size)
    return header, numbers


@given(tensor_headers(), st.sampled_from([0, 0, 0, 1, -1, 2**40]))
@settings(SAME_EVERY_TIME, max_examples=200)
def test_tensors_are_the_bytes_that_the_header_says(place: Place, made: tuple[dict[str, Any], bytes], off: int) -> None:
    header, numbers = made
    text = json.dumps(header).encode()
    file = place.root / "some.safetensors"
    put(file, struct.pack("<Q", (len(text) + off) % 2**64) + text + numbers)
    try:
        found = read_tensors(file)
    except QkvError as error:
        refused(error)
        return
    assert found.keys() == header.keys()
    for name, tensor in found.items():
        begin, end = header[name]["data_offsets"]
        assert list(tensor.shape) == header[name]["shape"]
        assert tensor.numel() * tensor.element_size() == end - begin
        if header[name]["dtype"] in NUMPY and header[name]["dtype"] != "BOOL":
            expected = np.frombuffer(numbers[begin:end], NUMPY[header[name]["dtype"]]).reshape(tensor.shape)
            assert tensor.numpy().tobytes() == expected.tobytes()


@given(st.data())
@settings(SAME_EVERY_TIME, max_examples=100)
def test_configurations_of_every_family(place: Place, models: list[Seed], data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(models))
    config = json.loads(seed.files["config.json"])
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=2)):
        config[key] = data.draw(JSON)
    folder = place.folder("models", seed)
    place.damage(folder, seed, {"config.json": json.dumps(config).encode()})
    try:
        load_model(folder)
    except QkvError as error:
        refused(error)


@given(st.data())
@settings(SAME_EVERY_TIME)
def test_indices_name_files_beside_them_and_no_others(place: Place, shards: list[Seed], data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(shards))
    index = json.loads(seed.files["model.safetensors.index.json"])
    name = data.draw(st.sampled_from(sorted(index["weight_map"])))
    elsewhere = ("../x.safetensors", str(place.root / "x.safetensors"), "a/x.safetensors", "", "config.json", "\0", ".")
    index["weight_map"][name] = data.draw(st.sampled_from(elsewhere) | st.text(max_size=5) | JSON)
    folder = place.folder("shards", seed)
    put(place.root / "x.safetensors", next(iter(seed.files.values())))
    place.damage(folder, seed, {"model.safetensors.index.json": json.dumps(index).encode()})
    with pytest.raises(QkvError) as error:
        load_model(folder)
    refused(error.value)


@given(st.data())
@settings(SAME_EVERY_TIME, max_examples=200)
def test_tokenizers_of_every_kind(place: Place, cutters: list[Seed], data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(cutters))
    name = data.draw(st.sampled_from(seed.changed))
    if name.endswith(".json"):
        changed = change_json(seed.files[name], data.draw(st.randoms(use_true_random=False)))
    else:
        start, length = data.draw(st.integers(0, len(seed.files[name]))), data.draw(st.integers(0, 9))
        content = seed.files[name]
        changed = content[:start] + data.draw(st.binary(max_size=9)) + content[start + length :]
    folder = place.folder("tokenizers", seed)
    place.damage(folder, seed, {name: changed})
    try:
        tokenizer = read_tokenizer(folder)
        (ids,) = tokenizer.encode(["The cat, Größe </s>"], special=True)
        tokenizer.decode(ids)
    except QkvError as error:
        refused(error)


@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode), st.sampled_from(["tsv", "csv", "jsonl"]))
@settings(SAME_EVERY_TIME, max_examples=200)
def test_tables_of_any_bytes(place: Place, content: bytes, format: str) -> None:
    file = place.root / f"rows.{format}"
    put(file, content)
    try:
        table = read_table(file)
    except QkvError as error:
        refused(error)
        return
    assert len(table)
    assert all(isinstance(value, str) for row in table.rows for value in row.values())


@given(st.lists(JSON, max_size=3), JSON)
@settings(SAME_EVERY_TIME)
def test_histories_of_any_records(place: Place, runs: list[Seed], records: list[Any], described: Any) -> None:
    (seed,) = runs
    folder = place.folder("runs", seed)
    whole = json.loads(seed.files["run.json"])
    changed = {**whole, **described} if isinstance(described, dict) else whole
    lines = seed.files["metrics.jsonl"] + "".join(json.dumps(record) + "\n" for record in records).encode()
    place.damage(folder, seed, {"metrics.jsonl": lines, "run.json": json.dumps(changed).encode()})
    try:
        read_history(folder).curve("train/loss", "step")
    except QkvError as error:
        refused(error)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Seed]:
    return of_folder(run_folders, tmp_path_factory)


NESTED = ["[" * 5000 + "]" * 5000, '{"a":' * 5000 + "1" + "}" * 5000, "9" * 5000, '{"a": "\\ud800"', "\x00", ""]


@pytest.mark.parametrize("text", NESTED, ids=["lists", "objects", "digits", "cut", "zero", "nothing"])
def test_json_that_is_deep_or_long_or_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "some.json").write_text(text)
    with pytest.raises(QkvError, match="JSON"):
        read_json(tmp_path / "some.json")


def test_seeds_are_the_same_whatever_the_order_of_notes(tmp_path: Path) -> None:
    """Safetensors writes notes in an order of chance; a number must still mean one input."""
    for turn, notes in enumerate(({"a": "1", "b": "2"}, {"b": "2", "a": "1"})):
        folder = tmp_path / str(turn)
        header = json.dumps(
            {"__metadata__": notes, "x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
        ).encode()
        put(folder / "model.safetensors", struct.pack("<Q", len(header)) + header + b"\7")
    assert seed_of(tmp_path / "0", "x").files == seed_of(tmp_path / "1", "x").files
