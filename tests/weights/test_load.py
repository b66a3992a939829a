"""Model folders: what is saved comes back the same, and nothing that does not fit is taken."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qkv.errors import QkvError
from qkv.weights.load import load_model
from qkv.weights.save import save_model, tensors_of
from tests.models.small import TRANSLATORS, small_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(small_model("transformer"), tmp_path)
    return tmp_path


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["sizes"] |= changes
    file.write_text(json.dumps(config))


@pytest.mark.parametrize("family", TRANSLATORS)
def test_every_family_comes_back_the_same(family: str, tmp_path: Path) -> None:
    model = small_model(family)
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.family == family
    assert loaded.sizes == model.sizes
    assert not loaded.training
    saved, own = load_file(tmp_path / "model.safetensors"), tensors_of(loaded)
    assert saved.keys() == own.keys()
    assert all(torch.equal(saved[name], own[name]) for name in own)


def test_a_shared_matrix_is_saved_once_and_stays_shared(folder: Path) -> None:
    names = [name for name in load_file(folder / "model.safetensors") if "tokens.weight" in name]
    loaded = load_model(folder)
    assert names == ["source.tokens.weight"]
    assert loaded.source.tokens.weight is loaded.target.tokens.weight


@pytest.mark.parametrize("layers", [10**8, 10**5])
def test_a_configuration_that_asks_for_more_layers_than_there_are_is_refused_at_once(folder: Path, layers: int) -> None:
    edit(folder, encoder_layers=layers)
    with pytest.raises(QkvError, match="do not belong together"):
        load_model(folder)


def test_a_configuration_that_asks_for_a_wider_model_takes_no_memory(folder: Path) -> None:
    edit(folder, hidden=10**8)
    with pytest.raises(QkvError, match="far larger model than"):
        load_model(folder)


def test_a_configuration_of_numbers_that_no_machine_counts_is_refused(folder: Path) -> None:
    edit(folder, width=10**12)
    with pytest.raises(QkvError, match="at most 100,000,000"):
        load_model(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("encoder.blocks.0.attention.norm.weight"), "lacks the tensor"),
        (lambda tensors: tensors.update(surplus=torch.zeros(3)), "holds the tensor surplus"),
        (lambda tensors: tensors.update({"decoder.blocks.0.cross.norm.bias": torch.zeros(99)}), "with shape"),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder: Path, change: Any, message: str) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    with pytest.raises(QkvError, match=message):
        load_model(folder)


def test_a_cut_file_is_named(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(QkvError, match=r"model\.safetensors is not a whole safetensors file"):
        load_model(folder)


@pytest.mark.parametrize("change", [{"heads": 4}, {"heads": 1}, {"dropout": 0.25}])
def test_an_edit_that_fits_every_tensor_is_noticed(folder: Path, change: dict[str, Any]) -> None:
    edit(folder, **change)
    with pytest.raises(QkvError, match=r"config\.json was changed after model\.safetensors was saved"):
        load_model(folder)


def test_a_configuration_may_be_laid_out_in_another_way(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(dict(reversed(config.items())), indent=7))
    assert load_model(folder).family == "transformer"


def test_a_folder_from_before_the_checksum_loads(folder: Path) -> None:
    save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors")
    assert load_model(folder).family == "transformer"


def test_a_folder_without_a_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match=r"holds no model: it has no config\.json"):
        load_model(tmp_path)


def test_an_old_folder_that_does_not_say_what_it_holds_is_sent_to_be_converted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(QkvError, match=r"qkv convert .* --model-type"):
        load_model(tmp_path)
