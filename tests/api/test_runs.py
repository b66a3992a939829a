"""What is held out of a data set, and ranks that are lost before a run begins."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from qkv.api import runs
from qkv.api.runs import divided, run_training
from qkv.errors import QkvError
from qkv.train.settings import TrainSettings

ROWS = [(f"text {number}", "rare" if number % 20 == 0 else "usual") for number in range(200)]


def halves(rows, share=0.1):
    return divided(rows, share, key=lambda row: row[0], kind=lambda row: row[1])


def test_of_every_class_a_share_is_held_out():
    kept, held = halves(ROWS)
    assert Counter(label for _, label in held) == {"rare": 1, "usual": 19}
    assert sorted(kept + held) == sorted(ROWS)
    assert [row for row in ROWS if row in set(kept)] == kept  # in their order


def test_the_order_of_rows_does_not_matter():
    assert sorted(halves(ROWS)[1]) == sorted(halves(ROWS[::-1])[1])


def test_equal_texts_stay_together_whatever_their_labels():
    rows = [*ROWS, *((text, "other") for text, _ in ROWS)]
    kept, held = halves(rows)
    assert not {text for text, _ in kept} & {text for text, _ in held}
    assert len(held) == 2 * len({text for text, _ in held})


def test_a_class_of_one_text_is_kept_to_train_on():
    kept, held = halves([("a", "x"), ("b", "y"), ("c", "y"), ("a", "x")], 0.5)
    assert ("a", "x") in kept
    assert len(held) == 1
    assert len(halves([("a", "x"), ("b", "y")], 0.5)[1]) == 1  # something must be held out
    with pytest.raises(QkvError, match="between 0 and 1"):
        halves(ROWS, 1.5)


def test_a_rank_that_is_lost_before_the_first_step_is_told_of_in_a_sentence(monkeypatch, tmp_path):
    class Lonely(SimpleNamespace):
        def check_same(self, value: str, what: str) -> None:
            raise RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:22934.")

    monkeypatch.setattr(runs, "current_world", lambda: Lonely(rank=1, size=2, first=False))
    nothing: dict[str, Any] = dict.fromkeys(("objective", "batches", "optimizer", "schedule"))
    use: Any = SimpleNamespace(model=nn.Linear(1, 1))
    with pytest.raises(QkvError, match="Rank 1 lost touch with another"):
        run_training(use, **nothing, settings=TrainSettings(steps=1), folder=tmp_path, about={}, fingerprint="")
    assert list(tmp_path.iterdir()) == []
