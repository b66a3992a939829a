"""Adafactor against its algorithms written out."""

import torch
from torch import Tensor

from qkv.train.optimizers import Adafactor, adafactor
from tests.train.optimizers.common import gradients, one_parameter, small_gpt2, stepped


def rms(tensor: Tensor) -> Tensor:
    return tensor.square().mean().sqrt()


def scaled(theta: Tensor, update: Tensor, rho: float) -> Tensor:
    clipped = update / max(1.0, float(rms(update)))  # d = 1
    return theta - max(1e-3, float(rms(theta))) * rho * clipped


def test_a_matrix_is_algorithm_four() -> None:
    model, given = one_parameter((4, 3)), gradients((4, 3), 6)
    theta = model.weight.detach().clone()
    rows, columns = torch.zeros(4, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    found = stepped(model, Adafactor(model.parameters(), lr=0.01), given)
    for step, gradient in enumerate(given, 1):
        beta = 1 - step**-0.8
        squares = gradient**2 + 1e-30
        rows = beta * rows + (1 - beta) * squares.sum(1)
        columns = beta * columns + (1 - beta) * squares.sum(0)
        variance = torch.outer(rows, columns) / rows.sum()
        theta = scaled(theta, gradient / variance.sqrt(), 0.01)
    torch.testing.assert_close(found, theta, rtol=1e-10, atol=1e-12)


def test_a_vector_is_algorithm_five() -> None:
    model, given = one_parameter((5,)), gradients((5,), 6)
    theta, variance = model.weight.detach().clone(), torch.zeros(5, dtype=torch.float64)
    found = stepped(model, Adafactor(model.parameters(), lr=0.01), given)
    for step, gradient in enumerate(given, 1):
        beta = 1 - step**-0.8
        variance = beta * variance + (1 - beta) * (gradient**2 + 1e-30)
        theta = scaled(theta, gradient / variance.sqrt(), 0.01)
    torch.testing.assert_close(found, theta, rtol=1e-10, atol=1e-12)


def test_it_keeps_rows_and_columns_alone() -> None:
    model = small_gpt2()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = adafactor(model)
    optimizer.step()
    for parameter, state in optimizer.state.items():
        kept = sum(value.numel() for value in state.values() if torch.is_tensor(value))
        assert kept == (sum(parameter.shape) if parameter.ndim == 2 else parameter.numel())


def test_what_is_a_single_number_or_zero_learns_too() -> None:
    model, alone = one_parameter((5,)), one_parameter(())
    with torch.no_grad():
        model.weight.zero_()
    assert stepped(model, Adafactor(model.parameters()), gradients((5,), 1)).abs().min() > 0
    before = alone.weight.item()
    assert stepped(alone, Adafactor(alone.parameters()), gradients((), 2)).item() != before


def test_decay_is_taken_from_the_weights() -> None:
    plain, decaying = one_parameter((4, 3)), one_parameter((4, 3))
    given = gradients((4, 3), 1)
    difference = stepped(plain, Adafactor(plain.parameters()), given) - stepped(
        decaying, Adafactor(decaying.parameters(), weight_decay=0.5), given
    )
    torch.testing.assert_close(difference, one_parameter((4, 3)).weight.detach() * 0.01 * 0.5)
