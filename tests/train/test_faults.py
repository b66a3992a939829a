"""What goes wrong while training, caused for real: losses that are not finite or leap up, memory that runs out."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from qkv.data.batches import Batches
from qkv.data.pairs import PairBatch, Pairs
from qkv.data.plan import RowCount
from qkv.errors import QkvError
from qkv.files import read_json, read_tensors
from qkv.train.interrupts import Interrupted
from qkv.train.objectives import Loss
from qkv.train.reporter import Reporter
from tests.train.test_loop import PLAIN, SignalAfter, assert_same_training, records
from tests.train.tiny import TinyBatch, TinyBatches, TinyModel, make_batch, open_run, train_tiny


def heard(tmp_path: Path) -> tuple[Reporter, Console]:
    console = Console(record=True, width=500, file=(tmp_path / "shown").open("w"))
    return Reporter(console), console


# --- not finite -------------------------------------------------------------------------------------------------------


class Poisonous:
    """A loss that is not finite for these batches."""

    def __init__(self, batches: list[TinyBatch]) -> None:
        self.poison = batches

    def __call__(self, model: nn.Module, batch: TinyBatch) -> Loss:
        loss = PLAIN(model, batch)
        poisoned = any(torch.equal(batch.target, each.target) for each in self.poison)
        return Loss(loss.total * math.nan if poisoned else loss.total, loss.count)


@pytest.mark.parametrize("log_every", [1, 4])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_batch_that_is_not_finite_is_kept(tmp_path: Path, log_every: int, accumulate: int) -> None:
    first = 3 * accumulate  # batches before update 4
    poison = [make_batch(number) for number in range(first, first + 2 * accumulate)]
    with pytest.raises(QkvError, match=r"2 updates in a row; the batch of step 5 is kept in .*not_finite"):
        train_tiny(
            tmp_path / "run",
            objective=Poisonous(poison),
            batches=TinyBatches(100),
            log_every=log_every,
            accumulate=accumulate,
            tolerate=2,
        )
    folder = tmp_path / "run" / "not_finite"
    kept = read_json(folder / "batches.json")
    assert kept["step"] == 5
    assert kept["place"] == {"epoch": 0, "index": 4 * accumulate}
    for number in range(accumulate):
        tensors = read_tensors(folder / f"batch-{number}.safetensors")
        assert torch.equal(tensors["target"], make_batch(4 * accumulate + number).target)
        assert kept["batches"][number]["target_tokens"] == make_batch(4 * accumulate + number).target_tokens


def test_the_batch_is_found_also_where_the_run_was_resumed_since(tmp_path: Path) -> None:
    """The window of records was open when the run was stopped, and the bad batches lie before that."""
    options: dict[str, Any] = {"batches": TinyBatches(100), "log_every": 8, "tolerate": 2, "steps": 20}

    class Both(SignalAfter):
        poison = Poisonous([make_batch(1), make_batch(2)])

        def __call__(self, model: nn.Module, batch: TinyBatch) -> Loss:
            super().__call__(model, batch)
            return self.poison(model, batch)

    with pytest.raises(Interrupted):
        train_tiny(tmp_path / "run", objective=Both(5), **options)
    with pytest.raises(QkvError, match="the batch of step 3 is kept"):
        train_tiny(
            tmp_path / "run", objective=Both(-1), run={"resume": True}, **{**options, "batches": TinyBatches(100)}
        )
    tensors = read_tensors(tmp_path / "run" / "not_finite" / "batch-0.safetensors")
    assert torch.equal(tensors["target"], make_batch(2).target)
    open_run(tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run" / "not_finite").exists()


# --- memory -----------------------------------------------------------------------------------------------------------


def some_batches() -> Batches[PairBatch]:
    texts = [[3 + (row * place) % 8 for place in range(2 + row % 4)] for row in range(1, 25)]
    return Batches(Pairs.from_ids(texts, texts), RowCount(8), seed=3)


class Narrow:
    """A device that has no memory for more than so many rows, from a step on."""

    def __init__(self, rows: int, after: int = 0) -> None:
        self.rows, self.after, self.calls = rows, after, 0

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        self.calls += 1
        if len(batch.source) > self.rows and self.calls > self.after:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return PLAIN(model, batch)


def test_a_batch_too_large_for_the_memory_is_taken_in_parts(tmp_path: Path) -> None:
    reporter, console = heard(tmp_path)
    how: dict[str, Any] = {"steps": 7, "accumulate": 2}
    wide = train_tiny(
        tmp_path / "wide", model=TinyModel(dropout=0), batches=some_batches(), objective=Narrow(99), **how
    )
    narrow = train_tiny(
        tmp_path / "narrow",
        model=TinyModel(dropout=0),
        batches=some_batches(),
        objective=Narrow(2, after=5),  # it happens in the middle of an update
        reporter=reporter,
        **how,
    )
    said = console.export_text()
    assert "in 2 parts" in said
    assert "in 4 parts" in said
    assert "in 8 parts" not in said
    for a, b in zip(wide[1].parameters(), narrow[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    tokens = [[record["tokens"] for record in records(tmp_path / name, "train")] for name in ("wide", "narrow")]
    assert tokens[0] == tokens[1], "the same rows make the same updates"


def test_a_run_in_parts_resumes_in_parts(tmp_path: Path) -> None:
    class Stopped(Narrow):
        def __init__(self, step: int) -> None:
            super().__init__(4)
            self.stop = SignalAfter(step, signal.SIGTERM)

        def __call__(self, model: nn.Module, batch: Any) -> Loss:
            loss = super().__call__(model, batch)
            self.stop(model, batch)
            return loss

    unbroken = train_tiny(tmp_path / "unbroken", batches=some_batches(), objective=Stopped(-1), steps=8)
    with pytest.raises(Interrupted):
        train_tiny(tmp_path / "broken", batches=some_batches(), objective=Stopped(7), steps=8)
    reporter, console = heard(tmp_path)
    resumed = train_tiny(
        tmp_path / "broken",
        model=TinyModel(9),
        batches=some_batches(),
        objective=Stopped(-1),
        steps=8,
        run={"resume": True},
        reporter=reporter,
    )
    assert "ran out of memory" not in console.export_text()
    assert_same_training(unbroken, resumed)
    assert records(tmp_path / "unbroken") == records(tmp_path / "broken")


def test_memory_for_not_even_one_row_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        train_tiny(tmp_path / "run", batches=some_batches(), objective=Narrow(0))


def test_rows_that_are_compared_with_each_other_are_never_divided(tmp_path: Path) -> None:
    objective = Narrow(4)
    objective.compares_rows = True  # type: ignore[attr-defined]
    with pytest.raises(torch.OutOfMemoryError):
        train_tiny(tmp_path / "run", batches=some_batches(), objective=objective)


@pytest.mark.gpu
def test_memory_of_a_gpu_that_runs_out(tmp_path: Path) -> None:
    """An objective that really asks for a third of the device for each row."""
    total = torch.cuda.get_device_properties(0).total_memory

    def greedy(model: nn.Module, batch: Any) -> Loss:
        room = torch.empty(len(batch.source), total // 3, dtype=torch.uint8, device=batch.source.device)
        loss = PLAIN(model, batch)
        return Loss(loss.total + 0.0 * room[:, 0].sum(), loss.count)

    reporter, console = heard(tmp_path)
    result, _, _ = train_tiny(
        tmp_path / "run", batches=some_batches(), objective=greedy, device="cuda", steps=3, reporter=reporter
    )
    assert result.step == 3
    assert "in 4 parts" in console.export_text()
    torch.cuda.empty_cache()


# --- a loss that leaps up ---------------------------------------------------------------------------------------------


class Leaping:
    """A loss that is many times as high for these batches, and a gradient that spoils the weights."""

    def __init__(self, numbers: set[int], stop: int = -1) -> None:
        self.high = [make_batch(number) for number in numbers]
        self.stop = SignalAfter(stop)

    def __call__(self, model: nn.Module, batch: TinyBatch) -> Loss:
        loss = self.stop(model, batch)
        high = any(torch.equal(batch.target, each.target) for each in self.high)
        return Loss(loss.total * 50 if high else loss.total, loss.count)


SPIKE: dict[str, Any] = {"steps": 24, "log_every": 2, "save_every": 4, "roll_back": 3.0}


def leap(folder: Path, numbers: set[int], stop: int = -1, **more: Any) -> Any:
    return train_tiny(folder, objective=Leaping(numbers, stop), batches=TinyBatches(200), **{**SPIKE, **more})


def test_a_loss_that_leaps_up_goes_back_and_passes_over_the_batches(tmp_path: Path) -> None:
    reporter, console = heard(tmp_path)
    leap(tmp_path / "run", {14}, reporter=reporter)  # in update 15: the window that ends with step 16
    assert "training went back to step 12 and passes over the batches in between" in console.export_text()
    written = records(tmp_path / "run")
    assert [record["step"] for record in written if record["kind"] == "train"] == list(range(2, 25, 2))
    back = [record for record in written if record["kind"] == "roll_back"]
    assert [(record["step"], record["from_step"]) for record in back] == [(12, 16)]
    assert max(record["loss"] for record in written if record["kind"] == "train") < 3 * back[0]["usual_loss"]
    last = open_run(tmp_path / "run", resume=True).checkpoints.read(24)
    assert last.state["data"]["index"] == 24 + 4
    assert last.state["train"]["roll_backs"] == 1


def test_without_the_setting_nothing_goes_back(tmp_path: Path) -> None:
    leap(tmp_path / "run", {14}, roll_back=None)
    assert {record["kind"] for record in records(tmp_path / "run")} == {"train", "final"}


@pytest.mark.parametrize("stop", [13, 16, 17, 21])
def test_a_run_that_went_back_resumes_bit_for_bit(tmp_path: Path, stop: int) -> None:
    unbroken = leap(tmp_path / "unbroken", {14})
    with pytest.raises(Interrupted):
        leap(tmp_path / "broken", {14}, stop)
    torch.manual_seed(5)
    resumed = leap(tmp_path / "broken", {14}, model=TinyModel(9), run={"resume": True})
    assert_same_training(unbroken, resumed)
    assert records(tmp_path / "unbroken") == records(tmp_path / "broken")


def test_a_loss_that_keeps_leaping_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="went back 5 times already"):
        leap(tmp_path / "run", set(range(14, 200)))
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["step"] <= 16
