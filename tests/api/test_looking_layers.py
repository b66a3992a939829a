"""The page of a run's layers: what was recorded, what is measured, and what it says where there is nothing."""

from pathlib import Path

import pytest
import torch

from qkv.api.choices import NewTokenizer
from qkv.api.language import train_language_model
from qkv.api.looking_layers import look_at_layers, spread
from qkv.errors import QkvError
from qkv.generate.text import TextToText
from qkv.look.axes import figure
from qkv.look.difficulty import RandomNoise, output_change
from qkv.train.run_folder import RunFolder
from qkv.train.settings import TrainSettings
from tests.api.tiny import train_tiny

STEPS = {"steps": 4, "log_every": 2, "device": "cpu"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "deep"
    train_tiny(folder, family="transformer-deepnorm", settings=TrainSettings(**STEPS, gradient_norms=True))
    return folder


def test_a_page_shows_the_recorded_figures_and_the_change(run: Path, tmp_path: Path) -> None:
    files = look_at_layers(run, ["cat"], out=tmp_path / "shown", device="cpu")
    assert [file.name for file in files] == [
        "page.html",
        "gradient-norms-encoder.png",
        "gradient-norms-decoder.png",
        "relative-updates-encoder.png",
        "relative-updates-decoder.png",
        "output-change.png",
    ]
    page = files[0].read_text(encoding="utf-8")
    records = [each for each in RunFolder(run, save_model=print, resume=True).records() if each["kind"] == "layers"]
    for number in (records[0]["gradient_norms"]["decoder"][0], records[-1]["relative_updates"]["encoder"][0]):
        assert f"<td>{figure(number)}</td>" in page
    model = TextToText.load(run)
    source = torch.tensor([[*model.source_tokenizer.encode(["cat"])[0], model.source_tokenizer.end]])
    (answer,) = model.run(["cat"], beams=1)
    target = [model.target_tokenizer.start, *model.target_tokenizer.encode([answer.text])[0]]
    change = output_change(model.model, lambda: model.model(source, None, torch.tensor([target])), RandomNoise(0.01))
    assert f"<td>{figure(change['decoder'][-1])}</td>" in page


def test_without_texts_it_stays_in_the_run(run: Path) -> None:
    files = look_at_layers(run)
    assert {file.parent for file in files} == {run / "layers"}
    assert "output-change.png" not in [file.name for file in files]


def test_a_run_that_recorded_nothing_says_how_to_record(tmp_path: Path) -> None:
    train_tiny(tmp_path, settings=TrainSettings(**STEPS))
    with pytest.raises(QkvError, match="--gradient-norms"):
        look_at_layers(tmp_path)
    files = look_at_layers(tmp_path, ["cat", "dog"], device="cpu")  # which needs no record
    assert [file.name for file in files] == ["page.html", "output-change.png"]
    with pytest.raises(QkvError, match="no training run"):
        look_at_layers(tmp_path / "elsewhere")
    with pytest.raises(QkvError, match="brackets"):
        look_at_layers(tmp_path, "cat")


def test_a_language_model_has_layers_too(tmp_path: Path) -> None:
    train_language_model(
        ["the cat sat", "the dog ran", "a cat ran"],
        tmp_path,
        tokenizer=NewTokenizer("characters"),
        sizes={"width": 8, "hidden": 16, "heads": 2, "layers": 2, "positions": 16},
        length=8,
        hold_out=0.0,
        settings=TrainSettings(**STEPS, gradient_norms=True),
    )
    files = look_at_layers(tmp_path, ["the cat", "a dog ran"], device="cpu")
    assert [file.name for file in files[1:]] == [
        "gradient-norms-stack.png",
        "relative-updates-stack.png",
        "output-change.png",
    ]


def test_steps_are_spread_from_the_first_to_the_last() -> None:
    assert spread(range(3), 6) == [0, 1, 2]
    assert spread(range(101), 6) == [0, 20, 40, 60, 80, 100]
