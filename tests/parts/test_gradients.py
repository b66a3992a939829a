import torch

from qkv.parts.gradients import scale_gradient
from qkv.parts.sound_heads import ContrastiveHead
from tests.models.small_sounds import new_sound


def test_the_value_stays_and_the_gradient_shrinks() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    weights = torch.randn(3, 4)
    y = scale_gradient(x * 2, 0.1)
    assert torch.equal(y, x * 2)
    (y * weights).sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, 0.2 * weights)
    assert scale_gradient(x, 1.0) is x


def test_convolutions_learn_more_slowly_than_what_is_above_them() -> None:
    model = new_sound("base", "pretraining")
    assert isinstance(model.head, ContrastiveHead)
    waves = torch.randn(2, 400)

    def gradients() -> tuple[torch.Tensor, torch.Tensor]:
        model.zero_grad()
        compared = model(waves)
        (compared.predicted.square().sum() + compared.wanted.square().sum()).backward()
        found = [model.frames.layers[0].convolution.weight.grad, model.embed.project.weight.grad]
        assert all(each is not None for each in found)
        return found[0].clone(), found[1].clone()

    full = gradients()
    model.frames.gradient_share = 0.1
    some = gradients()
    assert torch.allclose(some[0], 0.1 * full[0], rtol=1e-4, atol=1e-6)
    assert torch.equal(some[1], full[1])
