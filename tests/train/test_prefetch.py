"""Batches come in order across epochs, and the position is that of what was taken, not of what is held."""

from itertools import count
from types import SimpleNamespace

import pytest
import torch

from qkv.errors import QkvError
from qkv.train.prefetch import Prefetch
from tests.train.tiny import TinyBatches, make_batch

CPU = torch.device("cpu")


def take(prefetch: Prefetch, number: int) -> list[torch.Tensor]:
    taken = []
    for _ in range(number):
        taken.append(prefetch.take().source)  # type: ignore[attr-defined]
        prefetch.fetch()  # as the loop does: the next one is already under way
    return taken


def test_epochs_follow_each_other() -> None:
    taken = take(Prefetch(TinyBatches(size=2), CPU), 5)
    expected = [make_batch(seed).source for seed in (0, 1, 1000, 1001, 2000)]
    assert all(torch.equal(a, b) for a, b in zip(taken, expected, strict=True))


@pytest.mark.parametrize("stop", [0, 1, 2, 3, 4, 5])
def test_the_position_continues_behind_the_last_batch_taken(stop: int) -> None:
    straight = take(Prefetch(TinyBatches(size=2), CPU), 6)
    first = Prefetch(TinyBatches(size=2), CPU)
    taken = take(first, stop)
    batches = TinyBatches(size=2)
    batches.load_state_dict(first.position)
    taken += take(Prefetch(batches, CPU), 6 - stop)
    assert all(torch.equal(a, b) for a, b in zip(taken, straight, strict=True))


def test_an_empty_stream_is_an_error_and_not_an_endless_loop() -> None:
    with pytest.raises(QkvError, match="no batch to train on"):
        Prefetch(TinyBatches(size=0), CPU).take()


def test_the_time_that_batches_take_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count()
    monkeypatch.setattr("qkv.train.prefetch.time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    prefetch = Prefetch(TinyBatches(size=2), CPU)
    take(prefetch, 2)  # the first, and the two that follow it
    assert prefetch.take_waited() == 3.0
    assert prefetch.take_waited() == 0.0
    prefetch.fetch()  # one is held already
    assert prefetch.take_waited() == 0.0
