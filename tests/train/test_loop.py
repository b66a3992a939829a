"""Whole runs: they learn, they resume bit for bit, they stop when told, they survive what goes wrong."""

import json
import math
import os
import signal
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from qkv.errors import QkvError
from qkv.files import read_tensors
from qkv.train.evaluation import ValidationLoss
from qkv.train.interrupts import Interrupted
from qkv.train.objectives import Loss, SequenceToSequenceLoss
from qkv.train.reporter import Reporter
from qkv.train.schedules import Cosine
from tests.train.tiny import TinyBatch, TinyBatches, TinyModel, make_batch, open_run, train_tiny

TIMING = {"seconds", "wall_seconds", "tokens_per_second", "peak_memory", "step_seconds", "data_wait", "data_wait_share",
          "flops_utilisation"}  # fmt: skip
PLAIN = SequenceToSequenceLoss(smoothing=0.1)
VALIDATION = ValidationLoss(PLAIN, [make_batch(77), make_batch(78)])


def records(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """What metrics.jsonl says, but for the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [line for line in lines if kind in (None, line["kind"])]
    return [{key: value for key, value in line.items() if key not in TIMING} for line in kept]


def assert_same_training(
    first: tuple[Any, nn.Module, torch.optim.Optimizer], second: tuple[Any, nn.Module, torch.optim.Optimizer]
) -> None:
    for a, b in zip(first[1].parameters(), second[1].parameters(), strict=True):
        assert torch.equal(a, b)
    states = [[optimizer.state[p] for p in optimizer.param_groups[0]["params"]] for _, _, optimizer in (first, second)]
    for a, b in zip(*states, strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)


class SignalAfter:
    """An objective that sends this process a signal while it computes a chosen step."""

    def __init__(self, step: int, number: signal.Signals = signal.SIGINT, times: int = 1) -> None:
        self.step, self.number, self.times = step, number, times
        self.calls = 0

    def __call__(self, model: nn.Module, batch: TinyBatch) -> Loss:
        self.calls += 1
        if self.calls == self.step:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)
        return PLAIN(model, batch)


def test_training_learns_and_leaves_a_whole_run_folder(tmp_path: Path) -> None:
    result, model, _ = train_tiny(tmp_path / "run", steps=60, log_every=10, flops_per_token=100.0, evaluate=VALIDATION)
    losses = [record["loss"] for record in records(tmp_path / "run", "train")]
    assert losses[-1] < losses[0]
    assert result.step == 60
    assert result.flops == 100.0 * result.tokens
    assert {"loss", "nll", "perplexity"} == result.figures.keys()
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"run.json", "metrics.jsonl", "checkpoints", "model.safetensors", "state.json"}
    saved = read_tensors(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(saved[name], parameter) for name, parameter in model.named_parameters())
    assert not model.training
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert line.keys() >= {"step", "seconds", "tokens", "loss", "learning_rate", "gradient_norm", "tokens_per_second"}


@pytest.mark.parametrize("log_every", [1, 3])
def test_an_interrupted_run_resumes_bit_for_bit(tmp_path: Path, log_every: int) -> None:
    """With dropout, a decaying schedule, accumulation, a moving average, epochs and a half-full window of records."""
    options: dict[str, Any] = {
        "steps": 10, "log_every": log_every, "accumulate": 2, "evaluate_every": 2, "ema": 0.9,
        "schedule": Cosine(warmup=3), "evaluate": VALIDATION,
    }  # fmt: skip
    straight = train_tiny(tmp_path / "straight", objective=SignalAfter(-1), **options)
    with pytest.raises(Interrupted):
        train_tiny(tmp_path / "broken", objective=SignalAfter(2 * 4), **options)
    assert records(tmp_path / "broken")[-1]["step"] <= 4
    torch.manual_seed(12345)  # the generators stand elsewhere, as in a new process
    fresh = TinyModel(seed=99)
    resumed = train_tiny(tmp_path / "broken", model=fresh, objective=SignalAfter(-1), run={"resume": True}, **options)
    assert_same_training(straight, resumed)
    assert records(tmp_path / "straight") == records(tmp_path / "broken")


def test_a_finished_run_goes_on_with_a_larger_budget(tmp_path: Path) -> None:
    straight = train_tiny(tmp_path / "straight", steps=10)
    train_tiny(tmp_path / "parts", steps=4)
    resumed = train_tiny(tmp_path / "parts", model=TinyModel(seed=5), steps=10, run={"resume": True})
    assert_same_training(straight, resumed)
    assert records(tmp_path / "straight", "train") == records(tmp_path / "parts", "train")


def test_what_a_lost_run_wrote_after_its_last_checkpoint_is_taken_again(tmp_path: Path) -> None:
    class PowerCut(Exception):
        pass

    def fails(model: nn.Module, batch: TinyBatch) -> Loss:
        fails.calls += 1  # type: ignore[attr-defined]
        if fails.calls == 8:  # type: ignore[attr-defined]
            raise PowerCut
        return PLAIN(model, batch)

    fails.calls = 0  # type: ignore[attr-defined]
    straight = train_tiny(tmp_path / "straight", objective=fails_never, save_every=5)
    fails.__qualname__ = fails_never.__qualname__  # the same objective, as far as run.json can tell
    with pytest.raises(PowerCut):
        train_tiny(tmp_path / "lost", objective=fails, save_every=5)
    assert records(tmp_path / "lost")[-1]["step"] == 7
    resumed = train_tiny(tmp_path / "lost", objective=fails_never, save_every=5, run={"resume": True})
    assert_same_training(straight, resumed)
    assert records(tmp_path / "straight") == records(tmp_path / "lost")


def fails_never(model: nn.Module, batch: TinyBatch) -> Loss:
    return PLAIN(model, batch)


def test_resuming_before_the_first_checkpoint_starts_again(tmp_path: Path) -> None:
    def cut(model: nn.Module, batch: TinyBatch) -> Loss:
        raise ZeroDivisionError

    cut.__qualname__ = fails_never.__qualname__
    with pytest.raises(ZeroDivisionError):
        train_tiny(tmp_path / "run", objective=cut)
    result, _, _ = train_tiny(tmp_path / "run", objective=fails_never, run={"resume": True})
    assert result.step == 10


def test_a_damaged_checkpoint_is_passed_over_with_a_message(tmp_path: Path) -> None:
    straight = train_tiny(tmp_path / "run", save_every=4)
    newest = tmp_path / "run" / "checkpoints" / "step-00000010" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-5])
    console = Console(record=True, width=300, quiet=False, file=(tmp_path / "shown").open("w"))
    resumed = train_tiny(tmp_path / "run", save_every=4, run={"resume": True}, reporter=Reporter(console))
    shown = console.export_text()
    assert str(newest) in shown
    assert "Going on from step-00000008" in shown
    assert_same_training(straight, resumed)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_step_saves_and_tells_how_to_resume(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match="--resume") as caught:
        train_tiny(tmp_path / "run", objective=SignalAfter(3, number))
    assert caught.value.exit_code == code
    assert number.name in str(caught.value)
    assert open_run(tmp_path / "run", resume=True).checkpoints.read(3).step == 3
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert signal.getsignal(number) is before


def test_a_second_control_c_stops_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_tiny(tmp_path / "run", objective=SignalAfter(3, times=2))
    assert not (tmp_path / "run" / "checkpoints").exists()


class Poisoned:
    """An objective whose loss is infinite, or whose gradient alone is NaN, at chosen steps."""

    def __init__(self, steps: set[int], kind: str) -> None:
        self.steps, self.kind, self.calls = steps, kind, 0

    def __call__(self, model: nn.Module, batch: TinyBatch) -> Loss:
        self.calls += 1
        loss = PLAIN(model, batch)
        if self.calls not in self.steps:
            return loss
        if self.kind == "loss":
            return Loss(loss.total + math.inf, loss.count)
        nothing = (0 * next(model.parameters()).sum()).abs().sqrt()  # 0, but its slope is 0 * inf
        return Loss(loss.total + nothing, loss.count)


@pytest.mark.parametrize("kind", ["loss", "gradient"])
@pytest.mark.parametrize("fused", [True, False])
def test_a_non_finite_update_is_skipped_and_counted(tmp_path: Path, kind: str, fused: bool) -> None:
    model = TinyModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    _, model, optimizer = train_tiny(
        tmp_path / "run", model=model, optimizer=optimizer, objective=Poisoned({1, 3, 4}, kind), steps=5, tolerate=3
    )
    written = records(tmp_path / "run", "train")
    assert [record["skipped"] for record in written] == [1, 1, 2, 3, 3]
    assert [record["loss"] is None for record in written] == [True, False, True, True, False]
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert {state["step"].item() for state in optimizer.state.values()} == {2.0}


def test_too_many_non_finite_updates_in_a_row_end_the_run(tmp_path: Path) -> None:
    model = TinyModel()
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(QkvError, match=r"not finite in 3 updates in a row.*learning rate"):
        train_tiny(tmp_path / "run", model=model, objective=Poisoned(set(range(1, 99)), "loss"), tolerate=3)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert records(tmp_path / "run")[-1]["step"] == 3


@pytest.mark.parametrize("figures", [None, {"loss": math.nan}])
def test_a_run_that_ends_without_a_finite_loss_is_not_called_finished(
    tmp_path: Path, figures: dict[str, float] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate = None if figures is None else lambda model: figures
    with pytest.raises(QkvError, match=r"diverged: the loss of step 5 is not finite.*learning rate"):
        train_tiny(tmp_path / "run", objective=Poisoned({4, 5}, "loss"), evaluate=evaluate, steps=5)
    assert "Finished" not in capsys.readouterr().err
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_run_that_diverged_after_its_best_evaluation_keeps_those_weights(tmp_path: Path) -> None:
    result, _, _ = train_tiny(
        tmp_path / "run",
        objective=Poisoned({4, 5}, "loss"),
        evaluate=lambda model: {"loss": 1.0},
        evaluate_every=2,
        steps=5,
    )
    assert "step 2" in result.weights


def scripted(scores: list[float]) -> Any:
    """An evaluation that gives these scores one after the other."""
    remaining = iter(scores)
    return lambda model: {"loss": next(remaining)}


def test_patience_ends_the_run_and_the_best_weights_are_kept(tmp_path: Path) -> None:
    result, model, _ = train_tiny(
        tmp_path / "run", steps=100, evaluate_every=2, patience=2, keep=1, evaluate=scripted([3.0, 1.0, 2.0, 1.5, 0.0])
    )
    assert result.step == 8
    assert result.figures == {"loss": 1.0}
    assert "step 4, the best by loss" in result.weights
    checkpoints = open_run(tmp_path / "run", resume=True).checkpoints
    assert checkpoints.steps() == [4, 8]
    best = checkpoints.read(4).model
    assert all(torch.equal(best[name], parameter) for name, parameter in model.named_parameters())
    assert [record["best"] for record in records(tmp_path / "run", "evaluation")] == [True, True, False, False]


def test_higher_can_be_better_and_nan_never_is(tmp_path: Path) -> None:
    evaluate = scripted([math.nan, 1.0, 5.0, 2.0])
    result, _, _ = train_tiny(tmp_path / "run", steps=8, evaluate_every=2, better="higher", evaluate=evaluate)
    assert result.figures == {"loss": 5.0}
    assert records(tmp_path / "run", "evaluation")[0]["figures"] == {"loss": None}


def test_the_watched_figure_must_exist(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match=r"gave loss, nll, perplexity, but .* wer"):
        train_tiny(tmp_path / "run", evaluate=VALIDATION, watch="wer")


def test_the_last_checkpoints_are_averaged_and_evaluated(tmp_path: Path) -> None:
    result, model, _ = train_tiny(tmp_path / "run", save_every=2, average=3, keep=1, evaluate=VALIDATION)
    checkpoints = open_run(tmp_path / "run", resume=True).checkpoints
    assert checkpoints.steps() == [6, 8, 10]
    saved = [checkpoints.read(step).model for step in (6, 8, 10)]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), torch.stack([one[name] for one in saved]).mean(0))
    with torch.no_grad():
        assert result.figures == VALIDATION(model)
    assert "3 checkpoints" in result.weights


def test_the_last_weights_are_evaluated_once(tmp_path: Path) -> None:
    figures = iter(range(10))
    _, model, _ = train_tiny(
        tmp_path / "run", average=1, evaluations=2, evaluate=lambda _: {"loss": float(next(figures))}
    )
    assert [each["figures"]["loss"] for each in records(tmp_path / "run", "evaluation")] == [0.0, 1.0]
    assert records(tmp_path / "run", "final")[0]["figures"] == {"loss": 1.0}
    checkpoints = open_run(tmp_path / "run", resume=True).checkpoints
    last = checkpoints.read(checkpoints.steps()[-1]).model
    assert all(torch.equal(parameter, last[name]) for name, parameter in model.named_parameters())


def test_a_damaged_checkpoint_is_left_out_of_the_average_with_a_message(tmp_path: Path) -> None:
    train_tiny(tmp_path / "run", save_every=2, average=3)
    file = tmp_path / "run" / "checkpoints" / "step-00000008" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # still a safetensors file
    file.write_bytes(content)
    console = Console(record=True, width=300, file=(tmp_path / "shown").open("w"))
    result, _, _ = train_tiny(
        tmp_path / "run", save_every=2, average=3, run={"resume": True}, reporter=Reporter(console)
    )
    assert f"{file} was cut short, edited or damaged" in console.export_text()
    assert "2 checkpoints" in result.weights


def test_a_stop_leaves_no_trace_in_the_average_of_checkpoints(tmp_path: Path) -> None:
    how = {"steps": 10, "save_every": 2, "average": 3, "evaluate": VALIDATION}
    straight = train_tiny(tmp_path / "straight", objective=SignalAfter(-1), **how)
    with pytest.raises(Interrupted):
        train_tiny(tmp_path / "broken", objective=SignalAfter(9), **how)
    resumed = train_tiny(tmp_path / "broken", objective=SignalAfter(-1), run={"resume": True}, **how)
    assert_same_training(straight, resumed)
    assert records(tmp_path / "straight") == records(tmp_path / "broken")


@pytest.mark.parametrize("place", ["before the checkpoint", "after it", "after the end"])
def test_no_record_is_written_twice(tmp_path: Path, place: str) -> None:
    """Also not that of the end, nor an evaluation that a stopped run makes good."""
    how = {"steps": 6, "evaluate_every": 2, "evaluate": VALIDATION, "objective": SignalAfter(-1)}
    train_tiny(tmp_path / "straight", **how)
    stop = {"before the checkpoint": 3, "after it": 4, "after the end": 6}[place]
    with pytest.raises(Interrupted):
        train_tiny(tmp_path / "broken", **{**how, "objective": SignalAfter(stop)})
    for _ in range(2):
        train_tiny(tmp_path / "broken", run={"resume": True}, **how)
        assert records(tmp_path / "broken") == records(tmp_path / "straight")


def test_the_moving_average_is_what_is_evaluated_and_kept(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        seen.append(next(model.parameters()).detach().clone())
        return {"loss": 1.0}

    _, model, _ = train_tiny(tmp_path / "run", ema=0.5, evaluate=evaluate)
    checkpoint = open_run(tmp_path / "run", resume=True).checkpoints.read(10)
    assert checkpoint.average is not None
    assert torch.equal(seen[0], checkpoint.average["embedding.weight"])
    assert torch.equal(next(model.parameters()), checkpoint.average["embedding.weight"])
    assert not torch.equal(checkpoint.model["embedding.weight"], checkpoint.average["embedding.weight"])


def test_evaluation_leaves_no_trace_in_training(tmp_path: Path) -> None:
    def evaluate(model: nn.Module) -> dict[str, float]:
        assert not model.training
        assert not torch.is_grad_enabled()
        return {"loss": torch.rand(()).item()}

    often = train_tiny(tmp_path / "often", evaluate=evaluate, evaluate_every=1, average=1)
    never = train_tiny(tmp_path / "never", average=1)
    assert_same_training(often, never)


def test_a_budget_in_minutes_ends_the_run_and_drives_the_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = count(step=0.25)  # each look at the clock takes a quarter of a second
    monkeypatch.setattr("qkv.train.meter.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    result, _, _ = train_tiny(tmp_path / "run", steps=None, minutes=0.5, schedule=Cosine())
    rates = [record["learning_rate"] for record in records(tmp_path / "run", "train")]
    assert 30 <= result.seconds < 35
    assert result.wall_seconds > result.seconds
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 0.0099
    assert rates[-1] < 0.0005


def test_a_budget_of_operations_ends_the_run_and_drives_the_schedule(tmp_path: Path) -> None:
    told = train_tiny(tmp_path / "told", steps=9, flops_per_token=100.0)[0]
    seen: list[float] = []

    def schedule(step: int, progress: float) -> float:
        seen.append(progress)
        return 1.0

    budget = {"steps": None, "flops": told.flops, "flops_per_token": 100.0}
    result, _, _ = train_tiny(tmp_path / "run", schedule=schedule, **budget)
    assert (result.step, result.flops) == (9, told.flops)
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert seen[-1] < 1
    with pytest.raises(QkvError, match="counts them"):
        train_tiny(tmp_path / "uncounted", steps=None, flops=1e6)


def test_a_run_within_a_budget_of_operations_resumes_bit_for_bit(tmp_path: Path) -> None:
    how: dict[str, Any] = {"steps": None, "flops": 15_000.0, "flops_per_token": 100.0, "evaluate": VALIDATION}
    how |= {"evaluations": 4, "schedule": Cosine()}
    whole = train_tiny(tmp_path / "whole", objective=SignalAfter(-1), **how)
    with pytest.raises(Interrupted):
        train_tiny(tmp_path / "parts", objective=SignalAfter(4), **how)
    torch.manual_seed(5)
    parts = train_tiny(tmp_path / "parts", objective=SignalAfter(-1), run={"resume": True}, **how)
    assert_same_training(whole, parts)
    assert records(tmp_path / "parts") == records(tmp_path / "whole")


def test_evaluations_come_at_equal_shares_of_the_budget(tmp_path: Path) -> None:
    train_tiny(tmp_path / "run", steps=10, evaluations=3, evaluate=VALIDATION)
    assert [record["step"] for record in records(tmp_path / "run", "evaluation")] == [4, 7, 10]


def test_bfloat16_keeps_float32_weights(tmp_path: Path) -> None:
    _, model, _ = train_tiny(tmp_path / "run", precision="bfloat16", steps=40, log_every=10)
    losses = [record["loss"] for record in records(tmp_path / "run", "train")]
    assert losses[-1] < losses[0]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_compile_reaches_the_model_while_it_steps_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda forward, dynamic: compiled.append(forward) or forward)
    _, model, _ = train_tiny(tmp_path / "run", compile=True, steps=2)
    assert [forward.__self__ for forward in compiled] == [model]
    assert "forward" not in vars(model)


@pytest.mark.slow
def test_a_compiled_run_trains_with_changing_shapes(tmp_path: Path) -> None:
    class Widening(TinyBatches):
        def __iter__(self) -> Any:
            for _ in super().__iter__():
                yield make_batch(self.index, rows=3 + self.index, width=6 + self.index)

    compiled, plain = (
        train_tiny(tmp_path / str(flag), model=TinyModel(dropout=0.0), batches=Widening(), steps=6, compile=flag)
        for flag in (True, False)
    )
    for a, b in zip(compiled[1].parameters(), plain[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_no_batches_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="no batch to train on"):
        train_tiny(tmp_path / "run", batches=TinyBatches(size=0))


def test_a_file_in_the_way_of_writing_is_reported(tmp_path: Path) -> None:
    def full(model: nn.Module, folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(QkvError, match=r"No space left on device.*checkpoints are intact"):
        train_tiny(tmp_path / "run", steps=2, run={"save_model": full})


@pytest.mark.gpu
def test_steps_on_a_gpu_do_not_wait_for_it(tmp_path: Path) -> None:
    from qkv.train.optimizers import adam
    from qkv.train.prefetch import Prefetch
    from qkv.train.settings import TrainSettings
    from qkv.train.step import Stepper

    device = torch.device("cuda")
    model = TinyModel().to(device)
    settings = TrainSettings(steps=9, accumulate=2, precision="bfloat16")
    stepper = Stepper(model, PLAIN, adam(model), settings)
    batches = Prefetch(TinyBatches(100), device)
    stepper.update(batches)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            stepper.update(batches)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    result, _, _ = train_tiny(tmp_path / "run", device="cuda", steps=30, log_every=7, evaluate=VALIDATION)
    assert [record["step"] for record in records(tmp_path / "run", "train")] == [7, 14, 21, 28, 30]
    assert math.isfinite(result.figures["loss"] or math.nan)
