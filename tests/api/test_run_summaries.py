"""Runs are put in order and chosen by what they are and by what made them."""

import json
from pathlib import Path
from typing import Any

import pytest

from qkv.api.run_summaries import order, select, summary
from qkv.errors import QkvError
from qkv.train.history import RunHistory


def history(name: str, *, seed: int = 0, family: str = "gpt2", best: float | None = 2.0, steps: int = 10) -> RunHistory:
    records: list[dict[str, Any]] = [
        {"kind": "train", "step": steps, "loss": 3.0, "tokens_per_second": 100.0, "seconds": 61.0, "peak_memory": 2**30,
         "flops_utilisation": 0.25, "data_wait_share": 0.01}
    ]  # fmt: skip
    if best is not None:
        records.append({"kind": "evaluation", "step": steps, "figures": {"loss": best}})
    settings = {
        "family": family,
        "sizes": {"width": 16, "layers": 2},
        "train": {"seed": seed, "watch": "loss", "better": "lower"},
        "optimizer": {"groups": [{"weight_decay": 0.1}, {"weight_decay": 0.0}]},
    }
    sessions = [{"started": f"2026-01-0{seed + 1}T00:00:00+00:00", "command": ["qkv", "train", "lm"]}]
    described = {"data": "abcdef", "settings": settings, "sessions": sessions}
    return RunHistory(Path("runs") / name, described, records, None, {})


RUNS = [
    history("a", seed=2, best=2.5),
    history("b", seed=0, best=None),
    history("c", seed=1, family="bert", best=1.5, steps=200),
]


def names(runs: list[RunHistory]) -> str:
    return "".join(run.folder.name for run in runs)


def test_a_summary_holds_what_is_known() -> None:
    told = summary(RUNS[0])
    assert (told.family, told.size, told.steps, told.best, told.last) == ("gpt2", "16×2", 10, 2.5, 2.5)
    assert (told.tokens_per_second, told.flops_utilisation, told.data_wait_share) == (100.0, 0.25, 0.01)
    assert (told.state, told.peak_memory, told.parameters) == ("stopped", 2**30, None)
    assert told.command == "qkv train lm"


def test_runs_are_ordered_by_columns_and_settings_and_unknown_values_come_last() -> None:
    assert names(order(RUNS, "when")) == "bca"
    assert names(order(RUNS, "best")) == "cab"
    assert names(order(RUNS, "best", backwards=True)) == "acb"
    assert names(order(RUNS, "train.seed", backwards=True)) == "acb"
    with pytest.raises(QkvError, match=r"did you mean best\?"):
        order(RUNS, "bset")


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        (["family=gpt2"], "ab"),
        (["family!=GPT2"], "c"),
        (["best<2"], "c"),
        (["best>=1.5", "steps<100"], "a"),
        (["train.seed=0"], "b"),
        (["optimizer.groups.1.weight_decay=0"], "abc"),
        (["steps>1000"], ""),
    ],
)
def test_runs_are_chosen_by_conditions(conditions: list[str], left: str) -> None:
    assert names(select(RUNS, conditions)) == left


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [("family", "should be spelled like"), ("famly=gpt2", "did you mean family"), ("steps>many", "should be a number")],
)
def test_conditions_that_make_no_sense_are_told(condition: str, sentence: str) -> None:
    with pytest.raises(QkvError, match=sentence):
        select(RUNS, [condition])


def test_a_summary_is_json() -> None:
    from qkv.api.run_comparison import as_json

    assert json.loads(json.dumps(as_json(RUNS)))[2]["family"] == "bert"
