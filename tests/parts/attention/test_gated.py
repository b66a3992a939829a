"""Gated random feature attention against its recurrence, step by step, and its decoder's sums against whole rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.cache import Cache, PreallocatedCache
from qkv.parts.attention.gated import LONGEST, SHORTEST, GatedAttention
from qkv.parts.attention.kernels import random_features
from qkv.parts.attention.kernels.random_features import WaveFeatures
from qkv.parts.attention.visibility import Causal, Everything, NotPadding, SameDocument, Tokens, Window
from qkv.parts.context import Context, Ledger
from qkv.parts.position import Rotary, rotary_rates

CLOSE = {"atol": 1e-9, "rtol": 1e-7}


def mixer(**options: object) -> GatedAttention:
    made = GatedAttention(32, 4, 64, **options).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return made


def token_by_token(made: GatedAttention, x: Tensor, real: Tensor | None = None) -> Tensor:
    """The paper's equations 4 and 7 as they stand, and the one departure: a denominator is at least noise."""
    features = made.kernel.features  # type: ignore[union-attr]
    assert isinstance(features, WaveFeatures)
    q, k, v = made.project(x)
    rows, slots, _ = x.shape
    shared = made.heads // made.key_value_heads
    q = q.view(rows, slots, made.heads, made.key_width)
    k = k.view(rows, slots, made.key_value_heads, made.key_width).repeat_interleave(shared, 2)
    v = v.view(rows, slots, made.key_value_heads, made.value_width).repeat_interleave(shared, 2)
    out = []
    for row in range(rows):
        heads = []
        for head in range(made.heads):
            w = features.spread[head] * features.directions[head]  # [m/2 d]

            def phi(vector: Tensor, w: Tensor = w) -> Tensor:
                angles = w @ (vector / vector.norm())
                return torch.cat([angles.sin(), angles.cos()]) / len(w) ** 0.5

            s = torch.zeros(64, made.value_width, dtype=x.dtype)
            z, share, steps = torch.zeros(64, dtype=x.dtype), torch.zeros((), dtype=x.dtype), []
            for slot in range(slots):
                if real is None or real[row, slot]:
                    g = torch.sigmoid(made.gate.weight[head] @ x[row, slot] + made.gate.bias[head])
                    key = phi(k[row, slot, head])
                    s = g * s + (1 - g) * key[:, None] * v[row, slot, head]
                    z, share = g * z + (1 - g) * key, g * share + (1 - g)
                query = phi(q[row, slot, head])
                below = torch.maximum(query @ z, 0.01 * share)
                steps.append(query @ s / below if share > 0 else torch.zeros(made.value_width, dtype=x.dtype))
            heads.append(torch.stack(steps))
        out.append(torch.cat(heads, -1))
    return made.out(torch.stack(out))


class Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators = 0

    def __torch_dispatch__(self, operator: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        self.operators += 1
        return operator(*given, **(named or {}))


@pytest.mark.parametrize("size", [1, 2, 9, 150])
def test_it_is_its_recurrence_forward_and_back(size: int) -> None:
    made, x = mixer(key_value_heads=2), torch.randn(2, size, 32, dtype=torch.float64, requires_grad=True)
    pull = torch.randn(2, size, 32, dtype=torch.float64)
    inputs = (x, *made.parameters())
    found, expected = made(x, Context(tokens=Tokens(size))), token_by_token(made, x)
    torch.testing.assert_close(found, expected, **CLOSE)
    gradients = [torch.autograd.grad(y, inputs, pull) for y in (found, expected)]
    names = ["x", *(name for name, _ in made.named_parameters())]
    for name, mine, theirs in zip(names, *gradients, strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")
        assert name == "project.bias" or mine.abs().max() > 0


def test_padding_neither_enters_nor_fades() -> None:
    made, x = mixer(), torch.randn(3, 9, 32, dtype=torch.float64)
    real = torch.tensor([[1] * 9, [0, 0, 0] + [1] * 6, [1] * 4 + [0] * 5])
    found = made(x, Context(tokens=Tokens(9, documents=real), visibility=NotPadding()))
    torch.testing.assert_close(found, token_by_token(made, x, real > 0), **CLOSE)
    alone = made(x[1:2, 3:], Context(tokens=Tokens(6)))
    torch.testing.assert_close(found[1:2, 3:], alone, **CLOSE)


@pytest.mark.parametrize("make", [Cache, lambda: PreallocatedCache(300)], ids=["growing", "with room"])
def test_a_decoder_keeps_sums_alone(make: type[Cache]) -> None:
    """A prompt, several tokens, single tokens, rows in another order: as the whole row at once."""
    rotary = Rotary(rotary_rates(8))
    made, x = mixer(rotary=rotary, key_value_heads=2), torch.randn(2, 200, 32, dtype=torch.float64)
    whole, cache, found = made(x, Context(tokens=Tokens(200))), make(), []
    with torch.no_grad():
        for first, last in [(0, 140), (140, 190), *((slot, slot + 1) for slot in range(190, 200))]:
            tokens = Tokens(last - first, first)
            found.append(made(x[:, first:last], Context(tokens=tokens, cache=cache)))
            cache.advance(tokens)
            if first == 140:
                cache.select(torch.tensor([1, 0]))
                x, found = x.flip(0), [part.flip(0) for part in found]
    torch.testing.assert_close(torch.cat(found, 1).flip(0), whole, **CLOSE)
    assert sum(part.numel() for part in cache.sums(made) or ()) == 2 * 4 * (64 * 16 + 2)  # whatever the length
    cache.truncate(200)
    with pytest.raises(QkvError, match="decode forward only"):
        cache.truncate(199)


def test_segments_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = mixer(), torch.randn(2, 300, 32, dtype=torch.float64)
    whole = made(x, Context(tokens=Tokens(300)))
    monkeypatch.setattr(random_features, "SEGMENT", 1)
    torch.testing.assert_close(made(x, Context(tokens=Tokens(300))), whole, **CLOSE)


@pytest.mark.parametrize("shaped", [False, True], ids=["of numbers", "of shapes alone"])
def test_a_longer_row_asks_for_no_more_operators(shaped: bool) -> None:
    """Forward and back: chunks are products of one call, and no product runs from token to token."""
    counts = []
    for size in (300, 1200):
        mixer = GatedAttention(16, 2, 8)
        x = torch.randn(1, size, 16)
        if shaped:
            mixer, x = mixer.to("meta"), x.to("meta")
        with Count() as count:
            mixer(x.requires_grad_(), Context(tokens=Tokens(size))).sum().backward()
        counts.append(count.operators)
    assert counts[0] == counts[1]


def test_it_takes_an_attention_over() -> None:
    attention = Attention(32, 4, key_value_heads=2, bias=False, visibility=Causal(), dropout=0.1).eval()
    made = GatedAttention.of(attention, 64, redraw_every=10)
    assert made.project is attention.project
    assert made.out is attention.out
    assert not made.training
    assert made.visibility == Causal()
    assert set(made.state_dict()) - set(attention.state_dict()) == {
        "gate.weight",
        "gate.bias",
        "kernel.features.directions",
        "kernel.features.spread",
    }
    x = torch.randn(2, 9, 32)
    assert made(x, Context(tokens=Tokens(9))).shape == x.shape


def test_heads_begin_with_memories_of_many_lengths() -> None:
    spans = 1 / (1 - GatedAttention(32, 4, 64).gate.bias.sigmoid())
    torch.testing.assert_close(spans, torch.tensor([SHORTEST, 32.0, 128.0, LONGEST]))


def test_what_it_cannot_do_it_says() -> None:
    x = torch.randn(1, 4, 32)
    with pytest.raises(QkvError, match="must look back"):
        GatedAttention(32, 4, 64, visibility=Everything())
    with pytest.raises(QkvError, match="give none"):
        GatedAttention(32, 4, 64, kernel=F.scaled_dot_product_attention)  # type: ignore[arg-type]
    with pytest.raises(QkvError, match="does not divide"):
        GatedAttention(33, 4, 64)
    with pytest.raises(QkvError, match="Window"):
        GatedAttention(32, 4, 64, visibility=Causal() & Window(2))(x, Context(tokens=Tokens(4)))
    tokens = Tokens(4, documents=torch.tensor([[1, 1, 2, 2]]))
    made = GatedAttention(32, 4, 64)
    with pytest.raises(QkvError, match="SameDocument"):
        made(x, Context(tokens=tokens, visibility=SameDocument()))
    with pytest.raises(QkvError, match="bias"):
        made(x, Context(tokens=Tokens(4), bias=torch.zeros(1, 4, 4, 4)))
    with pytest.raises(QkvError, match="never forms"):
        made(x, Context(tokens=Tokens(4), ledger=Ledger(made, {"weights"})))
    with pytest.raises(QkvError, match="no dropout"):
        GatedAttention(32, 4, 64, dropout=0.1)(x, Context(tokens=Tokens(4)))
    with pytest.raises(QkvError, match="next token is number 0"):
        made(x, Context(tokens=Tokens(4, 3), cache=Cache()))
