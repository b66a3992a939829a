"""Random features against the products they stand for, the papers' means and errors, and sums made token by token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels import prefix_sums as sums_of_chunks
from qkv.parts.attention.kernels import random_features
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.exponentials import exponentials
from qkv.parts.attention.kernels.prefix_sums import fading_sums, prefix_sums
from qkv.parts.attention.kernels.random_features import (
    PositiveFeatures,
    RandomDirections,
    RandomFeatureKernel,
    WaveFeatures,
    drawn_names,
    orthogonal_directions,
    redraw_directions,
)
from qkv.parts.attention.visibility import Causal, Everything, Mask, NotPadding, Tokens, Window
from qkv.parts.context import Context
from tests.parts.attention.kernels.compare import inputs

CLOSE = {"atol": 2e-5, "rtol": 1e-4}


def whole(features: RandomDirections, x: Tensor, scale: float) -> Tensor:
    """Features with nothing taken out. [b h n m]"""
    made, size = features(x, scale)
    return made if size is None else made * size.exp()


def weighed(kernel: RandomFeatureKernel, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    """The same attention with its table formed: weights φ(q)·φ(k) over what is seen, made to sum to 1."""
    table = whole(kernel.features, q, scale) @ whole(kernel.features, k, scale).transpose(-1, -2)
    table = table * seen
    below = table.sum(-1, keepdim=True)
    return table @ v / torch.maximum(below, kernel.features.least * seen.sum(-1, keepdim=True))


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
    product = float((whole(features, q, 1.0) * whole(features, k, 1.0)).sum().detach())
    unit = [x / x.norm() for x in (q, k)]
    assert abs(product - float((-(unit[0] - unit[1]).square().sum() / 2).exp())) < 0.05


def token_by_token(queries: Tensor, keys: Tensor, values: Tensor, gates: Tensor | None, state: Tensor) -> list[Tensor]:
    """What is read with each token and the sums after the last, as the papers write it."""
    read = []
    for slot in range(queries.shape[2]):
        outer = keys[:, :, slot, :, None] * values[:, :, slot, None]
        g = None if gates is None else gates[:, :, slot, None, None]
        state = state + outer if g is None else g * state + (1 - g) * outer
        read.append((queries[:, :, slot, None] @ state)[:, :, 0])
    return [torch.stack(read, 2), state]


@pytest.mark.parametrize("fades", [False, True], ids=["plain", "fading"])
@pytest.mark.parametrize("begun", [False, True], ids=["from nothing", "from sums"])
@pytest.mark.parametrize("size", [1, 5, 40])
def test_chunks_change_nothing(size: int, begun: bool, fades: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and back."""
    wide = {"dtype": torch.float64}
    given = [torch.rand(2, 3, size, 4, **wide), torch.rand(2, 3, size, 4, **wide), torch.randn(2, 3, size, 5, **wide)]
    gates = [torch.rand(2, 3, size, **wide)] if fades else []
    before = [torch.randn(2, 3, 4, 5, **wide)] if begun else []
    inputs = [x.requires_grad_() for x in (*given, *gates, *before)]
    pulls = torch.randn(2, 3, size, 5, **wide), torch.randn(2, 3, 4, 5, **wide)
    expected = token_by_token(*given, gates[0] if fades else None, before[0] if begun else torch.zeros(2, 3, 4, 5))
    gradients = torch.autograd.grad(expected, inputs, pulls)
    for chunk in (3, 16, 128):
        monkeypatch.setattr(sums_of_chunks, "CHUNK", chunk)
        found = (fading_sums if fades else prefix_sums)(*given, *gates, *before)
        torch.testing.assert_close(list(found), expected)
        torch.testing.assert_close(torch.autograd.grad(found, inputs, pulls), gradients)


@pytest.mark.parametrize("kind", ["positive", "waves"])
@pytest.mark.parametrize("rule", [NotPadding(), Causal() & NotPadding()])
def test_segments_change_nothing(rule: NotPadding, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and back, with large exponents in the last segment and a row that ends in the first."""
    given = inputs(300, 300)
    kernel = RandomFeatureKernel(PositiveFeatures(32, 8) if kind == "positive" else WaveFeatures(32, 8, 4)).double()
    tokens = Tokens.padded(torch.tensor([300, 100, 299]), 300)
    q, k, v = (x.double() for x in (given.q, given.k, given.v))
    k[:, :, 290:] *= 6.0
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    answers = []
    for segment in (random_features.SEGMENT, 1):
        monkeypatch.setattr(random_features, "SEGMENT", segment)
        o = kernel(q, k, v, Mask(rule, tokens, tokens, "cpu"))
        answers.append([o, *torch.autograd.grad(o.square().sum(), (q, k, v, *kernel.parameters()))])
    torch.testing.assert_close(*answers)


def test_gradients_are_those_of_the_table() -> None:
    given, mask = inputs(40, 40), Mask(Causal(), Tokens(40), Tokens(40), "cpu")
    kernel = RandomFeatureKernel(PositiveFeatures(32, 8)).double()
    q, k, v = (x.double().requires_grad_() for x in (given.q, given.k, given.v))
    answers = kernel(q, k, v, mask, scale=0.3), weighed(kernel, q, k, v, mask.dense, 0.3)
    gradients = [torch.autograd.grad(o, (q, k, v), given.pull.double()) for o in answers]
    torch.testing.assert_close(*gradients)


def test_no_table_and_no_features_wait_for_the_backward_pass() -> None:
    """What autograd keeps for a row of n tokens is in proportion to queries, keys and values, not to m features."""
    kernel = RandomFeatureKernel(PositiveFeatures(256, 8))
    q, k, v = (torch.randn(1, 1, 512, 8, requires_grad=True) for _ in range(3))
    kept: list[int] = []

    def note(x: Tensor) -> Tensor:
        kept.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        kernel(q, k, v, Mask(Causal(), Tokens(512), Tokens(512), "cpu"))
    assert max(kept, default=0) <= 512 * 8


def test_exponents_are_never_rounded_to_bfloat16() -> None:
    """Where neighbours of its numbers are 0.25 apart, exponentials would be wrong by more than a tenth."""
    x, w = (torch.randn(20, 64) * 4).bfloat16(), torch.randn(32, 64).bfloat16()
    made, largest = exponentials(x, w)
    expected, size = exponentials(x.double(), w.double())
    torch.testing.assert_close(made.double(), expected, atol=1e-6, rtol=0.005)
    torch.testing.assert_close(largest.double(), size, atol=1e-3, rtol=0.0)


def test_directions_are_drawn_anew_when_they_are_due() -> None:
    model = torch.nn.Sequential(PositiveFeatures(16, 8, redraw_every=3), PositiveFeatures(16, 8), WaveFeatures(8, 8, 2))
    first = [x.clone() for x in model.buffers()]
    for updates in (0, 1, 2):
        redraw_directions(model, updates)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), first, strict=True))
    redraw_directions(model, 3)
    assert [torch.equal(a, b) for a, b in zip(model.buffers(), first, strict=True)] == [False, True, True]
    waves = WaveFeatures(8, 8, 2, redraw_every=1)
    before = waves.directions.clone()
    redraw_directions(waves, 1)
    assert not (waves.directions == before).any()
    assert drawn_names(model) == {"0.directions", "1.directions", "2.directions"}
    with pytest.raises(QkvError, match="1 update or more"):
        PositiveFeatures(16, 8, redraw_every=0)


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
