"""Runs side by side: what differs, under short names, with their curves and a page."""

from dataclasses import replace
from pathlib import Path

import pytest

from qkv.api.run_comparison import default_figures, differences, find_figure, names, plot, results, write_page
from qkv.api.run_summaries import summary
from qkv.errors import QkvError
from tests.api.test_run_summaries import RUNS, history


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
