"""What can be wrong with a text model and with what it is given, through `qkv run`: one sentence, exit code 2."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qkv.api.loading import load
from qkv.errors import QkvError
from qkv.generate.language import Options
from qkv.weights.export import export
from tests.cli.command import Outcome, qkv
from tests.cli.test_faults import refused
from tests.cli.text_models import save_reader, save_writer
from tests.weights.folders import edit_config

KINDS = ("writer", "classifier")
TABLE = {"writer": "transformer.wte.weight", "classifier": "bert.embeddings.word_embeddings.weight"}
BAD_TEXT = b"caf\xe9"
NEVER = {"type": "integer", "minimum": 5, "maximum": 1}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A GPT-2 and a BERT as others publish them."""
    folder = tmp_path_factory.mktemp("models")
    save_writer(folder / "own-writer")
    save_reader(folder / "own-classifier", "classifier")
    return {kind: export(folder / f"own-{kind}", folder / kind) for kind in KINDS}


@pytest.fixture
def copied(published: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    return {kind: Path(shutil.copytree(folder, tmp_path / kind)) for kind, folder in published.items()}


def run(folder: Path, *more: object, stdin: bytes = b"") -> Outcome:
    return qkv("run", folder, *map(str, more), "--device", "cpu", stdin=stdin)


def tensors(change: Callable[[dict[str, torch.Tensor], str], Any]) -> Callable[[Path], None]:
    """An edit of all tensors, given the name of the table of tokens."""

    def edit(folder: Path) -> None:
        file = folder / "model.safetensors"
        found = load_file(file)
        change(found, TABLE[folder.name])
        save_file(found, file)

    return edit


def as_type(dtype: torch.dtype) -> Callable[[Path], None]:
    return tensors(lambda found, table: found.update({table: found[table].to(dtype)}))


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit_config(folder, **changes)


def more_tokens(folder: Path) -> None:
    """A tokenizer that gives an id which the model has no row for."""
    file = folder / "tokenizer.json"
    found = json.loads(file.read_text())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    found["added_tokens"].append({"id": 5000, "content": "<far>", **plain})
    file.write_text(json.dumps(found))


def written(name: str, content: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(content)


# What is wrong, how it comes about, and what is told of it.
FOLDERS: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "a missing tensor": (tensors(lambda found, table: found.pop(table)), ["lack", "{table}"]),
    "an extra tensor": (tensors(lambda found, _: found.update(surplus=torch.zeros(2))), ["no place for", "surplus"]),
    "a row too few": (tensors(lambda found, table: found.update({table: found[table][1:].clone()})), ["{table}"]),
    "an empty tensor": (tensors(lambda found, table: found.update({table: torch.zeros(0)})), ["{table}", "[0]"]),
    "a tensor of integers": (as_type(torch.int32), ["{table}", "torch.int32"]),
    "a tensor of bytes": (as_type(torch.uint8), ["{table}", "torch.uint8"]),
    "a tensor of complex numbers": (as_type(torch.complex64), ["{table}", "torch.complex64"]),
    "tensors that are no numbers": (tensors(lambda found, table: found[table].fill_(torch.nan)), ["NaN", "damaged"]),
    "a larger vocabulary than the tensors": (config(vocab_size=9999), ["{table}", "9999"]),
    "a smaller vocabulary than the tensors": (config(vocab_size=5), ["{table}", "[5, "]),
    "another kind of model": (config(model_type="llama"), ["could change what Llama computes"]),
    "a kind that is no name": (config(model_type=["gpt2"]), ["['gpt2']", "qkv reads"]),
    "a key that nobody knows": (config(twist=2), ["could change", "twist"]),
    "a configuration of something else": (written("config.json", b"[1]"), ["config.json must hold"]),
    "a configuration that is no UTF-8": (written("config.json", BAD_TEXT), ["config.json", "not whole JSON"]),
    "a tokenizer that is no UTF-8": (written("tokenizer.json", BAD_TEXT), ["tokenizer.json", "not text"]),
    "a tokenizer of another model": (more_tokens, ["Mismatched tokenizer", "belongs to another model"]),
    "tensors that are a text": (written("model.safetensors", b"no tensors here"), ["not a whole safetensors file"]),
    "tensors of nothing": (written("model.safetensors", b""), ["not a whole safetensors file"]),
    "a header of 16 exabytes": (written("model.safetensors", b"\xff" * 8 + b"{}"), ["not a whole safetensors file"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_that_is_wrong(case: str, kind: str, copied: dict[str, Path]) -> None:
    change, words = FOLDERS[case]
    change(copied[kind])
    refused(run(copied[kind], "And God said"), *(word.format(table=TABLE[kind]) for word in words))
    with pytest.raises(QkvError):
        load(copied[kind], "cpu").run(["And God said"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_fractions_are_taken_as_what_they_are(dtype: torch.dtype, copied: dict[str, Path]) -> None:
    as_type(dtype)(copied["classifier"])
    assert run(copied["classifier"], "And God said").code == 0


@pytest.mark.parametrize(
    ("told", "words"),
    [(9999, ["9999", "vocabulary has 300"]), (-1, ["-1"]), ("</s>", ["eos_token_id", "number of a token"])],
)
def test_an_end_token_that_is_none(told: object, words: list[str], copied: dict[str, Path]) -> None:
    (copied["writer"] / "generation_config.json").write_text(json.dumps({"eos_token_id": told}))
    refused(run(copied["writer"], "And"), *words)


@pytest.mark.parametrize("ids", [[300], [0, -1], [2**40]])
def test_a_token_id_out_of_range(ids: list[int], published: dict[str, Path]) -> None:
    writer = load(published["writer"], "cpu")
    with pytest.raises(QkvError, match="the vocabulary has 300"):
        writer.run([ids])
    with pytest.raises(QkvError, match="the vocabulary has 300"):
        writer.run(["And"], Options(stop_tokens=tuple(ids)))
    with pytest.raises(QkvError, match="the vocabulary has 300"):
        writer.model(torch.tensor([ids]))
    with pytest.raises(QkvError, match="the vocabulary has"):
        load(published["classifier"], "cpu").model(torch.tensor([ids]))


@pytest.mark.parametrize("kind", KINDS)
def test_text_that_is_no_utf_8(kind: str, published: dict[str, Path], tmp_path: Path) -> None:
    model = published[kind]
    (tmp_path / "lines.txt").write_bytes(b"And\n" + BAD_TEXT + b"\n")
    (tmp_path / "table.csv").write_bytes(b"text\n" + BAD_TEXT + b"\n")
    refused(run(model, BAD_TEXT.decode("utf-8", "surrogateescape")), "no valid text")
    refused(run(model, stdin=BAD_TEXT), "Line 1 of standard input is not valid UTF-8")
    refused(run(model, "--input", tmp_path / "lines.txt"), "Line 2 of", "lines.txt is not valid UTF-8")
    assert run(model, "--input", tmp_path / "table.csv", "--source", "text").code == 2


def test_texts_beside_the_input_that_are_no_utf_8(published: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_bytes(BAD_TEXT)
    refused(run(published["writer"], "And", "--json-schema", tmp_path / "schema.json"), "UTF-8")
    strange = BAD_TEXT.decode("utf-8", "surrogateescape")
    refused(run(published["writer"], "And", "--stop", strange), "valid texts")
    refused(run(published["writer"], "And", "--regex", strange), "regular expression")
    refused(run(published["classifier"], "And", "--second", strange), "no valid text")


def test_an_empty_prompt(published: dict[str, Path], copied: dict[str, Path]) -> None:
    """It is the start token, where there is one."""
    assert run(published["writer"], "", "--max-tokens", "3").code == 0
    for without in ("tokenizer_config.json", "generation_config.json"):
        (copied["writer"] / without).unlink()
    file = copied["writer"] / "tokenizer.json"
    file.write_text(file.read_text().replace('"<s>"', '"<nothing>"'))
    refused(run(copied["writer"], ""), "prompt is empty", "give a prompt")
    refused(run(published["writer"]), "There is no input")
    refused(run(published["classifier"]), "There is no input")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (NEVER, ["minimum (5) is greater than maximum (1)"]),
        (False, ["JSON schema"]),
        ({"enum": []}, ["JSON schema"]),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, ["JSON schema"]),
        ({"type": "object", "properties": {"a": NEVER}, "required": ["a"]}, ["'a'"]),
        ({"$ref": "#/nowhere"}, ["/nowhere"]),
        ({"type": "array", "uniqueItems": True}, ["uniqueItems"]),
        ({"type": "string", "format": "nonsense"}, ["nonsense"]),
    ],
)
def test_a_schema_that_cannot_be_met(schema: object, words: list[str], published: dict[str, Path]) -> None:
    refused(run(published["writer"], "And", "--json-schema", json.dumps(schema)), *words)


@pytest.mark.parametrize("pattern", ["((", "a(?=b)", r"[^\x00-\U0010FFFF]", "(?P<"])
def test_a_pattern_that_cannot_be_met(pattern: str, published: dict[str, Path]) -> None:
    refused(run(published["writer"], "And", "--regex", pattern), "regular expression")
