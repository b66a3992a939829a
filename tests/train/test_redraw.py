"""Random directions in training: drawn anew when due, kept by checkpoints, never averaged, resumed bit for bit."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.files import read_tensors, write_tensors
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels.random_features import PositiveFeatures, RandomFeatureKernel
from qkv.parts.attention.visibility import Causal, Tokens
from qkv.parts.context import Context
from qkv.train.average import MovingAverage, average_checkpoints
from tests.train.tiny import TinyModel, open_run, train_tiny

NAME = "attention.kernel.features.directions"


class TinyPerformer(TinyModel):
    def __init__(self, seed: int = 0, redraw_every: int | None = 3) -> None:
        super().__init__(seed)
        kernel = RandomFeatureKernel(PositiveFeatures(8, 4, redraw_every=redraw_every))
        self.attention = Attention(8, 2, visibility=Causal(), kernel=kernel)

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        x = self.embedding(target)
        x = x + self.attention(x, Context(tokens=Tokens(target.shape[1])))
        summary = self.embedding(source).mean(1, keepdim=True).expand_as(x)
        return self.out(self.dropout(self.norm(self.mix(torch.cat([x, summary], -1)))))


def directions(folder: Path, step: int) -> Tensor:
    return read_tensors(folder / "checkpoints" / f"step-{step:08}" / "model.safetensors")[NAME]


def test_a_draw_serves_so_many_updates_whatever_their_batches(tmp_path: Path) -> None:
    train_tiny(tmp_path / "run", model=TinyPerformer(), steps=7, save_every=1, keep=10, accumulate=2)
    drawn = [directions(tmp_path / "run", step) for step in range(1, 8)]
    same = [torch.equal(a, b) for a, b in pairwise(drawn)]
    assert same == [True, True, False, True, True, False]


@pytest.mark.parametrize("stop", [2, 3, 4])
def test_a_resumed_run_draws_what_an_unbroken_one_draws(tmp_path: Path, stop: int) -> None:
    straight = train_tiny(tmp_path / "straight", model=TinyPerformer(), steps=8, ema=0.9)
    train_tiny(tmp_path / "parts", model=TinyPerformer(), steps=stop, ema=0.9)
    torch.manual_seed(12345)
    resumed = train_tiny(tmp_path / "parts", model=TinyPerformer(99), steps=8, ema=0.9, run={"resume": True})
    for name, tensor in straight[1].state_dict().items():
        assert torch.equal(tensor, resumed[1].state_dict()[name]), name


@pytest.mark.parametrize("how", [{"ema": 0.5}, {"average": 3, "save_every": 1}], ids=["moving", "of checkpoints"])
def test_draws_are_not_averaged(tmp_path: Path, how: dict[str, Any]) -> None:
    _, model, _ = train_tiny(tmp_path / "run", model=TinyPerformer(redraw_every=1), steps=5, **how)
    assert torch.equal(model.state_dict()[NAME], directions(tmp_path / "run", 5))
    newest = read_tensors(open_run(tmp_path / "run", resume=True).checkpoints.path(5) / "model.safetensors")
    assert not torch.equal(model.state_dict()["mix.weight"], newest["mix.weight"])


def test_averages_leave_drawn_tensors_alone(tmp_path: Path) -> None:
    model = TinyPerformer()
    moving = MovingAverage(model, decay=0.5)
    features = model.attention.kernel.features  # type: ignore[union-attr]
    features.redraw()
    moving.update()
    assert torch.equal(moving.tensors[NAME], features.directions)
    folders = [tmp_path / "a", tmp_path / "b"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        write_tensors(folder / "model.safetensors", {"w": torch.full((2,), float(number)), "d": torch.ones(2) * number})
    mean = average_checkpoints(folders, {"d"})
    assert (mean["w"].tolist(), mean["d"].tolist()) == ([0.5, 0.5], [1.0, 1.0])
