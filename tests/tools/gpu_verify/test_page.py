"""What was verified is kept step by step, and the page says what is stale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools.gpu_verify.__main__ import main
from tools.gpu_verify.page import PAGE, page_of, standing_of
from tools.gpu_verify.parts import BENCHMARKS, TESTS, TRAININGS, parts
from tools.gpu_verify.state import FAILED, NOT_MEASURED, PASSED, STALE, State

PART = next(part for part in parts() if part.name == "train-hidden-words")


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path / "gpu.json")


def test_parts_are_complete() -> None:
    """Every file with a test for a GPU, every script that measures rows."""
    tests = Path(__file__).parents[2]
    files = {file.relative_to(tests.parent).as_posix() for file in tests.rglob("test_*.py")
             if "mark.gpu" in file.read_text(encoding="utf-8") and file.parent.name != "gpu_verify"}  # fmt: skip
    assert {step.name for part in parts() if part.group == TESTS for step in part.steps} == files
    scripts = {file.name for file in (tests.parent / "bench").glob("*_gpu.py") if "\nif __name__" in file.read_text()}
    found = {step.roots[0].name for part in parts() if part.group == BENCHMARKS for step in part.steps}
    assert scripts - found == {"measure_device_gpu.py"}
    assert {part.name for part in parts() if part.group == TRAININGS} >= {"train-endings", "train-vit-base"}
    names = [part.key(step) for part in parts() for step in part.steps]
    assert len(names) == len(set(names))


def test_a_part_goes_on_where_it_was_stopped(state: State) -> None:
    first, second, *others = PART.steps
    assert state.due(PART) == list(PART.steps)
    state.put(PART, first, True, "fine", 1.0, "a GPU")
    state.put(PART, second, False, "not fine", 1.0, "a GPU")
    again = State(state.file)
    assert again.due(PART) == [*others, second]  # another try of what failed comes last
    assert [again.standing(PART, step) for step in PART.steps[:3]] == [PASSED, FAILED, NOT_MEASURED]


def test_what_changed_is_stale_and_what_did_not_is_not(state: State) -> None:
    for step in PART.steps:
        state.put(PART, step, True, "fine", 30.0, "a GPU")
    assert (standing_of(PART, state), state.due(PART)) == (PASSED, [])
    key = PART.key(PART.steps[0])
    state.results[key] = replace(state.results[key], hash="another")
    assert (standing_of(PART, state), state.due(PART)) == (STALE, [PART.steps[0]])


def test_the_page_says_what_is_stale_and_what_was_not_run(state: State) -> None:
    state.put(PART, PART.steps[0], True, "100% of words equal", 42.0, "NVIDIA H200, torch 2.11.0, Triton 3.6.0")
    other = next(part for part in parts() if part.name == "train-vit-base")
    state.put(other, other.steps[0], False, "qkv train images ended with -6", 3.0, "NVIDIA H200")
    page = page_of(state)
    head = page[: page.index("## ")]
    assert f"**Failed** (1 of {len(parts())} parts): train-vit-base." in head
    assert f"**Stale** (1 of {len(parts())} parts): train-hidden-words." in head
    assert "**Not measured**" in head
    assert "| train-hidden-words |" in page
    assert f"| stale | 1 of {len(PART.steps)} | 0.7 | NVIDIA H200, torch 2.11.0, Triton 3.6.0 |" in page
    assert "- bert: passed; 100% of words equal (42 s)" in page
    assert "- not run: albert, distilbert" in page
    assert "- vit-base: failed; qkv train images ended with -6 (3 s)" in page


def test_the_page_of_the_repository_names_every_part() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [part.name for part in parts() if f"| {part.name} |" not in page] == []


def test_a_machine_without_a_gpu_is_told_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["train-language"]) == 2
    assert "There is no GPU here" in capsys.readouterr().err
    assert main(["train-langauge"]) == 2
    assert "train-language" in capsys.readouterr().err
    assert main(["--device", "cpu", "tests-parts"]) == 2
    assert "needs a GPU" in capsys.readouterr().err
