"""Schedules against their formulas, at their corners."""

import pytest

from qkv.errors import QkvError
from qkv.train.schedules import Constant, Cosine, InverseSquareRoot, Linear, Noam, Schedule, TriStage, WarmupStableDecay


def test_noam_is_equation_three() -> None:
    schedule = Noam(width=512, warmup=4000)
    assert schedule(1, 0.0) == pytest.approx(512**-0.5 * 4000**-1.5)
    assert schedule(4000, 0.5) == pytest.approx(512**-0.5 * 4000**-0.5)  # about 7e-4, the published peak
    assert schedule(16000, 0.9) == pytest.approx(schedule(4000, 0.0) / 2)
    assert Noam(width=512, factor=2.0)(7, 0.0) == pytest.approx(2 * schedule(7, 0.0))


@pytest.mark.parametrize("schedule", [Constant, Cosine, Linear, InverseSquareRoot, WarmupStableDecay])
def test_warm_up_rises_in_a_straight_line_from_the_first_update(schedule: type) -> None:
    warmed = schedule(warmup=10)
    assert [warmed(step, 0.0) for step in (1, 5, 10)] == pytest.approx([0.1, 0.5, 1.0])
    assert schedule()(1, 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Constant(), [1, 1, 1, 1]),
        (Cosine(), [1, 0.853553, 0.5, 0]),
        (Cosine(floor=0.1), [1, 0.1 + 0.9 * 0.853553, 0.55, 0.1]),
        (Linear(), [1, 0.75, 0.5, 0]),
        (Linear(floor=0.2), [1, 0.8, 0.6, 0.2]),
        (WarmupStableDecay(decay=0.75), [1, 1, 2 / 3, 0]),
        (WarmupStableDecay(decay=0.75, floor=0.4), [1, 1, 0.8, 0.4]),
    ],
)
def test_decay_follows_the_budget_used(schedule: Schedule, expected: list[float]) -> None:
    assert [schedule(1000, progress) for progress in (0.0, 0.25, 0.5, 1.0)] == pytest.approx(expected, abs=1e-6)


def test_inverse_square_root_is_noam_with_peak_one() -> None:
    noam, plain = Noam(width=64, warmup=30), InverseSquareRoot(warmup=30)
    for step in (1, 29, 30, 31, 300):
        assert plain(step, 0.0) == pytest.approx(noam(step, 0.0) / noam(30, 0.0))


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        (Constant, {"warmup": -1}),
        (Noam, {"width": 0}),
        (Noam, {"width": 8, "warmup": 0}),
        (Cosine, {"floor": 1.5}),
        (WarmupStableDecay, {"decay": 0.0}),
        (WarmupStableDecay, {"decay": 0.5, "warmup": -3}),
    ],
)
def test_nonsense_is_refused(schedule: type, options: dict[str, float]) -> None:
    with pytest.raises(QkvError):
        schedule(**options)


def test_three_stages() -> None:
    schedule = TriStage()
    shares = [0.0, 0.05, 0.1, 0.3, 0.5, 0.75, 1.0]
    expected = [0.01, 0.505, 1, 1, 1, 0.5, 0]
    assert [schedule(7, share) for share in shares] == pytest.approx(expected)
    assert TriStage(rise=0.0)(1, 0.0) == 1.0
    with pytest.raises(QkvError, match="leave some of the budget"):
        TriStage(rise=0.5, hold=0.5)
