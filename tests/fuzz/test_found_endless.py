"""Files that never end where a folder should hold one: a pipe that nobody writes to, a device. None is waited for."""

import json
import os
from pathlib import Path

import pytest

from qkv.data.published_tokenizer import read_tokenizer
from qkv.data.token_files import DamagedTokens, open_token_file
from qkv.errors import QkvError
from qkv.train.history import read_history
from qkv.weights.load import load_model
from tests.fuzz.folders import NoFile, Seed, put, written

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has pipes")


@pytest.mark.parametrize("kind", [NoFile("pipe"), NoFile("link", "/dev/zero"), NoFile("folder")], ids=str)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_what_is_no_file_is_not_waited_for(models: dict[str, Seed], tmp_path: Path, kind: NoFile, name: str) -> None:
    folder = written(models["gpt2-language"], tmp_path / "model")
    put(folder / name, kind)
    with pytest.raises(QkvError, match=name):
        load_model(folder)


@pytest.mark.parametrize(
    ("cutter", "name"),
    [("bert", "vocab.txt"), ("gpt2", "merges.txt"), ("t5", "spiece.model"), ("bpe", "tokenizer.json")],
)
def test_a_tokenizer_is_not_waited_for(cutters: dict[str, Seed], tmp_path: Path, cutter: str, name: str) -> None:
    folder = written(cutters[cutter], tmp_path / "tokenizer")
    put(folder / name, NoFile("pipe"))
    with pytest.raises(QkvError):
        read_tokenizer(folder)


@pytest.mark.parametrize("name", ["metrics.jsonl", "train.toml", "state.json"])
def test_a_run_is_not_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"format": "qkv-run-1", "settings": {}, "sessions": []}))
    put(tmp_path / name, NoFile("pipe"))
    with pytest.raises(QkvError, match=name):
        read_history(tmp_path)


def test_tokens_are_not_waited_for(tmp_path: Path) -> None:
    put(tmp_path / "a.safetensors", NoFile("pipe"))
    with pytest.raises(DamagedTokens, match="no file"):
        open_token_file(tmp_path / "a.safetensors", vocabulary=9)


@pytest.mark.parametrize("kind", [NoFile("pipe"), NoFile("folder"), NoFile("nothing")], ids=str)
def test_a_run_without_a_model_has_no_parameters(tmp_path: Path, kind: NoFile) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"format": "qkv-run-1", "settings": {}, "sessions": []}))
    put(tmp_path / "model.safetensors", kind)
    assert read_history(tmp_path).parameters is None
