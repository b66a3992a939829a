"""Everyone who watches a run gets its records; one that fails is left out and the run goes on."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from qkv.errors import QkvError, QkvWarning
from qkv.train.evaluation import ValidationLoss
from qkv.train.objectives import SequenceToSequenceLoss
from qkv.train.origin import Origin, started_by
from qkv.train.reporter import Reporter
from qkv.train.watchers import TensorBoard, Tracker, figures_of, watcher_of
from tests.train.tiny import make_batch, train_tiny

VALIDATION = ValidationLoss(SequenceToSequenceLoss(smoothing=0.0), [make_batch(77)])


class Listener:
    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.about: Mapping[str, Any] = {}
        self.records: list[Mapping[str, Any]] = []
        self.ended = 0

    def begin(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.about = about

    def record(self, record: Mapping[str, Any]) -> None:
        if self.fails_at == record["step"]:
            raise OSError("no network")
        self.records.append(record)

    def end(self) -> None:
        self.ended += 1


def reporter(*watchers: Any) -> Reporter:
    return Reporter(Console(quiet=True), watchers=watchers)


def test_a_watcher_gets_every_record_that_the_folder_gets(tmp_path: Path) -> None:
    listener = Listener()
    train_tiny(tmp_path, steps=3, evaluate=VALIDATION, reporter=reporter(listener))
    assert [record["kind"] for record in listener.records] == ["train", "train", "train", "evaluation", "final"]
    assert listener.about["settings"]["train"]["steps"] == 3
    assert listener.ended == 1


def test_a_watcher_that_fails_is_told_of_once_and_the_run_goes_on(tmp_path: Path) -> None:
    failing, listener = Listener(fails_at=2), Listener()
    with pytest.warns(QkvWarning, match=r"Listener failed and is told no more \(no network\)") as told:
        result, _, _ = train_tiny(tmp_path, steps=4, reporter=reporter(failing, listener))
    assert result.step == 4
    assert len(told) == 1
    assert [record["step"] for record in failing.records] == [1]
    assert len(listener.records) == 5
    assert (failing.ended, listener.ended) == (0, 1)


def test_a_reporter_asks_for_those_that_the_command_named() -> None:
    listener = Listener()
    with started_by(Origin(command=["qkv"], watchers=[listener])):
        assert list(Reporter().watchers) == [listener]
        assert list(Reporter(watchers=[]).watchers) == []
    assert list(Reporter().watchers) == []


def test_figures_have_names_by_what_they_are_of() -> None:
    train = {"kind": "train", "step": 5, "loss": 2.0, "gradient_norm": None, "counted": "tokens", "tokens": 7,
             "experts": {"balance": 1.5}}  # fmt: skip
    assert figures_of(train) == {"train/loss": 2.0, "train/tokens": 7, "train/balance": 1.5}
    evaluation = {"kind": "evaluation", "step": 5, "seconds": 3.0, "figures": {"loss": 1.0}, "best": True}
    assert figures_of(evaluation) == {"validation/loss": 1.0}
    assert figures_of({"kind": "prediction", "step": 0, "seconds": 1.0}) == {}


@pytest.fixture
def fake_tensorboard(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []

    class SummaryWriter:
        def __init__(self, log_dir: str) -> None:
            self.log_dir, self.scalars, self.closed = log_dir, [], False
            made.append(self)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.scalars.append((name, value, step))

        def flush(self) -> None: ...

        def close(self) -> None:
            self.closed = True

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return made


def test_tensorboard_is_given_scalars_in_the_folder_of_the_run(tmp_path: Path, fake_tensorboard: list[Any]) -> None:
    train_tiny(tmp_path, steps=2, evaluate=VALIDATION, reporter=reporter(TensorBoard()))
    (writer,) = fake_tensorboard
    assert writer.log_dir == str(tmp_path / "tensorboard")
    assert writer.closed
    steps = {name: [step for each, _, step in writer.scalars if each == name] for name, _, _ in writer.scalars}
    assert steps["train/loss"] == steps["train/learning_rate"] == [1, 2]
    assert steps["validation/loss"] == [2]


def test_tensorboard_itself_reads_what_is_written_for_it(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train_tiny(tmp_path, steps=2, evaluate=VALIDATION, reporter=reporter(TensorBoard()))
    events = reading.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [each.step for each in events.Scalars("train/loss")] == [1, 2]
    assert [each.step for each in events.Scalars("validation/loss")] == [2]


@pytest.mark.parametrize("library", ["wandb", "trackio"])
def test_a_tracker_is_told_by_init_log_and_finish(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    module = ModuleType(library)
    module.init = lambda **given: calls.append(("init", given))  # type: ignore[attr-defined]
    module.log = lambda figures, step: calls.append(("log", {**figures, "step": step}))  # type: ignore[attr-defined]
    module.finish = lambda: calls.append(("finish", {}))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, library, module)
    train_tiny(tmp_path / "run", steps=2, reporter=reporter(watcher_of(f"{library}:words")))
    assert [name for name, _ in calls] == ["init", "log", "log", "log", "finish"]
    assert calls[0][1]["project"] == "words"
    assert calls[0][1]["name"] == "run"
    assert calls[0][1]["config"]["settings"]["train"]["steps"] == 2
    assert calls[2][1]["step"] == 2
    assert "train/loss" in calls[2][1]


def test_an_error_of_the_library_s_own_does_not_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Error(Exception):
        pass

    def log(figures: dict[str, float], step: int) -> None:
        raise Error("no network")

    module = ModuleType("wandb")
    module.Error, module.log, module.init = Error, log, lambda **given: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    with pytest.warns(QkvWarning, match=r"Tracker failed and is told no more \(wandb could not be told"):
        result, _, _ = train_tiny(tmp_path, steps=2, reporter=reporter(Tracker("wandb")))
    assert result.step == 2


def test_what_is_missing_or_unknown_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch.utils.tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(QkvError, match=r'pip install "qkv\[tensorboard\]"'):
        watcher_of("tensorboard")
    with pytest.raises(QkvError, match="pip install wandb"):
        Tracker("wandb")
    with pytest.raises(QkvError, match="did you mean tensorboard"):
        watcher_of("tensorbord")
    with pytest.raises(QkvError, match="knows no projects"):
        watcher_of("tensorboard:words")
    with pytest.raises(QkvError, match="project is missing"):
        watcher_of("trackio:")
