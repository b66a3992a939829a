"""Patterns taken apart, against the tables they stand for."""

import pytest
import torch

from qkv.parts.attention.factors import factors_of
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.flash import flash
from qkv.parts.attention.visibility import Causal, Fixed, Mask, NotPadding, Rule, SameDocument, Strided, Tokens, Window
from tests.parts.attention.kernels.compare import answers, assert_same, inputs

PATTERNS = {
    "dilated window": Window(3, step=5),
    "dilated window behind": Causal() & Window(7, step=3),
    "strided": Strided(7),
    "strided behind": Causal() & Strided(7),
    "sparse transformer, strided": Causal() & (Window(8) | Strided(8)),
    "a wider window than the stride": Causal() & (Strided(8) | Window(20)),
    "a narrower window than the stride": Causal() & (Window(3) | Strided(8)),
    "fixed": Fixed(10, 3),
    "sparse transformer, fixed": Causal() & Fixed(10, 3),
}


@pytest.mark.parametrize("size", [40, 41, 70, 139])
@pytest.mark.parametrize("name", PATTERNS)
def test_factors_joined_are_exact(name: str, size: int) -> None:
    """With queries that share keys, outputs and gradients; filling of the last stride and blocks that are cut off."""
    m = Mask(PATTERNS[name], Tokens(size), Tokens(size), "cpu")
    even = "behind" in name or "sparse" in name or "narrow" in name or "wider" in name or "fixed" in name
    assert (factors_of(m) is not None) == (even or size % (5 if "dilated" in name else 7) == 0)
    given = inputs(size, size, key_value_heads=2)
    assert_same(answers(flash, given, m), answers(exact, given, m), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("rule", [NotPadding(), SameDocument(), Causal() & NotPadding(), Causal() & SameDocument()])
@pytest.mark.parametrize("pattern", [Strided(7), Window(4, step=7), Window(5) | Strided(7), Fixed(7, 2)], ids=str)
def test_padding_and_documents_go_where_their_tokens_go(pattern: Rule, rule: Rule) -> None:
    numbers = torch.tensor([1, 1, 2, 2, 2, 3, 0]).repeat_interleave(10).expand(3, -1).clone()
    numbers[1, 40:], numbers[2] = 0, 0
    side = Tokens(70, documents=numbers)
    m = Mask(pattern & rule, side, side, "cpu")
    given = inputs(70, 70)
    assert_same(answers(flash, given, m), answers(exact, given, m), atol=2e-6, rtol=1e-5)


def test_the_cost_is_that_of_the_factors() -> None:
    """Of 16,384 tokens with a stride of 128: 128 rows of 128 tokens, and a window of 128."""
    side = Tokens(16_384)
    near, far = factors_of(Mask(Causal() & (Window(128) | Strided(128)), side, side, "cpu")) or []
    assert near.stride == 1
    assert (far.stride, far.mask.key.size) == (128, 128)
    _, rest = factors_of(Mask(Causal() & Fixed(128, 8), side, side, "cpu")) or []
    assert rest.mask.key.size == 16_384 // 128 * 8
