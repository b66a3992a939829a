"""The fused kernel against the specification."""

import pytest
import torch

from qkv.errors import QkvError
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.visibility import Causal, Mask, Tokens
from tests.parts.attention.cases import LENGTHS, SITUATIONS, mask, tokens
from tests.parts.attention.kernels.compare import answers, assert_same, exact_in_float32, inputs, with_far_bias

TIGHT = {"atol": 2e-6, "rtol": 1e-5}


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("size", LENGTHS)
@pytest.mark.parametrize("name", SITUATIONS)
def test_fused_is_exact(name: str, size: int, bias: bool) -> None:
    given, m = inputs(size, size, bias=bias), mask(SITUATIONS[name], size)
    assert_same(answers(fused, given, m), answers(exact, given, m), **TIGHT)


@pytest.mark.parametrize("key_value_heads", [1, 2, 4])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("name", ["everything", "causal", "causal, padded left", "packed"])
def test_fused_is_exact_with_shared_keys_and_wider_values(name: str, bias: bool, key_value_heads: int) -> None:
    given = inputs(33, 33, key_value_heads=key_value_heads, value_width=12, bias=bias)
    m = mask(SITUATIONS[name], 33)
    assert_same(answers(fused, given, m, scale=0.2), answers(exact, given, m, scale=0.2), **TIGHT)


@pytest.mark.parametrize(("queries", "start", "keys"), [(1, 8, 9), (3, 6, 9), (5, 0, 9), (9, 0, 4), (2, 3, 9)])
@pytest.mark.parametrize("name", ["everything", "causal", "window", "sparse transformer", "all but the near past"])
def test_fused_is_exact_when_queries_and_keys_differ_in_number(name: str, queries: int, start: int, keys: int) -> None:
    m = Mask(SITUATIONS[name].rule, Tokens(queries, start), Tokens(keys), "cpu")
    given = inputs(queries, keys)
    assert_same(answers(fused, given, m), answers(exact, given, m), **TIGHT)


@pytest.mark.parametrize("name", ["causal, padded left", "packed, causal window"])
def test_fused_is_exact_for_a_cached_step_of_padded_or_packed_rows(name: str) -> None:
    key = tokens(SITUATIONS[name].rows, 9)
    assert key.documents is not None
    m = Mask(SITUATIONS[name].rule, Tokens(3, 6, key.documents[:, 6:]), key, "cpu")
    given = inputs(3, 9)
    assert_same(answers(fused, given, m), answers(exact, given, m), **TIGHT)


@pytest.mark.parametrize("name", ["causal", "padded right", "longformer", "packed", "causal, padded left"])
def test_fused_is_exact_to_the_precision_of_bfloat16(name: str) -> None:
    """A rounding to bfloat16 is up to 2⁻⁹ ≈ 0.2%, and scores, weights and outputs are rounded in turn."""
    given, m = inputs(65, 65, bias=True, dtype=torch.bfloat16), mask(SITUATIONS[name], 65)
    assert_same(answers(fused, given, m), answers(exact, given, m), atol=0.03, rtol=0.03)


@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
@pytest.mark.parametrize("name", ["everything", "causal", "causal, padded left"])
def test_a_wide_bias_of_narrow_queries_is_not_rounded(name: str, autocast: bool) -> None:
    """Near −300 bfloat16 knows every other number only: distances of 300 and 301 would weigh the same."""
    given, m = with_far_bias(inputs(9, 9, dtype=torch.bfloat16)), mask(SITUATIONS[name], 9)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = answers(fused, given, m)
    assert_same(found, exact_in_float32(given, m), atol=0.01, rtol=0.01)


def test_no_keys_at_all_give_zeros() -> None:
    given = inputs(3, 0)
    assert torch.equal(fused(given.q, given.k, given.v), torch.zeros(3, 4, 3, 8))


@pytest.mark.parametrize("name", ["causal, padded left", "all but the near past", "packed", "nothing"])
def test_a_query_that_sees_no_key_gets_exact_zeros(name: str) -> None:
    m = mask(SITUATIONS[name], 9)
    hidden = ~m.dense.any(-1).expand(3, 1, 9)[:, 0]
    found = answers(fused, inputs(9, 9, bias=True), m)
    assert hidden.any()
    assert (found["o"].transpose(1, 2)[hidden] == 0).all()
    assert (found["gradient of q"].transpose(1, 2)[hidden] == 0).all()
    assert all(answer.isfinite().all() for answer in found.values())


def test_no_mask_sees_everything() -> None:
    given = inputs(9, 9)
    assert_same(answers(fused, given, None), answers(exact, given, None), **TIGHT)


def test_dropout_keeps_the_expectation_and_the_spread() -> None:
    """4000 rows of one attention differ by their dropout alone. Their mean is the output without dropout: six standard
    errors miss it once in 10⁹ draws. Their spread is that of `exact` to 10%; 4000 draws know it to about 1%."""
    draws, given = 4000, inputs(3, 5, heads=1, key_value_heads=1, rows=1)
    m = Mask(Causal(), Tokens(3, 2), Tokens(5), "cpu")
    q, k, v = (x.expand(draws, -1, -1, -1) for x in (given.q, given.k, given.v))
    expected = exact(given.q, given.k, given.v, m)[0]
    spreads = []
    for kernel in (exact, fused):
        o = kernel(q, k, v, m, dropout=0.4)
        spreads.append(o.std(0))
        assert ((o.mean(0) - expected).abs() <= 6 * o.std(0) / draws**0.5 + 1e-6).all()
    assert spreads[0].min() > 0
    torch.testing.assert_close(spreads[0], spreads[1], rtol=0.1, atol=1e-3)


def test_it_cannot_record_and_says_so() -> None:
    given = inputs(2, 2)
    with pytest.raises(QkvError, match="exact kernel"):
        fused(given.q, given.k, given.v, record=lambda weights: None)
