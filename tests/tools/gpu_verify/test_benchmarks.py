"""Rows of benchmarks beside those before: more is better, but for times."""

import json
from pathlib import Path

import pytest

from tools.gpu_verify.benchmarks import beside_the_last, speeds
from tools.gpu_verify.depends import ROOT


def test_speeds_go_up_and_times_go_down() -> None:
    before = [{"work": "a", "qkv": 100, "HF": 50}, {"case": "b", "forward ms": 2.0, "both ms": 4.0}]
    now = [{"work": "a", "qkv": 95, "HF": 10}, {"case": "b", "forward ms": 2.5, "both ms": 4.0}]
    passed, told = beside_the_last(before, now)
    assert not passed
    assert told == "3 figures, 0.95 times the last speed; least 0.80: b forward ms"
    assert beside_the_last(before, before)[0]


def test_what_is_not_ours_or_was_never_measured_does_not_count() -> None:
    assert speeds({"case": "x", "predicted ms": 1.0, "dense ms": "0.1 / 0.2", "HF": 3, "limit": 9}) == {}
    assert speeds({"part": "x", "ours ms": "0.5 / 0.25"}) == {"ours ms 1": 2.0, "ours ms 2": 4.0}
    assert speeds({"work": "x", "qkv": "failed: no time left", "tokens/s": None}) == {}
    assert beside_the_last([], [{"work": "a", "qkv": 1}]) == (True, "1 rows, none of them recorded before")


@pytest.mark.parametrize("file", sorted((ROOT / "bench" / "results").glob("*_gpu.json")), ids=lambda file: file.stem)
def test_recorded_rows_are_told_apart(file: Path) -> None:
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    passed, told = beside_the_last(rows, rows)
    assert passed
    if file.stem != "time_to_quality_gpu":
        assert "1.00 times the last speed; least 1.00" in told
