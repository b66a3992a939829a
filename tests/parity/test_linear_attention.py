"""Random features and Linformer against published packages: see `fixtures/make_linear_attention.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels.linformer import LinformerKernel, RowProjection
from qkv.parts.attention.kernels.random_features import PositiveFeatures, RandomFeatureKernel
from qkv.parts.attention.visibility import Causal, Everything, Mask, Rule, Tokens
from qkv.parts.context import Context
from tests.parity.fixtures.make_linear_attention import CHANNELS, FEATURES, HEADS, LENGTH, PROJECTED, WIDTH

WRITTEN = load_file(Path(__file__).parent / "fixtures" / "linear_attention.safetensors")
CLOSE = {"atol": 2e-5, "rtol": 2e-5}  # they are kept in float32


def fixture(prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}."): t for name, t in WRITTEN.items() if name.startswith(f"{prefix}.")}


def features(given: dict[str, Tensor]) -> PositiveFeatures:
    made = PositiveFeatures(FEATURES, WIDTH)
    made.directions.copy_(given["directions"])
    return made.double()


@pytest.mark.parametrize(("x", "made", "over"), [("q", "queries", (-1,)), ("k", "keys", (-1, -2))])
def test_features_are_those_of_performer_pytorch(x: str, made: str, over: tuple[int, ...]) -> None:
    """But for a factor: of each query, or of all keys of a head."""
    given = fixture("performer")
    found, size = features(given)(given[x].double(), WIDTH**-0.5)
    found, theirs = found * size.exp(), given[made].double()
    torch.testing.assert_close(found / found.sum(over, keepdim=True), theirs / theirs.sum(over, keepdim=True), **CLOSE)


@pytest.mark.parametrize(("way", "rule"), [("both", Everything()), ("causal", Causal())])
def test_attention_and_gradients_are_those_of_performer_pytorch(way: str, rule: Rule) -> None:
    given = fixture("performer")
    q, k, v = (given[name].double().requires_grad_() for name in "qkv")
    o = RandomFeatureKernel(features(given))(q, k, v, Mask(rule, Tokens(LENGTH), Tokens(LENGTH), "cpu"))
    torch.testing.assert_close(o, given[f"{way}.o"].double(), **CLOSE)
    gradients = torch.autograd.grad(o, (q, k, v), given["pull"].double())
    for name, gradient in zip("qkv", gradients, strict=True):
        expected = given[f"{way}.d{name}"].double()
        torch.testing.assert_close(gradient, expected, atol=2e-5 * float(expected.abs().max()), rtol=1e-4)


def projection(weight: Tensor) -> RowProjection:
    """From [n r], or [h r n] of several heads."""
    made = RowProjection(LENGTH, PROJECTED, weight.shape[0] if weight.ndim == 3 else 1).double()
    with torch.no_grad():
        made.weight.copy_(weight if weight.ndim == 3 else weight.T[None])
    return made


@pytest.mark.parametrize("length", [LENGTH, 9])
@pytest.mark.parametrize("name", ["plain", "one"])
def test_a_layer_is_that_of_linformer(name: str, length: int) -> None:
    given = {key: tensor.double() for key, tensor in fixture(f"linformer.{name}").items()}
    keys, values = projection(given["proj_k"]), projection(given["proj_v"])
    layer = Attention(
        CHANNELS, HEADS, key_value_heads=1 if name == "one" else None, bias=False, out_bias=True,
        kernel=LinformerKernel(keys, values),
    ).double()  # fmt: skip
    with torch.no_grad():
        layer.project.weight.copy_(torch.cat([given[f"to_{which}.weight"] for which in "qkv"]))
        layer.out.weight.copy_(given["to_out.weight"])
        layer.out.bias.copy_(given["to_out.bias"])
    x = given[f"{length}.x"].requires_grad_()
    o = layer(x, Context(tokens=Tokens(length)))
    torch.testing.assert_close(o, given[f"{length}.o"], **CLOSE)
    dx, dk, dv = torch.autograd.grad(o, (x, keys.weight, values.weight), given[f"{length}.pull"])
    for found, expected in ((dx, "dx"), (dk[0].T, "dE"), (dv[0].T, "dF")):
        theirs = given[f"{length}.{expected}"]
        torch.testing.assert_close(found, theirs, atol=2e-5 * float(theirs.abs().max()), rtol=1e-4)


@pytest.mark.parametrize("way", ["none", "headwise", "kv", "layerwise"])
def test_every_way_to_share_is_that_of_linformer_pytorch(way: str) -> None:
    given = {key: tensor.double() for key, tensor in fixture("sharing").items()}
    shared = projection(given["layerwise.0.E"][:1])
    x = given["x"]
    for number in range(2 if way == "layerwise" else 1):
        mine = {
            key.removeprefix(f"{way}.{number}."): t for key, t in given.items() if key.startswith(f"{way}.{number}.")
        }
        heads = {which: mine[which] if way == "none" else mine[which][:1] for which in "EF"}
        if way == "layerwise":
            keys = values = shared
        elif way == "kv":
            keys = values = projection(heads["E"])
        else:
            keys, values = projection(heads["E"]), projection(heads["F"])
        layer = Attention(CHANNELS, HEADS, bias=False, out_bias=True, kernel=LinformerKernel(keys, values)).double()
        with torch.no_grad():
            layer.project.weight.copy_(torch.cat([mine[f"to_{which}"] for which in "qkv"]))
            layer.out.weight.copy_(mine["w_o.weight"])
            layer.out.bias.copy_(mine["w_o.bias"])
        x = layer(x, Context(tokens=Tokens(LENGTH)))
    torch.testing.assert_close(x, given[f"{way}.o"], **CLOSE)


def test_a_causal_linformer_leaks_where_it_is_not_refused() -> None:
    """linformer-pytorch hides projected tokens: its first answers change with the last token. Here it is refused."""
    given = fixture("sharing")
    assert ((given["causal.changed"] - given["causal.o"])[:, 0].abs() > 1e-3).any()
    kernel = LinformerKernel(RowProjection(LENGTH, PROJECTED), RowProjection(LENGTH, PROJECTED))
    with pytest.raises(QkvError, match="none can be hidden"):
        Attention(CHANNELS, HEADS, visibility=Causal(), kernel=kernel)(given["x"], Context(tokens=Tokens(LENGTH)))
