"""A loss whose logits are made once and some at a time equals that of the head's own logits, gradients included."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import qkv.train.objectives.linear_cross_entropy as module
from qkv.parts.embed import TokenEmbedding
from qkv.parts.feedforward import gelu
from qkv.parts.heads import ENDS_IN_PRODUCT, LogitHead, MaskedHead, TiedHead
from qkv.parts.norm import LayerNorm
from qkv.train.objectives.cross_entropy import cross_entropy_of_states, smoothed_cross_entropy
from qkv.train.objectives.linear_cross_entropy import rows_at_once

WIDTH, VOCABULARY, ROWS = 6, 11, 20


def tied(bias: bool = False, scale: float = 1.0) -> nn.Module:
    return TiedHead(TokenEmbedding(VOCABULARY, WIDTH), bias, scale)


HEADS: dict[str, Callable[[], nn.Module]] = {
    "tied": tied,
    "tied, with a scale": lambda: tied(scale=0.3),
    "its own": lambda: LogitHead(WIDTH, VOCABULARY, bias=True, scale=0.7),
    "masked": lambda: MaskedHead(WIDTH, WIDTH, gelu, LayerNorm(WIDTH), tied(bias=True)),
}


def case(make: Callable[[], nn.Module]) -> tuple[nn.Module, list[Tensor], Tensor, Tensor, Tensor]:
    """A head, its parameters, states, wanted tokens, and which of them are real."""
    head = make()
    owned = [*head.parameters(), *(part._embedding[0].weight for part in head.modules() if isinstance(part, TiedHead))]
    for parameter in owned:
        nn.init.normal_(parameter)
        parameter.data = parameter.data.double()
    states = torch.randn(ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    return head, owned, states, torch.randint(0, VOCABULARY, (ROWS,)), torch.rand(ROWS) > 0.2


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("room", [1, 8 * 7 * VOCABULARY, 2**24])
@pytest.mark.parametrize("name", HEADS)
def test_equals_the_loss_of_logits(name: str, room: int, smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM_ON_CPU", room)
    head, owned, states, wanted, real = case(HEADS[name])
    assert isinstance(head, ENDS_IN_PRODUCT)
    total, likelihood = cross_entropy_of_states(head, states, wanted, real, smoothing, VOCABULARY)
    gradients = torch.autograd.grad(total * 0.37, [states, *owned])
    expected, expected_likelihood = smoothed_cross_entropy(head(states), wanted, real, smoothing)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(likelihood, expected_likelihood)
    assert not likelihood.requires_grad
    torch.testing.assert_close(gradients, torch.autograd.grad(expected * 0.37, [states, *owned]))
    with torch.no_grad():
        again, _ = cross_entropy_of_states(head, states, wanted, real, smoothing, VOCABULARY)
    torch.testing.assert_close(again, expected)
    assert not again.requires_grad


def test_states_that_are_not_real_may_hold_anything() -> None:
    head, (weight,), states, wanted, real = case(tied)
    spoiled = torch.where(real[:, None], states.detach(), torch.nan).requires_grad_()
    losses = [cross_entropy_of_states(head, each, wanted, real, 0.1, VOCABULARY)[0] for each in (spoiled, states)]
    assert losses[0].item() == losses[1].item()
    of_spoiled = torch.autograd.grad(losses[0], [spoiled, weight])
    of_states = torch.autograd.grad(losses[1], [states, weight])
    torch.testing.assert_close(of_spoiled, of_states, rtol=0, atol=0)
    assert of_spoiled[0][~real].abs().max() == 0


def test_a_gradient_is_computed_for_those_who_want_one() -> None:
    head, (weight,), states, wanted, real = case(tied)

    def products(at: list[Tensor]) -> int:
        for tensor in (states, weight):
            tensor.requires_grad_(any(tensor is each for each in at))
        with FlopCounterMode(display=False) as counter:
            cross_entropy_of_states(head, states, wanted, real, 0.0, VOCABULARY)
        return counter.get_total_flops() // (2 * ROWS * WIDTH * VOCABULARY)

    assert [products(at) for at in ([], [states], [weight], [states, weight])] == [1, 2, 2, 3]


def test_may_go_back_twice() -> None:
    head, (weight,), states, wanted, real = case(tied)
    total, _ = cross_entropy_of_states(head, states, wanted, real, 0.0, VOCABULARY)
    first = torch.autograd.grad(total, [states, weight], retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(total, [states, weight]), first, rtol=0, atol=0)


def test_no_rows_at_all() -> None:
    head, (weight,), states, wanted, real = case(tied)
    total, likelihood = cross_entropy_of_states(head, states[:0], wanted[:0], real[:0], 0.1, VOCABULARY)
    assert total.item() == likelihood.item() == 0
    assert torch.autograd.grad(total, weight)[0].abs().max() == 0


@pytest.mark.parametrize("room", [2 * 64 * VOCABULARY, 2**24])
def test_under_autocast(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in bfloat16 and all else in float32, as the head by itself would have it."""
    monkeypatch.setattr(module, "ROOM_ON_CPU", room)
    head = LogitHead(WIDTH, VOCABULARY, bias=True)
    states, wanted = torch.randn(300, WIDTH, requires_grad=True), torch.randint(0, VOCABULARY, (300,))
    real = torch.ones(300, dtype=torch.bool)
    inputs = [states, *head.parameters()]
    with torch.autocast("cpu", torch.bfloat16):
        total, likelihood = cross_entropy_of_states(head, states, wanted, real, 0.1, VOCABULARY)
        logits = head(states)
    expected, expected_likelihood = smoothed_cross_entropy(logits, wanted, real, 0.1)
    assert logits.dtype == torch.bfloat16
    assert total.dtype == torch.float32
    torch.testing.assert_close((total, likelihood), (expected, expected_likelihood))
    found, wide = torch.autograd.grad(total, inputs), torch.autograd.grad(expected, inputs)
    for one, other in zip(found, wide, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0, atol=0.02 * other.abs().max().item())


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [(32768, 50272, 16384), (33000, 50272, 16512), (1000, 32, 1000), (5, 2**30, 1), (0, 50272, 1)],
)
def test_turns_are_alike(rows: int, columns: int, expected: int) -> None:
    assert rows_at_once(rows, 2 * columns, torch.device("cuda")) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_rows_that_are_not_real_become_zeros_however_they_lie(dtype: torch.dtype) -> None:
    real = torch.tensor([True, False, True])
    numbers = torch.arange(1.0, 40.0).to(dtype)
    numbers[10] = torch.nan
    for x in (numbers[:24].view(3, 8), numbers[1:25].view(3, 8), numbers[:21].view(3, 7), numbers[:24].view(8, 3).T):
        kept = x.clone()
        found = module._without_others(x, real)
        assert torch.equal(found.nan_to_num(-1), kept.masked_fill(~real[:, None], 0).nan_to_num(-1))
        assert torch.equal(x.nan_to_num(-1), kept.nan_to_num(-1))


def eight_bits(device: str, width: int, vocabulary: int, rows: int) -> tuple[list[Tensor], list[Tensor]]:
    """The loss and gradients of states and matrix, with blocks in 8 bits and without."""
    found = []
    for marked in (True, False):
        torch.manual_seed(0)
        head = LogitHead(width, vocabulary).to(device)
        states = torch.randn(rows, width, device=device, requires_grad=True)
        wanted = torch.randint(0, vocabulary, (rows,), device=device)
        real = torch.arange(rows, device=device) % 7 > 0
        if marked:
            head.__dict__["in_eight_bits"] = True
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            total, _ = cross_entropy_of_states(head, states, wanted, real, 0.0, vocabulary)
        found.append([total.detach(), *torch.autograd.grad(total, [states, head.weight])])
    return found[0], found[1]


def check_eight_bits(found: list[Tensor], expected: list[Tensor]) -> None:
    (loss, of_states, of_matrix), (right, right_of_states, right_of_matrix) = found, expected
    torch.testing.assert_close(loss, right, rtol=1e-6, atol=0)
    torch.testing.assert_close(of_matrix, right_of_matrix, rtol=1e-3, atol=1e-5)
    assert 0.001 < (of_states - right_of_states).norm() / right_of_states.norm() < 0.06
    assert not of_states[::7].any()


def test_only_the_gradient_of_states_is_made_in_8_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM_ON_CPU", 8 * 7 * 40)
    check_eight_bits(*eight_bits("cpu", 16, 40, 50))


def test_a_width_that_products_in_8_bits_do_not_take_stays_wide() -> None:
    found, expected = eight_bits("cpu", 24, 40, 50)
    assert all(torch.equal(mine, right) for mine, right in zip(found, expected, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize(("vocabulary", "rows"), [(50257, 300), (1000, 129), (60_000, 64)])
def test_only_the_gradient_of_states_is_made_in_8_bits_on_a_gpu(
    vocabulary: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROOM_ON_GPU", 2 * 50272 * 128)
    check_eight_bits(*eight_bits("cuda", 64, vocabulary, rows))
