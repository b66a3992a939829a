"""Means of weights, over checkpoints and moving."""

from pathlib import Path

import pytest
import torch
from torch import nn

from qkv.errors import QkvError
from qkv.files import write_tensors
from qkv.train.average import MovingAverage, average_checkpoints


def checkpoint(folder: Path, **tensors: torch.Tensor) -> Path:
    folder.mkdir()
    write_tensors(folder / "model.safetensors", tensors)
    return folder


def test_the_mean_is_taken_in_more_than_float32(tmp_path: Path) -> None:
    # In float32, 2²⁴ + 1 is 2²⁴: a running sum would lose all but the first.
    values = [2.0**24, 1.0, 1.0, 2.0]
    folders = [checkpoint(tmp_path / str(i), w=torch.tensor([value])) for i, value in enumerate(values)]
    mean = average_checkpoints(folders)["w"]
    assert mean.dtype == torch.float32
    assert mean.item() == (2**24 + 4) / 4


def test_half_precision_and_counters_keep_their_type(tmp_path: Path) -> None:
    folders = [
        checkpoint(tmp_path / str(i), w=torch.full((2,), i, dtype=torch.bfloat16), seen=torch.tensor(10 + i))
        for i in range(2)
    ]
    mean = average_checkpoints(folders)
    assert mean["w"].dtype == torch.bfloat16
    assert mean["w"].tolist() == [0.5, 0.5]
    assert mean["seen"].item() == 11


def test_different_models_and_nothing_are_refused(tmp_path: Path) -> None:
    first = checkpoint(tmp_path / "a", w=torch.zeros(2))
    second = checkpoint(tmp_path / "b", w=torch.zeros(3))
    with pytest.raises(QkvError, match="different models"):
        average_checkpoints([first, second])
    with pytest.raises(QkvError, match="no checkpoint"):
        average_checkpoints([])


def test_the_moving_average_follows_its_recurrence_and_steps_aside() -> None:
    model = nn.BatchNorm1d(2)
    moving = MovingAverage(model, decay=0.75)
    expected = model.weight.detach().clone()
    for value in (2.0, -1.0):
        nn.init.constant_(model.weight, value)
        model.num_batches_tracked += 1
        moving.update()
        expected = 0.75 * expected + 0.25 * value
    torch.testing.assert_close(moving.tensors["weight"], expected)
    assert moving.tensors["num_batches_tracked"].item() == 2
    with moving.inside():
        assert torch.equal(model.weight, moving.tensors["weight"])
    assert model.weight.tolist() == [-1.0, -1.0]
