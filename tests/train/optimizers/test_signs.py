"""Lion against its algorithm written out."""

import torch

from qkv.train.optimizers import Lion, lion
from tests.train.optimizers.common import gradients, one_parameter, small_gpt2, stepped


def test_lion_is_algorithm_two() -> None:
    model, given = one_parameter((3, 4)), gradients((3, 4), 6)
    theta, momentum = model.weight.detach().clone(), torch.zeros(3, 4, dtype=torch.float64)
    found = stepped(model, Lion(model.parameters(), lr=0.01, betas=(0.9, 0.99), weight_decay=0.3), given)
    for gradient in given:
        update = torch.sign(0.9 * momentum + 0.1 * gradient)
        theta = theta - 0.01 * (update + 0.3 * theta)
        momentum = 0.99 * momentum + 0.01 * gradient
    torch.testing.assert_close(found, theta, rtol=1e-12, atol=1e-12)


def test_every_weight_moves_by_the_rate() -> None:
    model = small_gpt2()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    lion(model, learning_rate=1e-3, weight_decay=0.0).step()
    for one, other in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close((one - other).abs(), torch.full_like(one, 1e-3), rtol=1e-3, atol=0)
