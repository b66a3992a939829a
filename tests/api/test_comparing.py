"""Whole comparisons on a little text: what is left, what goes on, what is refused before anything trains."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qkv.api import comparing
from qkv.api.choices import NewTokenizer
from qkv.api.comparing import AGAIN, compare
from qkv.api.comparison import Comparison
from qkv.api.training import read_result
from qkv.api.variants import Setup, Variant
from qkv.errors import QkvError
from qkv.train.interrupts import Interrupted
from qkv.train.reporter import Reporter
from qkv.train.settings import TrainSettings
from tests.api.corpus import DOCUMENTS, TINY

COMMON = Setup(
    sizes={**TINY, "layers": 1, "dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0},
    batch_rows=4,
    warmup=1,
)
DENSE, WINDOW = Variant("dense"), Variant("window:8", {"attention": "window:8"})
STEPS = TrainSettings(steps=6, evaluations=3, keep=1, log_every=2, device="cpu")


@pytest.fixture(autouse=True)
def no_drawing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take longer than all else; one test draws them."""
    if "page" not in request.node.name:
        monkeypatch.setattr(comparing, "write_comparison", Comparison.save)


def quiet() -> Reporter:
    return Reporter(Console(quiet=True), to_go_on=AGAIN)


def compared(folder: Path, *variants: Variant, **changes: Any) -> Comparison:
    how: dict[str, Any] = {"common": COMMON, "settings": STEPS, "length": 32, "valid": DOCUMENTS[:2]}
    how |= {"tokenizer": NewTokenizer("bytes"), "reporter": quiet, **changes}
    return compare(DOCUMENTS, folder, variants, **how)


def sessions(folder: Path) -> int:
    return len(json.loads((folder / "run.json").read_text())["sessions"])


def test_a_comparison_leaves_runs_a_table_a_page_and_plots(tmp_path: Path) -> None:
    found = compared(tmp_path, DENSE, WINDOW, seeds=2, speed_lengths=(16, 64))
    assert [outcome.name for outcome in found.outcomes] == ["dense", "window:8"]
    for outcome in found.outcomes:
        for seed, run in enumerate(outcome.runs):
            result = read_result(tmp_path / outcome.name.replace(":", "-") / str(seed))
            assert (run.seed, run.step, run.flops) == (seed, 6, result.flops)
            assert run.bits_per_byte == result.figures["bits_per_byte"]
            assert [moment.step for moment in run.moments] == [2, 4, 6]
            bits = sum(part.bits_per_byte * part.tokens for part in run.contexts) / sum(
                part.tokens for part in run.contexts
            )
            assert bits == pytest.approx(run.bits_per_byte, rel=1e-4)
            assert run.contexts[-1].most == 32
        assert [speed.length for speed in outcome.speeds] == [16, 64]
        assert all(speed.tokens_per_second for speed in outcome.speeds)
    assert found.outcomes[0].runs[0] != found.outcomes[0].runs[1]
    assert found.outcomes[0].runs[0].moments != found.outcomes[1].runs[0].moments
    names = {path.name for path in tmp_path.iterdir()}
    pictures = {f"{name}.png" for name in ("time", "operations", "steps", "memory", "context", "speed")}
    assert names >= {"compare.json", "table.md", "page.html", *pictures}
    assert Comparison.load(tmp_path) == found
    page = (tmp_path / "page.html").read_text()
    assert "Behind:" in page
    assert "window:8" in page


@pytest.mark.slow
def test_given_again_finished_runs_are_kept_and_variants_and_seeds_are_added(tmp_path: Path) -> None:
    first = compared(tmp_path, DENSE)
    more = compared(tmp_path, DENSE, WINDOW, seeds=2)
    assert more.outcomes[0].runs[0] == first.outcomes[0].runs[0]
    assert [len(outcome.runs) for outcome in more.outcomes] == [2, 2]
    assert sessions(tmp_path / "dense" / "0") == 1


@pytest.mark.slow
def test_a_stopped_comparison_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = compared(tmp_path / "whole", DENSE, WINDOW)
    train = comparing.train_language_model

    def stopped(*given: Any, **named: Any) -> Any:
        """The second variant is stopped after its first checkpoint."""
        if named["attention"] is not None:
            train(*given, **{**named, "settings": TrainSettings(**{**vars(named["settings"]), "steps": 2})})
            for line in (folder := Path(given[1])).joinpath("metrics.jsonl").read_text().splitlines():
                assert json.loads(line)["step"] <= 2
            kept = [line for line in (folder / "metrics.jsonl").read_text().splitlines() if '"final"' not in line]
            (folder / "metrics.jsonl").write_text("\n".join(kept) + "\n")
            raise Interrupted("stopped", 2)  # type: ignore[arg-type]
        return train(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(comparing, "train_language_model", stopped)
        with pytest.raises(Interrupted):
            compared(tmp_path / "parts", DENSE, WINDOW)
    assert not (tmp_path / "parts" / "compare.json").exists()
    parts = compared(tmp_path / "parts", DENSE, WINDOW)
    assert sessions(tmp_path / "parts" / "dense" / "0") == 1
    assert sessions(tmp_path / "parts" / "window-8" / "0") == 2
    bits = [[run.bits_per_byte for outcome in each.outcomes for run in outcome.runs] for each in (whole, parts)]
    assert bits[0][0] == bits[1][0]
    assert parts.outcomes[1].runs[0].step == 6


def test_a_trained_run_that_was_not_measured_is_measured_only(tmp_path: Path) -> None:
    first = compared(tmp_path, DENSE)
    (tmp_path / "dense" / "0" / "measured.json").unlink()
    assert compared(tmp_path, DENSE).outcomes[0].runs[0].contexts == first.outcomes[0].runs[0].contexts
    assert sessions(tmp_path / "dense" / "0") == 1


def test_a_variant_that_cannot_be_trained_is_refused_before_any_trains(tmp_path: Path) -> None:
    bad = Variant("lin", {"attention": "linformer:4"})
    with pytest.raises(QkvError, match="The variant lin cannot be trained: The attention linformer:4"):
        compared(tmp_path, DENSE, bad)
    assert not (tmp_path / "dense").exists()
    with pytest.raises(QkvError, match="The variant short cannot be trained: Rows of 32 tokens are longer than the 16"):
        compared(tmp_path, DENSE, Variant("short", {"sizes": {"positions": 16}}))
    with pytest.raises(QkvError, match=r"The variant odd cannot be trained: .*precision"):
        compared(tmp_path, Variant("odd", {"precision": "int4"}))


def test_runs_that_were_made_otherwise_are_not_mixed_in(tmp_path: Path) -> None:
    compared(tmp_path, DENSE)
    with pytest.raises(QkvError, match=r"dense was made otherwise \(settings.steps was 6, now 7\)"):
        compared(tmp_path, DENSE, settings=TrainSettings(**{**vars(STEPS), "steps": 7}))
    with pytest.raises(QkvError, match=r"setup.learning_rate was 0.001, now 0.1"):
        compared(tmp_path, Variant("dense", {"learning_rate": 0.1}))
    with pytest.raises(QkvError, match="data was"):
        compared(tmp_path, DENSE, valid=DOCUMENTS[:1])
    again = compared(tmp_path, Variant("dense", {"learning_rate": 0.1}), overwrite=True)
    assert again.outcomes[0].setup["learning_rate"] == 0.1
    assert sessions(tmp_path / "dense" / "0") == 1


def test_budgets_of_time_and_of_operations(tmp_path: Path) -> None:
    timed = TrainSettings(minutes=0.2 / 60, evaluations=2, log_every=2, device="cpu")
    found = compared(tmp_path / "time", DENSE, settings=timed)
    assert found.outcomes[0].runs[0].seconds >= 0.2
    assert "minutes" in str(found.about["budget"])
    counted = TrainSettings(flops=2e7, evaluations=2, log_every=2, device="cpu")
    run = compared(tmp_path / "operations", DENSE, settings=counted).outcomes[0].runs[0]
    assert run.flops >= 2e7 > run.flops * (run.step - 1) / run.step


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"seeds": 0}, "seeds of at least 1"),
        ({"length": 0}, "length of at least 1"),
        ({"valid": None, "hold_out": 0.0}, "held-out text"),
    ],
)
def test_what_cannot_be_compared_is_told(tmp_path: Path, wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(QkvError, match=told):
        compared(tmp_path, DENSE, **wrong)


def test_a_folder_that_holds_no_comparison(tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_text('{"format": "other"}')
    with pytest.raises(QkvError, match="does not hold a comparison"):
        Comparison.load(tmp_path)
    (tmp_path / "compare.json").write_text('{"format": "qkv-compare-1", "about": {}, "outcomes": [{}]}')
    with pytest.raises(QkvError, match="whole comparison"):
        Comparison.load(tmp_path)


@pytest.mark.gpu
def test_memory_is_that_of_steps_on_a_gpu(tmp_path: Path) -> None:
    settings = TrainSettings(**{**vars(STEPS), "device": "cuda"})
    found = compared(tmp_path, DENSE, WINDOW, settings=settings, common=replace(COMMON, precision="bfloat16"))
    for outcome in found.outcomes:
        run = outcome.runs[0]
        assert run.peak_memory is not None
        # Weights, their gradients and two moments are there at least, and a tiny model needs little more.
        assert 16 * run.parameters < run.peak_memory < 10**9
