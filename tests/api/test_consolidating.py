"""A checkpoint of one process or of many ranks becomes an ordinary model."""

import json
from pathlib import Path

import pytest
import torch

from qkv.api.choices import NewTokenizer
from qkv.api.consolidating import consolidate
from qkv.api.language import train_language_model
from qkv.api.loading import load
from qkv.data.plan import RowCount
from qkv.errors import QkvError
from qkv.files import read_tensors
from qkv.train.settings import TrainSettings
from tests.train.parallel.ranks import run_ranks

TEXTS = [f"Verse {number}: and it was so, {number * 37 % 101} of many." for number in range(12)]
SIZES = {"width": 16, "hidden": 24, "heads": 2, "layers": 1}


def trained(folder: str, ema: float | None = None) -> None:
    settings = TrainSettings(steps=4, save_every=2, keep=3, device="cpu", ema=ema)
    train_language_model(
        TEXTS,
        folder,
        hold_out=0,
        tokenizer=NewTokenizer("bytes"),
        sizes=SIZES,
        length=16,
        batching=RowCount(4),
        settings=settings,
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_tensors(folder / "model.safetensors")


@pytest.mark.parametrize("ema", [None, 0.5])
def test_the_last_checkpoint_of_two_ranks_is_what_the_run_left(tmp_path: Path, ema: float | None) -> None:
    folder = tmp_path / "run"
    run_ranks(2, trained, str(folder), ema)
    left = weights(folder)
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()  # as if it had been killed
    said = consolidate(folder)
    assert said == f"{folder} holds the {'moving average' if ema else 'weights'} of step 4."
    found = weights(folder)
    assert found.keys() == left.keys()
    assert all(torch.equal(found[name], left[name]) for name in left)
    assert load(folder, "cpu").model.family == "gpt2"
    consolidate(folder, 2)
    assert not all(torch.equal(weights(folder)[name], left[name]) for name in left)


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(QkvError, match="no run to resume"):
        consolidate(folder)
    trained(str(folder))
    with pytest.raises(QkvError, match="no checkpoint of step 3; there are: 2, 4"):
        consolidate(folder, 3)
    described = json.loads((folder / "run.json").read_text())
    described["settings"]["sizes"]["width"] = 32
    (folder / "run.json").write_text(json.dumps(described))
    with pytest.raises(QkvError, match="but this model has"):
        consolidate(folder)
    described["settings"]["low_rank_updates"] = 3
    (folder / "run.json").write_text(json.dumps(described))
    with pytest.raises(QkvError, match="resume it"):
        consolidate(folder)
