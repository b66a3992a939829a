"""Windows of updates become records; pauses do not count as training."""

import math
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from qkv.train.meter import Meter, Stopwatch, peak_memory
from qkv.train.step import Update

CPU = torch.device("cpu")


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes one second."""
    clock = count()
    monkeypatch.setattr("qkv.train.meter.time", SimpleNamespace(perf_counter=lambda: float(next(clock))))


def update(total: float, tokens: int, norm: float = 1.0) -> Update:
    return Update(torch.tensor(total), tokens, torch.tensor(norm), 0.0)


def test_the_stopwatch_leaves_pauses_out(ticking: None) -> None:
    stopwatch = Stopwatch(CPU, seconds=100.0, paused_seconds=7.0)
    assert stopwatch.seconds == 101.0
    with stopwatch.paused():
        frozen = stopwatch.seconds
        assert stopwatch.seconds == frozen == 102.0
    assert stopwatch.paused_seconds == 8.0
    assert stopwatch.seconds == 103.0


def test_the_most_that_training_held_outlives_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [2**30]
    monkeypatch.setattr("qkv.train.meter.peak_memory", lambda _: held[0])
    stopwatch = Stopwatch(CPU)
    with stopwatch.paused():
        held[0] = 2**33  # of an evaluation
        assert stopwatch.peak_memory == 2**30
        held[0] = 2**20  # as on a GPU, whose peak is forgotten when the pause ends
    assert stopwatch.peak_memory == 2**30


def test_a_record_is_the_mean_over_the_tokens_of_its_window(ticking: None) -> None:
    meter = Meter(CPU, Stopwatch(CPU))
    meter.add(update(10.0, 5))
    meter.add(update(2.0, 1, norm=0.5))
    (record,) = meter.close_window({"step": 2})
    assert record["step"] == 2
    assert record["loss"] == pytest.approx(12 / 6)
    assert record["gradient_norm"] == 0.5
    assert record["tokens_per_second"] == 6.0
    assert meter.close_window({"step": 2}) == meter.poll() == []


def test_non_finite_updates_are_counted_and_left_out_of_the_mean() -> None:
    meter = Meter(CPU, Stopwatch(CPU))
    for total, norm in [(4.0, 1.0), (math.inf, math.nan), (math.nan, math.nan), (8.0, 2.0)]:
        meter.add(update(total, 2, norm))
    (record,) = meter.close_window({})
    assert record["loss"] == 3.0
    assert record["skipped"] == 2
    assert (meter.skipped_in_a_row, meter.longest_skip) == (0, 2)


def test_an_open_window_survives_being_saved() -> None:
    straight, first = Meter(CPU, Stopwatch(CPU)), Meter(CPU, Stopwatch(CPU))
    for meter in (straight, first):
        meter.add(update(1.1, 3))
        meter.add(update(math.nan, 2, math.nan))
    second = Meter(CPU, Stopwatch(CPU))
    second.load_state_dict(first.state_dict())
    results = []
    for meter in (straight, second):
        meter.add(update(0.7, 4))
        (record,) = meter.close_window({})
        results.append((record["loss"], record["gradient_norm"], record["skipped"]))
    assert results[0] == results[1]


def test_memory_is_in_bytes() -> None:
    assert (peak_memory(CPU) or 0) > 10 * 2**20  # Python and torch alone take more


def test_a_record_tells_how_much_of_the_device_is_used_and_how_long_data_were_waited_for(ticking: None) -> None:
    meter = Meter(CPU, Stopwatch(CPU), peak=100.0)
    for _ in range(2):
        meter.add(Update(torch.tensor(1.0), 1, torch.tensor(1.0), 5.0))
    (record,) = meter.close_window({"step": 2, "data_wait": 0.25})  # after one second
    assert record["flops_utilisation"] == pytest.approx(10 / 100)
    assert record["data_wait_share"] == 0.25
    meter.peak = None
    meter.add(Update(torch.tensor(1.0), 1, torch.tensor(1.0), 5.0))
    (record,) = meter.close_window({"step": 3})
    assert not {"flops_utilisation", "data_wait_share", "experts"} & record.keys()


def test_what_an_objective_tells_of_its_last_batch_is_recorded_and_survives_being_saved() -> None:
    def told(balance: float) -> Update:
        return Update(torch.tensor(1.0), 1, torch.tensor(1.0), 3.0, {"balance": torch.tensor(balance)})

    first, second = Meter(CPU, Stopwatch(CPU)), Meter(CPU, Stopwatch(CPU))
    first.add(told(1.5))
    first.add(told(1.25))
    second.load_state_dict(first.state_dict())
    for meter in (first, second):
        (record,) = meter.close_window({"step": 2})
        assert record["experts"] == {"balance": 1.25}
        assert record["loss"] == 1.0
    old = {name: value for name, value in first.state_dict().items() if name not in ("flops", "beside")}
    Meter(CPU, Stopwatch(CPU)).load_state_dict(old)
