"""A small language model learns real text with each optimizer, at the rate that is taken for it by default."""

from pathlib import Path

import pytest
import torch
from rich.console import Console

from qkv.api.choices import NewTokenizer
from qkv.api.cost import cost
from qkv.api.language import train_language_model
from qkv.generate.language import TextWriter
from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.train.find_rate import FindRate, RateFound
from qkv.train.optimizers import OPTIMIZERS, adamw, chosen_optimizer
from qkv.train.reporter import Reporter
from qkv.train.run_folder import RunFolder
from qkv.train.schedules import chosen_schedule
from qkv.train.settings import TrainSettings
from tests.api.corpus import DOCUMENTS


def trained(folder: Path, **more: object) -> TextWriter:
    how = {
        "hold_out": 0.0,
        "tokenizer": NewTokenizer("bpe", 300),
        "sizes": {"width": 64, "hidden": 128, "heads": 2, "layers": 2},
        "length": 64,
        "settings": TrainSettings(steps=60, log_every=10, device="cpu"),
        "schedule": chosen_schedule("wsd", 5),
        "reporter": Reporter(Console(quiet=True)),
    }
    return train_language_model(DOCUMENTS, folder, **{**how, **more})  # type: ignore[arg-type]


def losses(folder: Path) -> list[float]:
    run = RunFolder(folder, save_model=lambda model, where: None, resume=True)
    return [record["loss"] for record in run.records() if record["kind"] == "train"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_language_model_learns(tmp_path: Path, name: str) -> None:
    optimizer = chosen_optimizer(name, suits_adamw=3e-3, weight_decay=0.1, betas=(0.9, 0.95))
    trained(tmp_path / "run", optimizer=optimizer)
    found = losses(tmp_path / "run")
    assert found[0] > 4.5  # among 300 tokens, 5.7 is what knows nothing
    assert found[-1] < (3.0 if name in ("adamw", "adamw8bit", "muon") else 4.2)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_it_keeps_is_told_beforehand(name: str) -> None:
    """From shapes alone, as much as there really is after a step."""
    sizes = {"vocabulary": 100, "positions": 32, "width": 64, "hidden": 128, "heads": 2, "layers": 2}
    model = build("gpt2", GPT2Sizes(**sizes))
    told = cost(model, rows=1, length=16, device="cpu", optimizer=OPTIMIZERS[name].make).memory.optimizer
    optimizer = OPTIMIZERS[name].make(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    kept = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    assert told == pytest.approx(sum(tensor.nbytes for tensor in kept), rel=0.01)


def test_finding_a_rate_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(RateFound) as found:
        trained(tmp_path / "run", optimizer=FindRate(adamw, updates=30))
    assert len(found.value.search.rates) <= 30
    assert list(tmp_path.iterdir()) == []
