"""Feed-forward against its formulas."""

import math

import pytest
import torch
from torch import Tensor, nn

from qkv.parts.feedforward import MLP, Activation, ChunkedMLP, GatedMLP, gelu, gelu_tanh, relu, silu

WIDTH, HIDDEN = 5, 7
POINTS = torch.linspace(-6, 6, 101, dtype=torch.float64)


def by_formula(formula: object) -> Tensor:
    return torch.tensor([formula(x) for x in POINTS.tolist()], dtype=torch.float64)


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        (relu, lambda x: max(x, 0.0)),
        (silu, lambda x: x / (1 + math.exp(-x))),
        (gelu, lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2)))),
        (gelu_tanh, lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    ],
    ids=["relu", "silu", "gelu", "gelu_tanh"],
)
def test_activations_are_their_formulas(activation: Activation, formula: object) -> None:
    torch.testing.assert_close(activation(POINTS), by_formula(formula))


def test_what_is_compiled_of_an_activation_is_the_same_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its values, and their slopes."""
    points = torch.cat([POINTS, torch.tensor([-1e4, -30.0, 30.0, 1e4], dtype=torch.float64)]).requires_grad_()
    expected = gelu_tanh(points)
    slopes = torch.autograd.grad(expected.sum(), points)[0]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    found = gelu_tanh(points)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), points)[0], slopes)
    narrow = POINTS.bfloat16()
    assert gelu_tanh(narrow).dtype is torch.bfloat16
    torch.testing.assert_close(gelu_tanh(narrow), nn.functional.gelu(narrow, approximate="tanh"), rtol=0.01, atol=1e-5)


@pytest.mark.parametrize("activation", [relu, gelu, gelu_tanh, silu])
def test_a_feed_forward_is_two_maps_and_an_activation(activation: Activation) -> None:
    mixer, x = MLP(WIDTH, HIDDEN, activation), torch.randn(2, 3, WIDTH)
    for parameter in mixer.parameters():
        nn.init.normal_(parameter)
    inner, outer = mixer.inner, mixer.outer
    expected = activation(x @ inner.weight.T + inner.bias) @ outer.weight.T + outer.bias
    torch.testing.assert_close(mixer(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", [silu, gelu, relu], ids=["SwiGLU", "GEGLU", "ReGLU"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_gated_feed_forward_multiplies_a_gate_and_a_value(activation: Activation, bias: bool) -> None:
    mixer, x = GatedMLP(WIDTH, HIDDEN, activation, bias=bias), torch.randn(2, 3, WIDTH)
    for parameter in mixer.parameters():
        nn.init.normal_(parameter)
    state = mixer.state_dict()

    def part(name: str) -> Tensor:
        return x @ state[f"inner.{name}.weight"].T + (state[f"inner.{name}.bias"] if bias else 0)

    expected = (activation(part("gate")) * part("value")) @ state["outer.weight"].T
    expected = expected + (state["outer.bias"] if bias else 0)
    torch.testing.assert_close(mixer(x), expected, atol=1e-5, rtol=1e-5)
    assert len(state) == (6 if bias else 3)


@pytest.mark.parametrize("kind", [MLP, GatedMLP])
def test_dropout_falls_on_hidden_units_in_training_alone(kind: type[MLP] | type[GatedMLP]) -> None:
    """A dropped unit is zero and a kept one doubled, so the answer stays in the span the outer map makes of those."""
    mixer, x = kind(WIDTH, HIDDEN, dropout=0.5), torch.randn(2, 3, WIDTH)
    seen: list[Tensor] = []
    mixer.outer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    mixer.eval()(x)
    mixer.train()(x)
    calm, dropped = seen
    zero = dropped == 0
    assert zero.any()
    assert (dropped[~zero] != 0).any()
    torch.testing.assert_close(dropped[~zero], 2 * calm[~zero])


@pytest.mark.parametrize("kind", [MLP, GatedMLP])
def test_each_token_is_treated_on_its_own(kind: type[MLP] | type[GatedMLP]) -> None:
    mixer, x = kind(WIDTH, HIDDEN), torch.randn(1, 4, WIDTH)
    torch.testing.assert_close(mixer(x)[:, 2], mixer(x[:, 2:3])[:, 0])


@pytest.mark.parametrize("chunk", [1, 3, 7, 9])
def test_in_chunks_it_is_the_same(chunk: int) -> None:
    whole, chunked = MLP(WIDTH, HIDDEN, gelu), ChunkedMLP(WIDTH, HIDDEN, gelu, chunk=chunk)
    chunked.load_state_dict(whole.state_dict())
    most = 0

    def remember(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        nonlocal most
        most = max(most, given[0].shape[1])

    chunked.inner.register_forward_pre_hook(remember)
    x = torch.randn(2, 7, WIDTH)
    torch.testing.assert_close(chunked(x), whole(x))
    assert most == min(chunk, 7)
