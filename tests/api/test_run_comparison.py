"""Runs side by side: what differs, under short names, with their curves and a page."""

import json
import random
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qkv.api.run_comparison import as_json, default_figures, differences, find_figure, names, plot, results, write_page
from qkv.api.run_summaries import order, summary
from qkv.errors import QkvError
from qkv.train.evaluation import ValidationLoss
from qkv.train.history import read_histories
from qkv.train.objectives import SequenceToSequenceLoss
from tests.api.test_run_summaries import RUNS, history
from tests.train.tiny import make_batch, train_tiny


def test_only_what_differs_is_told() -> None:
    assert differences([RUNS[0], RUNS[0]]) == {}
    assert differences(RUNS) == {"family": ["gpt2", "gpt2", "bert"], "train.seed": [2, 0, 1]}
    other = replace(RUNS[0], described={**RUNS[0].described, "data": "fedcba"})
    assert differences([RUNS[0], other]) == {"data": ["abcdef", "fedcba"]}


def test_names_are_as_short_as_they_differ() -> None:
    assert names(RUNS) == ["a", "b", "c"]
    assert names([history("x/one"), history("y/one")]) == ["x/one", "y/one"]
    assert names([history("one")]) == ["one"]
    assert names([history("one"), history("one/two")]) == ["one", "two"]


def test_results_are_readable() -> None:
    told = results(summary(RUNS[2]))
    assert (told["best loss"], told["of device"], told["memory"], told["time"]) == ("1.5", "25.0%", "1.00G", "1m01s")
    assert told["parameters"] == "-"


def test_figures_are_found_by_short_names() -> None:
    assert find_figure("loss", RUNS) == "train/loss"
    assert find_figure("validation/loss", RUNS) == "validation/loss"
    assert default_figures(RUNS) == ["train/loss", "validation/loss"]
    with pytest.raises(QkvError, match="did you mean train/loss"):
        find_figure("train/los", RUNS)
    drawn = plot(RUNS, "validation/loss")
    assert [curve.name for curve in drawn.curves] == ["a", "c"], "b was never evaluated"
    with pytest.raises(QkvError, match="did you mean seconds"):
        plot(RUNS, "train/loss", "second")


def test_the_page_holds_figures_differences_and_plots(tmp_path: Path) -> None:
    page, *plots = write_page(RUNS, tmp_path)
    text = page.read_text()
    for expected in ("train.seed", "bert", "2.5", "validation/loss", "qkv train lm", "<svg"):
        assert expected in text
    assert {file.name for file in plots} >= {"train-loss-by-steps.png", "validation-loss-by-steps.png"}
    assert all(file.stat().st_size > 1000 for file in plots)


def damaged(value: Any, chance: random.Random) -> Any:
    """The same JSON with one part of it lost or of another kind."""
    if isinstance(value, dict | list) and value and chance.random() < 0.85:
        place = chance.choice(list(value) if isinstance(value, dict) else list(range(len(value))))
        changed: Any = copy(value)
        if isinstance(value, dict) and chance.random() < 0.3:
            del changed[place]
        else:
            changed[place] = damaged(value[place], chance)
        return changed
    return chance.choice([None, 3, "x", [], {}, [1], True, -0.5])


def test_no_damaged_folder_is_more_than_a_sentence(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    validation = ValidationLoss(SequenceToSequenceLoss(smoothing=0.0), [make_batch(77)])
    train_tiny(whole, steps=2, evaluate=validation, evaluate_every=1)
    chance, broken = random.Random(0), 0
    for number in range(300):
        folder = tmp_path / "damaged"
        folder.mkdir(exist_ok=True)
        lines = (whole / "metrics.jsonl").read_text().splitlines()
        described, noted = (json.loads((whole / name).read_text()) for name in ("run.json", "state.json"))
        if number % 3 == 0:
            place = chance.randrange(len(lines))
            lines[place] = json.dumps(damaged(json.loads(lines[place]), chance))
        elif number % 3 == 1:
            described = damaged(described, chance)
        else:
            noted = damaged(noted, chance)
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        (folder / "run.json").write_text(json.dumps(described))
        (folder / "state.json").write_text(json.dumps(noted))
        found, sentences = read_histories([folder])
        assert len(found) + len(sentences) == 1
        broken += len(sentences)
        for run in found:
            results(summary(run))
            as_json([run])
            differences([run, RUNS[0]])
            [plot([run], name) for name in default_figures([run])]
            order([run, RUNS[0]], "when")
    assert 0 < broken < 300
