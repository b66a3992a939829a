"""Random features against the products they stand for, the papers' means and errors, and sums made token by token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels import random_features
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.random_features import (
    PositiveFeatures,
    RandomFeatureKernel,
    WaveFeatures,
    gated_prefix_attention,
    orthogonal_directions,
    prefix_attention,
)
from qkv.parts.attention.visibility import Causal, Everything, Mask, NotPadding, Tokens, Window
from qkv.parts.context import Context
from tests.parts.attention.kernels.compare import inputs

CLOSE = {"atol": 2e-5, "rtol": 1e-4}


def weighed(kernel: RandomFeatureKernel, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    """The same attention with its table formed: weights φ(q)·φ(k) over what is seen, made to sum to 1."""
    root = scale**0.5
    table = kernel.features.queries(q * root) @ kernel.features.keys(k * root, None).transpose(-1, -2)
    table = table * seen
    return table / table.sum(-1, keepdim=True) @ v


@pytest.mark.parametrize("size", [1, 2, 9, 64, 300])
@pytest.mark.parametrize("kind", ["positive", "waves"])
@pytest.mark.parametrize("rule", [Everything(), Causal()])
def test_sums_made_once_equal_the_table(rule: Everything | Causal, kind: str, size: int) -> None:
    given = inputs(size, size)
    kernel = RandomFeatureKernel(PositiveFeatures(32, 8) if kind == "positive" else WaveFeatures(32, 8, 4))
    mask = Mask(rule, Tokens(size), Tokens(size), "cpu")
    found = kernel(given.q, given.k, given.v, mask, scale=0.1)
    torch.testing.assert_close(found, weighed(kernel, given.q, given.k, given.v, mask.dense, 0.1), atol=2e-4, rtol=1e-3)


def test_padding_counts_for_nothing() -> None:
    given, kernel = inputs(9, 9), RandomFeatureKernel(PositiveFeatures(64, 8))
    tokens = Tokens.padded(torch.tensor([9, 4, 0]), 9)
    found = kernel(given.q, given.k, given.v, Mask(NotPadding(), tokens, tokens, "cpu"))
    alone = kernel(
        given.q[1:2], given.k[1:2, :, :4], given.v[1:2, :, :4], Mask(Everything(), Tokens(9), Tokens(4), "cpu")
    )
    torch.testing.assert_close(found[1:2], alone, **CLOSE)
    assert (found[2] == 0).all()


def test_no_token_feels_a_later_one() -> None:
    given, kernel = inputs(200, 200), RandomFeatureKernel(PositiveFeatures(64, 8))
    mask = Mask(Causal(), Tokens(200), Tokens(200), "cpu")
    found = kernel(given.q, given.k, given.v, mask)
    given.k[:, :, 150:] *= 3.0
    given.v[:, :, 150:] += 1.0
    changed = kernel(given.q, given.k, given.v, mask)
    torch.testing.assert_close(found[:, :, :150], changed[:, :, :150], **CLOSE)
    assert not torch.allclose(found[:, :, 150:], changed[:, :, 150:], atol=0.1)


def test_a_cached_step_is_the_last_row() -> None:
    given, kernel = inputs(50, 50), RandomFeatureKernel(PositiveFeatures(64, 8))
    whole = kernel(given.q, given.k, given.v, Mask(Causal(), Tokens(50), Tokens(50), "cpu"))
    step = kernel(given.q[:, :, 49:], given.k, given.v, Mask(Causal(), Tokens(1, 49), Tokens(50), "cpu"))
    torch.testing.assert_close(step, whole[:, :, 49:], **CLOSE)


def test_directions_are_orthogonal_and_as_long_as_gaussian_ones() -> None:
    drawn = orthogonal_directions(16, 8)
    for block in drawn.split(8):
        unit = block / block.norm(dim=1, keepdim=True)
        torch.testing.assert_close(unit @ unit.T, torch.eye(8), atol=1e-5, rtol=0)
    long = orthogonal_directions(4096, 8)
    assert abs(float(long.square().sum(1).mean()) - 8) < 6 * (2 * 8 / 4096) ** 0.5  # six standard errors of a χ²'s mean


def errors(draw: object, q: Tensor, k: Tensor, times: int, features: int) -> tuple[float, float, float]:
    """(mean, its standard error, mean squared error) of φ(q)·φ(k) over so many draws of directions."""
    products = []
    for _ in range(times):
        w = draw(features, len(q))  # type: ignore[operator]
        phi = [(x @ w.T - x.square().sum() / 2).exp() / features**0.5 for x in (q, k)]
        products.append(phi[0] @ phi[1])
    found = torch.stack(products)
    return float(found.mean()), float(found.std()) / times**0.5, float((found - (q @ k).exp()).square().mean())


def test_the_mean_and_the_error_are_those_of_the_paper() -> None:
    """[choromanski2021 lemma 2]: MSE = exp(|q+k|²) exp(q·k)² (1 - exp(-|q+k|²)) / m, less if orthogonal."""
    torch.manual_seed(0)
    q, k = 0.5 * torch.randn(8), 0.5 * torch.randn(8)
    together = float((q + k).square().sum())
    expected = float((q @ k).exp()) ** 2 * (torch.tensor(together).exp().item() - 1) / 32
    mean, spread, error = errors(torch.randn, q, k, 4000, 32)
    assert abs(mean - float((q @ k).exp())) < 5 * spread
    assert 0.7 < error / expected < 1.4
    mean, spread, orthogonal = errors(orthogonal_directions, q, k, 4000, 32)
    assert abs(mean - float((q @ k).exp())) < 5 * spread
    assert orthogonal < error


def test_more_features_come_nearer_to_exact_attention() -> None:
    torch.manual_seed(0)
    given = inputs(32, 32)
    q, k, v = (
        given.q / 2,
        given.k / 2,
        given.v,
    )  # large vectors need many more features: the error grows with exp(|q+k|²)
    expected = exact(q, k, v)
    misses = [
        float((RandomFeatureKernel(PositiveFeatures(m, 8))(q, k, v) - expected).square().mean())
        for m in (16, 256, 4096)
    ]
    assert misses[0] > 3 * misses[1] > 9 * misses[2]


def test_waves_have_the_mean_of_a_gaussian_of_the_distance() -> None:
    """[peng2021 eq.3]"""
    torch.manual_seed(0)
    features = WaveFeatures(4096, 8, 1)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    product = float((features.queries(q) * features.keys(k, None)).sum().detach())
    unit = [x / x.norm() for x in (q, k)]
    assert abs(product - float((-(unit[0] - unit[1]).square().sum() / 2).exp())) < 0.05


@pytest.mark.parametrize("size", [1, 5, 40])
def test_chunks_change_nothing(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    queries, keys, values = torch.rand(2, 3, size, 4), torch.rand(2, 3, size, 4), torch.randn(2, 3, size, 5)
    gates = torch.rand(2, 3, size)
    state, gated, plain = torch.zeros(2, 3, 4, 5), [], []
    total = torch.zeros(2, 3, 4, 5)
    for slot in range(size):  # token by token, as the papers write it
        outer = keys[:, :, slot, :, None] * values[:, :, slot, None]
        g = gates[:, :, slot, None, None]
        state, total = g * state + (1 - g) * outer, total + outer
        gated.append((queries[:, :, slot, None] @ state)[:, :, 0])
        plain.append((queries[:, :, slot, None] @ total)[:, :, 0])
    for chunk in (3, 16, 128):
        monkeypatch.setattr(random_features, "CHUNK", chunk)
        found = gated_prefix_attention(queries, keys, values, gates)
        torch.testing.assert_close(found, torch.stack(gated, 2), **CLOSE)
        torch.testing.assert_close(prefix_attention(queries, keys, values), torch.stack(plain, 2), **CLOSE)


def test_directions_are_drawn_anew_while_training_only() -> None:
    features = PositiveFeatures(16, 8, redraw_every=3)
    first, x = features.directions.clone(), torch.randn(1, 1, 2, 8)
    features.eval()
    for _ in range(4):
        features.queries(x)
    assert torch.equal(features.directions, first)
    features.train()
    for _ in range(2):
        features.queries(x)
    assert torch.equal(features.directions, first)
    features.queries(x)
    assert not torch.equal(features.directions, first)


def test_it_stands_in_an_attention_and_learns() -> None:
    mixer = Attention(
        32, 4, key_value_heads=2, visibility=Causal(), kernel=RandomFeatureKernel(PositiveFeatures(64, 8))
    )
    y = mixer(torch.randn(2, 20, 32), Context(tokens=Tokens(20)))
    y.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in mixer.parameters())


def test_what_it_cannot_do_it_says() -> None:
    given, kernel = inputs(4, 4), RandomFeatureKernel(PositiveFeatures(16, 8))
    with pytest.raises(QkvError, match="Window"):
        kernel(given.q, given.k, given.v, Mask(Causal() & Window(2), Tokens(4), Tokens(4), "cpu"))
    with pytest.raises(QkvError, match="bias"):
        kernel(given.q, given.k, given.v, bias=torch.zeros(1, 4, 4, 4))
    with pytest.raises(QkvError, match="no dropout"):
        kernel(given.q, given.k, given.v, dropout=0.1)
    with pytest.raises(QkvError, match="even number"):
        WaveFeatures(15, 8, 4)
