import pytest
from torch import nn

from qkv.errors import QkvError
from qkv.train.adapt.backbone import BackboneRate
from qkv.train.optimizers import adamw


class Above(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Linear(2, 3), nn.Linear(3, 4)


def test_what_lies_below_learns_more_slowly():
    model = Above()
    optimizer = adamw(model, learning_rate=1e-2, weight_decay=0.1, rates=BackboneRate(0.1))
    rates = {parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        assert rates[parameter] == pytest.approx(1e-3 if name.startswith("backbone") else 1e-2)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(QkvError, match="above 0"):
        BackboneRate(0.0)
    with pytest.raises(QkvError, match="Linear has no backbone"):
        adamw(nn.Linear(2, 2), rates=BackboneRate())
