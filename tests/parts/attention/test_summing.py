"""Attention by positive features in a decoder: sums in place of earlier tokens, with the same answers."""

from __future__ import annotations

import pytest
import torch

from qkv.parts.attention.attention import Attention
from qkv.parts.attention.cache import Cache, PreallocatedCache
from qkv.parts.attention.kernels.random_features import PositiveFeatures, RandomFeatureKernel
from qkv.parts.attention.summing import SummingAttention
from qkv.parts.attention.visibility import Causal, NotPadding, Tokens
from qkv.parts.context import Context
from qkv.parts.position import Rotary, rotary_rates

CLOSE = {"atol": 1e-9, "rtol": 1e-7}


def pair() -> tuple[Attention, SummingAttention]:
    """The same features in a kernel that reads whole rows, and in a mixer that keeps sums."""
    rotary = Rotary(rotary_rates(8))
    plain = Attention(32, 4, key_value_heads=2, rotary=rotary, visibility=Causal(), scale=0.5).double()
    features = PositiveFeatures(16, 8).double()
    summing = SummingAttention.over(plain, features)
    plain.kernel = RandomFeatureKernel(features)
    return plain, summing


def test_it_is_the_kernel_on_whole_rows() -> None:
    plain, summing = pair()
    x = torch.randn(2, 150, 32, dtype=torch.float64)
    documents = (torch.arange(150) >= torch.tensor([[0], [40]])).long()  # the second row begins with padding
    ctx = Context(tokens=Tokens(150, documents=documents), visibility=NotPadding())
    torch.testing.assert_close(summing(x, ctx), plain(x, ctx), **CLOSE)
    assert set(summing.state_dict()) - set(plain.state_dict()) == set()


@pytest.mark.parametrize("make", [Cache, lambda: PreallocatedCache(300)], ids=["growing", "with room"])
def test_a_decoder_keeps_sums_alone(make: type[Cache]) -> None:
    """Left-padded prompts, several tokens, single tokens, each with larger keys than before: as the whole row."""
    plain, summing = pair()
    x = torch.randn(2, 160, 32, dtype=torch.float64) * torch.linspace(0.5, 4, 160)[:, None]
    documents = (torch.arange(160) >= torch.tensor([[0], [40]])).long()
    whole = plain(x, Context(tokens=Tokens(160, documents=documents), visibility=NotPadding()))
    cache, found = make(), []
    with torch.no_grad():
        for first, last in [(0, 140), (140, 150), *((slot, slot + 1) for slot in range(150, 160))]:
            tokens = Tokens(last - first, first, documents[:, first:last])
            found.append(summing(x[:, first:last], Context(tokens=tokens, cache=cache, visibility=NotPadding())))
            cache.advance(tokens)
    torch.testing.assert_close(torch.cat(found, 1), whole, **CLOSE)
    assert sum(part.numel() for part in cache.sums(summing) or ()) == 2 * 4 * (16 * 16 + 2)  # whatever the length
