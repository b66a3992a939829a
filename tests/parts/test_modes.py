from torch import nn

from qkv.parts.modes import answering


def test_parts_learn_again_that_learned_before():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(), nn.Linear(2, 2))).train()
    model[1].eval()
    before = [part.training for part in model.modules()]
    with answering(model):
        assert not any(part.training for part in model.modules())
    assert [part.training for part in model.modules()] == before
    assert any(before)
    assert not all(before)
