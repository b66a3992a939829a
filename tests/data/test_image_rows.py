"""Pictures in batches: every one once, in the same order after a break."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from qkv.data.augment import Flip, InTurn, Mixing, RandAugment
from qkv.data.batches import Batches, ordered_batches
from qkv.data.classes import divided_rows
from qkv.data.image_rows import ImageRows
from qkv.data.plan import PlannedBatch, RowCount
from qkv.data.preprocessing import Normalise
from qkv.errors import QkvError


def rows(count: int = 10, channels: int = 3) -> ImageRows:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 4, 5, channels)).astype(np.uint8)
    return ImageRows(pixels, np.arange(count) % 3, ("a", "b", "c"))


def test_a_batch_holds_the_pictures_it_was_planned_for() -> None:
    all_rows = rows()
    batch = all_rows.batch(PlannedBatch(np.array([7, 2, 9]), 1, 1, filler=1))
    assert batch.pixels.shape == (4, 3, 4, 5)
    assert np.array_equal(batch.pixels[:3].permute(0, 2, 3, 1), all_rows.pixels[[7, 2, 9]])
    assert batch.labels.tolist() == [1, 2, 0, -1]
    assert batch.labelled == 3


def test_greys_have_one_channel() -> None:
    greys = ImageRows(np.zeros((3, 4, 5), np.uint8), np.array([0, 1, 0]), ("a", "b"))
    assert greys.size == (1, 4, 5)
    assert greys.batch(PlannedBatch(np.array([0]), 1, 1)).pixels.shape == (1, 1, 4, 5)


def test_an_epoch_has_every_picture_once_and_a_resumed_one_the_same_batches() -> None:
    def batches() -> Batches:
        return Batches(rows().anew(seed=5), RowCount(3), seed=1)

    first, second = batches(), batches()
    epoch = list(first)
    assert sorted(int(label) for batch in epoch for label in batch.labels) == sorted((np.arange(10) % 3).tolist())
    second.load_state_dict({**second.state_dict(), "index": 2})
    for mine, theirs in zip(list(second), epoch[2:], strict=True):
        assert torch.equal(mine.pixels, theirs.pixels)
        assert mine.seed == theirs.seed
    assert len({batch.seed for batch in epoch}) == len(epoch)
    assert {batch.seed for batch in epoch}.isdisjoint(batch.seed for batch in first)  # the next epoch draws anew


def test_validation_batches_count_patches_as_tokens() -> None:
    large = ImageRows(np.zeros((10, 32, 32, 3), np.uint8), np.zeros(10, np.int64), ("a",))
    found = list(ordered_batches(large, 16))  # four tokens each
    assert sum(len(batch.pixels) for _, batch in found) == 10
    assert max(len(batch.pixels) for _, batch in found) == 4


def test_a_share_of_every_class_is_held_out() -> None:
    to_train, held = divided_rows(rows(30), 0.2)
    assert (len(to_train), len(held)) == (24, 6)
    assert np.bincount(held.labels).tolist() == [2, 2, 2]
    with pytest.raises(QkvError, match="leaves nothing on one side"):
        divided_rows(rows(30), 1.0)
    assert np.bincount(divided_rows(rows(30), 0.001)[1].labels).tolist() == [1, 1, 1]


def test_what_makes_no_rows_is_told() -> None:
    with pytest.raises(QkvError, match="8 bits"):
        ImageRows(np.zeros((2, 3, 3)), np.array([0, 1]), ("a", "b"))  # type: ignore[arg-type]
    with pytest.raises(QkvError, match="from 0 to 1"):
        ImageRows(np.zeros((2, 3, 3), np.uint8), np.array([0, 2]), ("a", "b"))


def test_a_batch_is_changed_and_mixed_the_same_way_each_time_it_is_asked() -> None:
    way = rows(24).anew(seed=1, augment=InTurn((Flip(), RandAugment(1, 9))), mixing=Mixing())
    normalise = Normalise(1 / 255, (0.5,) * 3, (0.5,) * 3)
    first = next(iter(Batches(way, RowCount(8), seed=1)))
    again = next(iter(Batches(way, RowCount(8), seed=1)))
    mine, theirs = first.prepared(normalise), again.prepared(normalise)
    for name in ("images", "labels", "others", "kept"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name))
        assert torch.equal(getattr(mine, name), getattr(first.prepared(normalise), name))
    plain = replace(first, augment=None, mixing=None).prepared(normalise)
    assert torch.equal(plain.images, normalise(first.pixels))
    assert not torch.equal(plain.images, mine.images)
    assert torch.equal(plain.others, first.labels)
    assert plain.kept.tolist() == [1.0] * 8
