"""What changes from update to update besides the rate."""

from itertools import pairwise

import pytest
import torch

from qkv.errors import QkvError
from qkv.train.adjust import FallingTemperature, HeadFirst
from tests.models.small_sounds import new_sound


def test_the_temperature_falls_to_its_end() -> None:
    model, falls = new_sound("base", "pretraining"), FallingTemperature()
    falls(model, 1, 0.0)
    assert model.head.quantiser.temperature == 2.0
    falls(model, 200_000, 0.5)
    assert model.head.quantiser.temperature == pytest.approx(2 * 0.999995**200_000, rel=0.02)  # the paper's factor
    falls(model, 400_000, 0.9)
    assert model.head.quantiser.temperature == 0.5
    steps = [falls.at(share / 100) for share in range(70)]
    assert all(later / earlier == pytest.approx(steps[1] / 2.0) for earlier, later in pairwise(steps))


@pytest.mark.parametrize(("first", "last", "share"), [(0.5, 2.0, 0.7), (2.0, 0.0, 0.7), (2.0, 0.5, 0.0)])
def test_a_temperature_that_does_not_fall_is_refused(first: float, last: float, share: float) -> None:
    with pytest.raises(QkvError, match="falls from"):
        FallingTemperature(first, last, share)


def test_the_head_learns_first() -> None:
    model = new_sound("base", "ctc").train()
    model.frames.requires_grad_(False)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    waits = HeadFirst(2)
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    moved: list[set[str]] = []
    for step in (1, 2, 3):
        waits(model, step, 0.0)
        model(torch.randn(2, 300)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        now = dict(model.named_parameters())
        moved.append({name.split(".")[0] for name, old in before.items() if not torch.equal(old, now[name])})
    assert moved == [{"head"}, {"head"}, {"head", "embed", "stack"}]  # and never what was frozen before
    with pytest.raises(QkvError, match="0 updates or more"):
        HeadFirst(-1)
