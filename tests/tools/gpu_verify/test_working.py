"""How steps are done, with commands that are pretended, and one lesson for real on a CPU."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cli.command import qkv
from tools.gpu_verify import working
from tools.gpu_verify.__main__ import main
from tools.gpu_verify.made import make
from tools.gpu_verify.parts import Part, Step, parts
from tools.gpu_verify.working import TIMED_OUT, Ended, Machine, do

GPU = Machine(["python3"], "cuda", Path("work"), 1)
Told = list[tuple[str, bool, str]]


def part_called(name: str) -> Part:
    return next(part for part in parts() if part.name == name)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """What was asked to run; everything ends well and says the same."""
    commands: list[list[str]] = []

    def run(command: list[str], seconds: float) -> Ended:
        commands.append(list(command))
        return Ended(0, '{"label": "red", "probability": 0.5}\n', "")

    monkeypatch.setattr(working, "ran", run)
    monkeypatch.setattr(working, "write_materials", lambda folder, pictures: None)
    return commands


def done(part: Part, steps: list[Step], machine: Machine = GPU, minutes: float = 9) -> Told:
    told: Told = []
    do(
        part,
        steps,
        machine,
        time.monotonic() + 60 * minutes,
        lambda step, passed, says, _: told.append((step.name, passed, says)),
    )
    return told


def test_a_lesson_is_trained_and_asked_on_both(ran: list[list[str]]) -> None:
    part = part_called("train-vit-base")
    assert done(part, list(part.steps)) == [("vit-base", True, "100% of words equal, numbers 0.0% apart")]
    assert [command[3] for command in ran] == ["train", "run", "run"]


def test_what_comes_after_another_has_that_trained_first(ran: list[list[str]]) -> None:
    part = part_called("train-fine-tuning")
    done(part, list(part.steps[:1]))
    assert [command[3:5] for command in ran][:2] == [["train", "mlm"], ["train", "classify"]]


def test_a_training_that_ends_by_a_signal_has_failed(monkeypatch: pytest.MonkeyPatch, ran: list[list[str]]) -> None:
    said = "a line\nterminate called without an active exception\n"
    monkeypatch.setattr(working, "ran", lambda *_: Ended(-6, "", said))
    part = part_called("train-endings")
    told = done(part, list(part.steps))
    assert len(told) == 20
    assert told[0] == (
        "gpt2-base-01",
        False,
        "qkv train lm ended with -6: terminate called without an active exception",
    )


def test_without_time_nothing_is_begun_or_noted(monkeypatch: pytest.MonkeyPatch, ran: list[list[str]]) -> None:
    part = part_called("train-language")
    assert done(part, list(part.steps), minutes=0.1) == []
    assert ran == []
    monkeypatch.setattr(working, "ran", lambda *_: Ended(TIMED_OUT, "", ""))
    assert done(part, list(part.steps), minutes=1) == []


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (Ended(0, "....s\n12 passed, 1 skipped in 3.21s\n", ""), (True, "12 passed, 1 skipped")),
        (Ended(1, "F\nFAILED test_x - Error: bad\n1 failed, 2 passed in 3s\n", ""), (False, "1 failed, 2 passed")),
        (Ended(0, "ss\n2 skipped in 0.1s\n", ""), (False, "2 skipped")),  # nothing was found out
        (Ended(-6, "..", "terminate called without an active exception\n"), (False, "ended with -6: terminate called")),
    ],
)
def test_a_file_of_tests_is_told_by_its_counts(
    ended: Ended, told: tuple[bool, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    part, asked = part_called("tests-parts"), []
    monkeypatch.setattr(working, "ran", lambda command, seconds: asked.append(command) or ended)
    ((name, passed, says),) = done(part, list(part.steps[:1]))
    assert (name, passed) == (part.steps[0].name, told[0])
    assert says.startswith(told[1])
    assert asked == [["python3", "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", part.steps[0].name]]


def test_what_is_not_done_in_all_the_time_there_is_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    part = part_called("bench-attention")
    monkeypatch.setattr(working, "ran", lambda *_: Ended(TIMED_OUT, "", ""))
    assert done(part, list(part.steps)) == []
    monkeypatch.setattr(working, "ENOUGH", 0.0)
    assert done(part, list(part.steps)) == [("all", False, "not done in 0 minutes")]


def test_a_benchmark_is_given_the_time_there_is(monkeypatch: pytest.MonkeyPatch, ran: list[list[str]]) -> None:
    part = part_called("bench-images")
    told = done(part, list(part.steps[:1]))
    assert ran[0][1:4] == ["bench/images_gpu.py", "--only", part.steps[0].name]
    assert 500 < int(ran[0][5]) < 540
    assert told[0][1]
    assert "1.00 times the last speed" in told[0][2]  # nothing was written meanwhile
    attention = part_called("bench-attention")
    done(attention, list(attention.steps))
    assert ran[-1] == ["python3", "bench/attention_gpu.py"]


def test_a_lesson_runs_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands themselves, in this process."""

    def here(command: list[str], seconds: float) -> Ended:
        own = command[command.index("-m") + 1 :]
        if own[0] != "qkv":
            make(own[1], Path(own[2]))
            return Ended(0, "", "")
        outcome = qkv(*own[1:])
        return Ended(outcome.code, outcome.out, outcome.err)

    monkeypatch.setattr(working, "ran", here)
    steps = ["--step", "gpt2", "--step", "made-picture-states"]
    code = main(["--device", "cpu", "train-language", "train-readers", *steps, "--work", str(tmp_path), "--jobs", "1"])
    out = capsys.readouterr().out
    assert code == 0, out
    assert out.count("passed; 100% of words equal, numbers 0.0% apart") == 2
    assert not (tmp_path / "gpt2-base-01").exists()
