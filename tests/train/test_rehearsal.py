"""Rehearsed steps: the model is as it was but for its programs, and a timed step is a real one."""

import torch
from torch import nn

from qkv.train.objectives import SequenceToSequenceLoss
from qkv.train.rehearsal import rehearse, step_speed
from qkv.train.settings import TrainSettings
from tests.train.tiny import TinyModel, make_batch

OBJECTIVE = SequenceToSequenceLoss(smoothing=0.0)
SETTINGS = TrainSettings(steps=1, device="cpu")


def copied(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_a_rehearsal_leaves_weights_and_gradients_alone() -> None:
    model = TinyModel()
    before = copied(model)
    rehearse(model, OBJECTIVE, make_batch(1), SETTINGS)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_timed_step_updates_and_counts() -> None:
    model = TinyModel()
    before = copied(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    found = step_speed(model, OBJECTIVE, make_batch(1), SETTINGS, optimizer)
    assert found.tokens_per_second > 0
    assert found.peak_memory is None  # on a CPU it cannot be told from what others hold
    assert not all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert next(iter(optimizer.state.values()))["step"] == 5
