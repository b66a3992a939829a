"""Converting: pickles by a process of their own, hostile ones refused; GGUF; other precisions."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from qkv.errors import QkvError
from qkv.weights import pickles
from qkv.weights.convert import convert
from qkv.weights.load import load_model
from tests.weights.folders import edit_config, write_gpt2


def as_pickle(folder: Path, shards: int = 1, **options) -> Path:
    """The weights of a folder as an old library left them."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    file.unlink()
    if shards == 1:
        torch.save(tensors, folder / "pytorch_model.bin", **options)
        return folder
    places = {}
    for number in range(shards):
        name = f"pytorch_model-{number + 1:05d}-of-{shards:05d}.bin"
        part = dict(list(tensors.items())[number::shards])
        torch.save(part, folder / name, **options)
        places |= dict.fromkeys(part, name)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


@pytest.fixture
def old(tmp_path):
    return write_gpt2(tmp_path / "old")


@pytest.mark.parametrize(("shards", "zipped"), [(1, True), (1, False), (2, True)])
def test_pickles_become_safetensors(old, tmp_path, shards, zipped):
    model = load_model(old)
    as_pickle(old, shards, _use_new_zipfile_serialization=zipped)
    (old / "vocab.json").write_text("{}")
    (old / "LICENSE").write_text("as it is")
    (old / "modeling.py").write_text("raise SystemExit")
    convert(old, tmp_path / "new")
    assert {file.name for file in (tmp_path / "new").iterdir()} == {
        "config.json", "model.safetensors", "vocab.json", "LICENSE"
    }  # fmt: skip
    again = load_model(tmp_path / "new")
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


class Hostile:
    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("how", ["torch", "torch, old", "plain", "plain, new"])
def test_a_hostile_pickle_is_refused_and_not_run(old, tmp_path, how):
    mark = tmp_path / "it ran"
    (old / "model.safetensors").unlink()
    content = {"transformer.wte.weight": torch.zeros(2), "more": Hostile(mark)}
    if how.startswith("plain"):
        (old / "pytorch_model.bin").write_bytes(pickle.dumps(Hostile(mark), protocol=2 if how == "plain" else 5))
    else:
        torch.save(content, old / "pytorch_model.bin", _use_new_zipfile_serialization=how == "torch")
    with pytest.raises(
        QkvError, match=r"pytorch_model\.bin is refused: it (asks for posix\.mkdir|holds more than tensors)"
    ) as refusal:
        convert(old, tmp_path / "new")
    assert "\n" not in str(refusal.value)
    assert not mark.exists()
    assert not (tmp_path / "new").exists()


def test_the_hostile_pickle_would_have_run(tmp_path):
    """The test above can fail: an ordinary loader does what the pickle asks."""
    pickle.loads(pickle.dumps(Hostile(tmp_path / "it ran")))
    assert (tmp_path / "it ran").exists()


def test_a_pickle_that_asks_for_far_more_memory_than_it_has_is_refused(old, tmp_path):
    (old / "model.safetensors").unlink()
    torch.save({"vast": torch.zeros(1).expand(2**20, 2**20)}, old / "pytorch_model.bin")
    with pytest.raises(QkvError, match=r"pytorch_model\.bin is refused: its tensors take far more memory"):
        convert(old, tmp_path / "new")


def test_a_pickle_that_takes_too_long_is_refused(old, tmp_path, monkeypatch):
    as_pickle(old)
    monkeypatch.setattr(pickles, "SECONDS", 0.01)
    with pytest.raises(QkvError, match=r"took more than 0\.01 seconds"):
        convert(old, tmp_path / "new")


@pytest.mark.parametrize(
    ("content", "said"),
    [({"a": 3}, "should hold tensors by their names"), ([torch.zeros(2)], "should hold tensors"), ({}, "should hold")],
)
def test_a_pickle_of_other_things_is_refused(old, tmp_path, content, said):
    (old / "model.safetensors").unlink()
    torch.save(content, old / "pytorch_model.bin")
    with pytest.raises(QkvError, match=said):
        convert(old, tmp_path / "new")


def test_a_cut_pickle_is_refused(old, tmp_path):
    file = as_pickle(old) / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:-500])
    with pytest.raises(QkvError, match="no whole file of weights"):
        convert(old, tmp_path / "new")


def test_an_index_leads_only_to_files_beside_it(old, tmp_path):
    as_pickle(old, 2)
    index = old / "pytorch_model.bin.index.json"
    index.write_text(index.read_text().replace("pytorch_model-00001", "../pytorch_model-00001"))
    with pytest.raises(QkvError, match="names a file beside it"):
        convert(old, tmp_path / "new")


def test_a_missing_piece_is_named(old, tmp_path):
    as_pickle(old, 2)
    (old / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(QkvError, match=r"pytorch_model-00002-of-00002\.bin is missing"):
        convert(old, tmp_path / "new")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_another_precision(old, tmp_path, dtype):
    convert(old, tmp_path / "new", dtype=dtype)
    assert {str(tensor.dtype) for tensor in load_file(tmp_path / "new" / "model.safetensors").values()} == {
        f"torch.{dtype}"
    }
    assert json.loads((tmp_path / "new" / "config.json").read_text())["dtype"] == dtype
    assert load_model(tmp_path / "new").family == "gpt2"


def test_numbers_that_do_not_fit_are_said(old, tmp_path):
    tensors = load_file(old / "model.safetensors")
    tensors["transformer.wte.weight"][0, 0] = 1e6
    (old / "model.safetensors").unlink()
    torch.save(tensors, old / "pytorch_model.bin")
    with pytest.raises(QkvError, match=r"transformer\.wte\.weight has numbers too large for float16"):
        convert(old, tmp_path / "new", dtype="float16")
    assert not (tmp_path / "new").exists()


def test_what_does_not_load_is_not_left(old, tmp_path):
    edit_config(old, n_layer=3)
    with pytest.raises(QkvError, match="lack tensors"):
        convert(as_pickle(old), tmp_path / "new")
    assert [each.name for each in tmp_path.iterdir()] == ["old"]


def test_an_old_config_needs_the_kind_of_model(old, tmp_path):
    edit_config(as_pickle(old), without="model_type")
    with pytest.raises(QkvError, match="--model-type"):
        convert(old, tmp_path / "new")
    convert(old, tmp_path / "new", model_type="gpt2")
    assert load_model(tmp_path / "new").family == "gpt2"
    with pytest.raises(QkvError, match="is a gpt2, not a bert"):
        convert(tmp_path / "new", tmp_path / "newer", model_type="bert")


def test_nothing_is_overwritten_unasked(old, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "notes.txt").write_text("mine")
    with pytest.raises(QkvError, match="is not empty"):
        convert(old, tmp_path / "new")
    convert(old, tmp_path / "new", overwrite=True)
    assert (tmp_path / "new" / "notes.txt").read_text() == "mine"
    with pytest.raises(QkvError, match="is the folder that is read"):
        convert(old, old, overwrite=True)


def test_a_pickle_alone_leads_to_its_folder(old, tmp_path):
    as_pickle(old)
    with pytest.raises(QkvError, match="rewrites the folder that it belongs to"):
        convert(old / "pytorch_model.bin", tmp_path / "new")
