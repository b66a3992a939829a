"""Plans: every row once, within the budget, with little padding."""

from itertools import pairwise

import numpy as np
import pytest

from qkv.data.plan import FixedShapes, RowCount, TokenBudget
from qkv.errors import QkvError


def lengths(count=20_000, seed=0):
    """Sentence-like lengths: skewed, and target lengths that follow the source's."""
    generator = np.random.default_rng(seed)
    source = np.clip(generator.lognormal(2.8, 0.7, count), 1, 100).astype(np.int64)
    target = np.clip(source * generator.normal(1.1, 0.2, count), 1, 118).astype(np.int64) + 2
    return source, target


BATCHINGS = [
    TokenBudget(4096),
    TokenBudget(4096, multiple_of=8),
    FixedShapes(4096, (16, 32, 64, 128)),
    TokenBudget(120),
]


@pytest.mark.parametrize("batching", BATCHINGS, ids=str)
def test_every_row_once_within_budget_and_wide_enough(batching):
    source, target = lengths()
    plan = batching.plan(source, target, np.random.default_rng(1))
    assert np.array_equal(np.sort(np.concatenate([batch.rows for batch in plan])), np.arange(len(source)))
    for batch in plan:
        assert batch.padded_tokens <= batching.max_tokens
        assert batch.source_width >= source[batch.rows].max()
        assert batch.target_width >= target[batch.rows].max()


def test_batches_are_as_large_as_the_budget_allows():
    source, target = lengths()
    plan = TokenBudget(4096).plan(source, target, np.random.default_rng(1))
    for batch, after in pairwise(plan):
        next_row = after.rows[:1]
        width = max(batch.source_width, batch.target_width, int(source[next_row].max()), int(target[next_row].max()))
        assert (len(batch.rows) + 1) * width > 4096


def test_widths_are_multiples_of_what_the_model_reads():
    source, target = lengths()
    for batch in TokenBudget(4096, multiple_of=8).plan(source, target, np.random.default_rng(0)):
        assert batch.source_width % 8 == 0
        assert (batch.target_width - 1) % 8 == 0


def test_fixed_shapes_are_a_handful_and_whole():
    source, target = lengths()
    plan = FixedShapes(4096, (64, 16, 128, 32)).plan(source, target, np.random.default_rng(0))
    shapes = {(len(batch.rows) + batch.filler, batch.source_width, batch.target_width) for batch in plan}
    assert shapes == {(4096 // (width + 1), width, width + 1) for width in (16, 32, 64, 128)}
    assert sum(batch.filler > 0 for batch in plan) <= 1


def test_plans_depend_on_the_generator_alone():
    source, target = lengths(2000)
    for batching in BATCHINGS:
        one, same, other = (batching.plan(source, target, np.random.default_rng(seed)) for seed in (1, 1, 2))
        assert all(np.array_equal(a.rows, b.rows) for a, b in zip(one, same, strict=True))
        assert any(not np.array_equal(a.rows, b.rows) for a, b in zip(one, other, strict=False))


def test_a_single_row():
    for batching in BATCHINGS:
        (batch,) = batching.plan(np.array([1]), np.array([2]), np.random.default_rng(0))
        assert batch.rows.tolist() == [0]


def test_rows_that_do_not_fit_are_an_error():
    with pytest.raises(QkvError, match="50 tokens wide does not fit in batches of 49"):
        TokenBudget(49).plan(np.array([3, 50]), np.array([3, 3]), np.random.default_rng(0))
    with pytest.raises(QkvError, match="A row of 50 tokens fits in none"):
        FixedShapes(4096, (8, 16)).plan(np.array([3, 50]), np.array([3, 3]), np.random.default_rng(0))
    with pytest.raises(QkvError, match="does not fit"):
        FixedShapes(16, (8, 16)).plan(np.array([3]), np.array([3]), np.random.default_rng(0))


def test_a_count_of_rows_is_kept_whatever_their_lengths():
    lengths = np.random.default_rng(0).integers(1, 50, 103)
    plan = RowCount(10, multiple_of=8).plan(lengths, np.ones_like(lengths), np.random.default_rng(1))
    assert sorted(len(batch.rows) for batch in plan) == [3] + [10] * 10
    assert sorted(np.concatenate([batch.rows for batch in plan])) == list(range(103))
    for batch in plan:
        assert batch.source_width == -(-int(lengths[batch.rows].max()) // 8) * 8
        assert batch.target_width == 1
    with pytest.raises(QkvError, match="at least one row"):
        RowCount(0)
