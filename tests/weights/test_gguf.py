"""GGUF files: what the reference writer wrote is read; a cut, hostile or lying file is refused in a sentence."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkv.errors import QkvError
from qkv.weights.gguf import LARGEST_ALIGNMENT, PLAIN, TENSOR_KINDS, read_gguf

CHECKPOINTS = Path(__file__).resolve().parents[2] / "checkpoints"


def write(path: Path, fill: Any) -> Path:
    writer = GGUFWriter(path, "llama")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def fill_small(writer: GGUFWriter) -> None:
    writer.add_uint32("a.number", 7)
    writer.add_array("a.list", ["eins", "zwei", "drei"])
    writer.add_tensor("one", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("two", np.ones((3, 32), np.float32))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write(tmp_path / "small.gguf", fill_small)


def test_every_kind_of_metadata_is_read(tmp_path: Path) -> None:
    numbers = {
        "uint8": 255, "int8": -128, "uint16": 65535, "int16": -32768, "uint32": 2**32 - 1, "int32": -(2**31),
        "uint64": 2**64 - 1, "int64": -(2**63), "float32": 0.5, "float64": 0.1, "bool": True, "string": "Größe",
    }  # fmt: skip
    lists = {"whole": [1, -2, 3], "floats": [0.5, 1.5], "flags": [True, False], "texts": ["a", "", "▁b"]}

    def fill(writer: GGUFWriter) -> None:
        for kind, value in numbers.items():
            getattr(writer, f"add_{kind}")(kind, value)
        for name, values in lists.items():
            writer.add_array(name, values)

    metadata = read_gguf(write(tmp_path / "file.gguf", fill)).metadata
    assert metadata == {"general.architecture": "llama"} | numbers | lists
    assert [type(flag) for flag in metadata["flags"]] == [bool, bool]


def test_arrays_of_arrays_are_read_and_deeper_ones_refused(tmp_path: Path) -> None:
    def nested(depth: int) -> bytes:
        inner = struct.pack("<IQ", 9, 1) * (depth - 1) + struct.pack("<IQ2i", 5, 2, 3, 4)
        return struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 9) + inner

    file = tmp_path / "nested.gguf"
    file.write_bytes(nested(2))
    assert read_gguf(file).metadata == {"k": [[3, 4]]}
    file.write_bytes(nested(1000))
    with pytest.raises(QkvError, match="nests more than 4 arrays in k"):
        read_gguf(file)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [32, 64])
def test_tensors_come_back_in_shape_and_type(tmp_path: Path, version: int, alignment: int) -> None:
    random = np.random.default_rng(0)
    plain = {
        "F32": random.standard_normal((2, 3, 5)).astype(np.float32),
        "F16": random.standard_normal(7).astype(np.float16),
        "F64": random.standard_normal((1, 2)),
        "I8": np.array([-128, 127], np.int8),
        "I16": np.array([-32768, 5], np.int16),
        "I32": np.array([[-(2**31)]], np.int32),
        "I64": np.array([2**62], np.int64),
    }
    wide = random.standard_normal((4, 64)).astype(np.float32)
    bfloats = quants.quantize(wide, GGMLQuantizationType.BF16)

    def fill(writer: GGUFWriter) -> None:
        writer.add_custom_alignment(alignment)
        for name, array in plain.items():
            writer.add_tensor(name, array)
        writer.add_tensor("BF16", bfloats, raw_dtype=GGMLQuantizationType.BF16)
        for kind in (GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0):
            writer.add_tensor(kind.name, quants.quantize(wide, kind), raw_dtype=kind)

    path = write(tmp_path / "file.gguf", fill)
    content = bytearray(path.read_bytes())
    content[4:8] = struct.pack("<I", version)
    path.write_bytes(content)
    file = read_gguf(path)
    assert file.version == version
    assert list(file.tensors) == [*plain, "BF16", "Q4_1", "Q8_0"]
    for name, array in plain.items():
        assert torch.equal(file.tensors[name], torch.from_numpy(array)), name
        assert file.tensors[name].dtype == PLAIN[name][1]
        assert file.notes[name].shape == array.shape
    assert torch.equal(file.tensors["BF16"], torch.from_numpy(wide).bfloat16())
    for kind in (GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0):
        theirs = quants.dequantize(quants.quantize(wide, kind), kind)
        np.testing.assert_allclose(file.tensors[kind.name].numpy(), theirs, rtol=1e-6, atol=1e-6)


def test_a_tensor_can_be_changed_without_changing_the_file(small: Path) -> None:
    file = read_gguf(small)
    file.tensors["one"].zero_()
    assert file.tensors["one"].sum() == 15


def test_the_numbers_of_the_kinds_are_those_of_the_reference() -> None:
    theirs = {kind.value: kind.name for kind in GGMLQuantizationType}
    assert {number: theirs[number] for number in TENSOR_KINDS} == TENSOR_KINDS


def test_a_file_cut_anywhere_is_refused_in_a_sentence(small: Path) -> None:
    content = small.read_bytes()
    last = 32 + 3 * 32 * 4 + 4  # where the last tensor ends; only padding may be missing
    for length in range(0, len(content) - last, 3):
        small.write_bytes(content[:length])
        with pytest.raises(QkvError, match=r"small\.gguf"):
            read_gguf(small)


@settings(
    max_examples=300, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(place=st.integers(0, 400), value=st.binary(min_size=1, max_size=8))
def test_changed_bytes_give_values_or_a_sentence(small: Path, place: int, value: bytes) -> None:
    content = bytearray(write(small, fill_small).read_bytes())
    content[place : place + len(value)] = value
    small.write_bytes(content)
    complaint = ""
    try:
        file = read_gguf(small)
        sum(tensor.numel() for tensor in file.tensors.values())
    except QkvError as error:
        complaint = str(error)
    assert "\n" not in complaint
    assert len(complaint) < 500 + len(str(small))


def header(tensors: int = 0, entries: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return struct.pack("<4sIQQ", magic, version, tensors, entries)


def entry(name: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


def note(name: bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return struct.pack("<Q", len(name)) + name + dimensions + struct.pack("<IQ", kind, offset)


ZEROS = bytes(4096)
REFUSED = {
    "another magic": (header(magic=b"GGML"), "not a GGUF file"),
    "version 1": (header(version=1), "of version 1"),
    "big end first": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "byte order"),
    "many tensors": (header(tensors=2**60), "announces 1,152,921,504,606,846,976 tensors"),
    "many entries": (header(entries=2**64 - 1), "metadata entries, which would not fit"),
    "a long name": (header(entries=1) + struct.pack("<Q", 2**63), "would not fit"),
    "a name that cannot be printed": (header(entries=1) + entry(b"\x1b[2J", 0, b"1"), "cannot be printed"),
    "a name over a page long": (header(entries=1) + entry(b"a" * 5000, 0, b"1"), "too long"),
    "a name that is no text": (header(entries=1) + entry(b"\xff\xfe", 0, b"1"), "not UTF-8"),
    "a long text": (header(entries=1) + entry(b"k", 8, struct.pack("<Q", 2**40)), "would not fit"),
    "an unknown value": (header(entries=1) + entry(b"k", 13, ZEROS), "k a value of the unknown kind 13"),
    "an unknown element": (header(entries=1) + entry(b"k", 9, struct.pack("<IQ", 99, 1)), "unknown kind 99"),
    "a long array": (header(entries=1) + entry(b"k", 9, struct.pack("<IQ", 0, 2**60) + ZEROS), "values of k"),
    "long texts": (header(entries=1) + entry(b"k", 9, struct.pack("<IQ", 8, 2**61) + ZEROS), "values of k"),
    "a long text in a list": (
        header(entries=1) + entry(b"k", 9, struct.pack("<IQQ", 8, 2, 2**62) + ZEROS),
        "a text of k would end after",
    ),
    "a list that ends within a text": (
        header(entries=1) + entry(b"k", 9, struct.pack("<IQQ8sI", 8, 2, 8, b"abcdefgh", 1)),
        "ends within the texts of k",
    ),
    "a list of what is no text": (
        header(entries=1) + entry(b"k", 9, struct.pack("<IQQ1s", 8, 1, 1, b"\xff")),
        "a text of k with bytes that are not UTF-8",
    ),
    "twice the same entry": (header(entries=2) + 2 * entry(b"k", 0, b"1"), "entry k twice"),
    "no alignment": (header(entries=1) + entry(b"general.alignment", 4, bytes(4)), "a power of two"),
    "a crooked alignment": (header(entries=1) + entry(b"general.alignment", 4, struct.pack("<I", 24)), "power of two"),
    "a wide alignment": (
        header(entries=1) + entry(b"general.alignment", 4, struct.pack("<I", 2 * LARGEST_ALIGNMENT)),
        "a power of two",
    ),
    "an alignment in words": (
        header(entries=1) + entry(b"general.alignment", 8, struct.pack("<Q2s", 2, b"32")),
        "a power of two",
    ),
    "five dimensions": (header(tensors=1) + note(b"t", (1,) * 5) + ZEROS, "t 5 dimensions"),
    "many dimensions": (header(tensors=1) + struct.pack("<Q1sI", 1, b"t", 2**32 - 1) + ZEROS, "4294967295 dimensions"),
    "a shape that overflows": (header(tensors=1) + note(b"t", (2**32, 2**32)) + ZEROS, "after the file's"),
    "a shape that wraps to little": (header(tensors=1) + note(b"t", (2**63, 2, 1, 1)) + ZEROS, "after the file's"),
    "a shape without values": (header(tensors=1) + note(b"t", (0, 2**62)) + ZEROS, "holds nothing"),
    "a far place": (header(tensors=1) + note(b"t", (4,), offset=2**64 - 32) + ZEROS, "after the file's"),
    "a crooked place": (header(tensors=1) + note(b"t", (4,), offset=4) + ZEROS, "not aligned to 32"),
    "half a block": (header(tensors=1) + note(b"t", (48, 2), kind=2) + ZEROS, "Q4_0, which comes in blocks of 32"),
    "a shared place": (header(tensors=2) + note(b"t", (64,)) + note(b"u", (4,), offset=32) + ZEROS, "u on bytes"),
    "twice the same tensor": (header(tensors=2) + note(b"t", (4,)) + note(b"t", (4,), offset=32) + ZEROS, "t twice"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_hostile_file_claims_is_refused(case: str, tmp_path: Path) -> None:
    content, message = REFUSED[case]
    file = tmp_path / "hostile.gguf"
    file.write_bytes(content)
    with pytest.raises(QkvError, match=message):
        read_gguf(file)


@pytest.mark.parametrize(("kind", "named"), [(16, "IQ2_XXS"), (35, "TQ2_0"), (77, "kind 77")])
def test_a_kind_that_cannot_be_read_is_named_when_its_tensor_is_wanted(kind: int, named: str, tmp_path: Path) -> None:
    path = tmp_path / "file.gguf"
    path.write_bytes(header(tensors=2) + note(b"t", (2**50,), kind, 32) + note(b"u", (4,)) + ZEROS)
    file = read_gguf(path)
    assert file.tensors["u"].tolist() == [0, 0, 0, 0]
    with pytest.raises(QkvError, match=f"stored as {named}, which is not read here"):
        file.tensors["t"]


def test_a_folder_and_a_missing_and_an_empty_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name, message in [(".", "no file"), ("absent", "no file"), ("empty", "is empty")]:
        with pytest.raises(QkvError, match=message):
            read_gguf(tmp_path / name)


@pytest.mark.slow
def test_a_published_file_is_read_as_the_reference_reads_it() -> None:
    from gguf import GGUFReader

    path = CHECKPOINTS / "smollm2-135m-instruct" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        pytest.skip("needs `make checkpoints`")
    file, theirs = read_gguf(path), GGUFReader(path)
    assert set(file.metadata) == {key for key in theirs.fields if not key.startswith("GGUF.")}
    assert all(theirs.fields[key].contents() == value for key, value in file.metadata.items())
    assert list(file.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        floats = quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_allclose(file.tensors[tensor.name].numpy(), floats, rtol=1e-5, atol=1e-6)
