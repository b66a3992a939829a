"""Adam against its algorithm written out, and the rule for who decays."""

import pytest
import torch
from torch import nn

from qkv.errors import QkvError
from qkv.parts.embed import TokenEmbedding
from qkv.train.optimizers import adam, adamw, decay_everything, decay_groups
from tests.train.tiny import TinyModel


def one_parameter(value: list[float]) -> nn.Module:
    model = nn.Module()
    model.weight = nn.Parameter(torch.tensor(value))
    return model


def test_adam_is_algorithm_one() -> None:
    model = one_parameter([1.0, -2.0, 3.0])
    optimizer = adam(model, learning_rate=0.01, betas=(0.9, 0.98), epsilon=1e-9)
    theta = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    first, second = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for step in range(1, 6):
        gradient = torch.randn(3)
        model.weight.grad = gradient.clone()
        optimizer.step()
        first = 0.9 * first + 0.1 * gradient
        second = 0.98 * second + 0.02 * gradient**2
        theta -= 0.01 * (first / (1 - 0.9**step)) / ((second / (1 - 0.98**step)).sqrt() + 1e-9)
    torch.testing.assert_close(model.weight.detach().double(), theta, rtol=1e-5, atol=1e-6)


def test_adamw_takes_decay_from_the_weight_and_not_from_the_gradient() -> None:
    model = one_parameter([1.0, -2.0])
    optimizer = adamw(model, learning_rate=0.1, weight_decay=0.5, decays=decay_everything)
    model.weight.grad = torch.zeros(2)
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), torch.tensor([0.95, -1.9]))


def names_by_decay(model: nn.Module, groups: list[dict[str, object]]) -> dict[float, set[str]]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {group["weight_decay"]: {names[parameter] for parameter in group["params"]} for group in groups}


def test_matrices_decay_and_biases_norms_and_tables_do_not() -> None:
    model = nn.Sequential(TinyModel(), TokenEmbedding(5, 4))
    assert names_by_decay(model, decay_groups(model, 0.1)) == {
        0.1: {"0.mix.weight"},
        0.0: {"0.embedding.weight", "0.mix.bias", "0.norm.weight", "0.norm.bias", "1.weight"},
    }


def test_another_rule_can_be_passed() -> None:
    model = TinyModel()
    groups = decay_groups(model, 0.1, decays=lambda module, name, parameter: isinstance(module, nn.LayerNorm))
    assert names_by_decay(model, groups)[0.1] == {"norm.weight", "norm.bias"}
    (only,) = decay_groups(model, 0.1, decay_everything)
    assert len(only["params"]) == len(list(model.parameters()))


def test_a_frozen_parameter_is_left_out_and_a_frozen_model_refused() -> None:
    model = TinyModel()
    model.mix.requires_grad_(False)
    assert len(adam(model).param_groups[0]["params"]) == 3
    with pytest.raises(QkvError, match="no trainable parameter"):
        adamw(model.requires_grad_(False))


def test_the_fused_kernel_is_used_where_there_is_one() -> None:
    assert adam(TinyModel()).param_groups[0]["fused"]
    assert not adam(TinyModel().to("meta")).param_groups[0]["fused"]
