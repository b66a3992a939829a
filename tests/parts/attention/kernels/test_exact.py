"""The specification against its own equation, computed number by number in float64."""

import math

import pytest
import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.attention.kernels.choose import Kernel
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.flash import flash
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.visibility import Causal, Everything, Mask, Rule, Tokens, Window
from tests.parts.attention.cases import ROWS, SITUATIONS, mask, table
from tests.parts.attention.kernels.compare import Inputs, answers, inputs


def by_hand(given: Inputs, visible: Tensor, scale: float | None = None) -> Tensor:
    """softmax(q kᵀ · scale + bias) v, query by query; zeros for a query that sees no key. float64"""
    q, k, v = given.q.double(), given.k.double(), given.v.double()
    rows, heads, queries, width = q.shape
    shared_by = heads // k.shape[1]
    scale = 1 / math.sqrt(width) if scale is None else scale
    o = torch.zeros(rows, heads, queries, v.shape[-1], dtype=torch.float64)
    for row in range(rows):
        for head in range(heads):
            for query in range(queries):
                seen = [key for key in range(k.shape[2]) if visible[row, query, key]]
                exponentials = []
                for key in seen:
                    score = scale * sum(q[row, head, query] * k[row, head // shared_by, key])
                    if given.bias is not None:
                        score = score + given.bias[0, head, query, key].double()
                    exponentials.append(math.exp(score))
                for key, exponential in zip(seen, exponentials, strict=True):
                    o[row, head, query] += exponential / sum(exponentials) * v[row, head // shared_by, key]
    return o


@pytest.mark.parametrize("name", SITUATIONS)
def test_it_is_the_equation(name: str) -> None:
    situation = SITUATIONS[name]
    given = inputs(7, 7, heads=2, width=4, value_width=3)
    m = mask(situation, 7)
    torch.testing.assert_close(
        exact(given.q, given.k, given.v, m).double(),
        by_hand(given, table(situation, m.query, m.key)),
        atol=1e-6,
        rtol=1e-5,
    )


@pytest.mark.parametrize(("key_value_heads", "bias", "scale"), [(1, False, None), (2, True, None), (4, True, 0.3)])
def test_it_is_the_equation_with_shared_keys_a_bias_and_a_scale(
    key_value_heads: int, bias: bool, scale: float | None
) -> None:
    given = inputs(5, 9, key_value_heads=key_value_heads, width=4, value_width=6, bias=bias)
    expected = by_hand(given, torch.ones(ROWS, 5, 9, dtype=torch.bool), scale)
    found = exact(given.q, given.k, given.v, None, given.bias, scale=scale)
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-5)


def test_its_gradients_are_the_slopes_of_the_equation() -> None:
    """Central differences in float64 of the loop, at a few entries of every input."""
    situation = SITUATIONS["causal, padded left"]
    given = inputs(4, 4, heads=2, key_value_heads=1, width=3, value_width=3, bias=True)
    m = mask(situation, 4)
    visible = table(situation, m.query, m.key)
    found = answers(exact, given, m)
    step = 1e-6
    for name in ("q", "k", "v", "bias"):
        flat = getattr(given, name).double().flatten()
        for entry in range(0, flat.numel(), 7):
            sides = []
            for sign in (1, -1):
                moved = flat.clone()
                moved[entry] += sign * step
                fields = {**vars(given), name: moved.view_as(getattr(given, name))}
                sides.append((by_hand(Inputs(**fields), visible) * given.pull.double()).sum())
            slope = (sides[0] - sides[1]) / (2 * step)
            assert found[f"gradient of {name}"].flatten()[entry].item() == pytest.approx(slope.item(), abs=2e-5)


@pytest.mark.parametrize("name", ["causal, padded left", "all but the near past", "packed", "nothing"])
def test_a_query_that_sees_no_key_gets_zeros_and_gives_none_back(name: str) -> None:
    situation, size = SITUATIONS[name], 9
    m = mask(situation, size)
    hidden = ~table(situation, m.query, m.key).any(-1)  # [b q]
    assert hidden.any()
    found = answers(exact, inputs(size, size, bias=True), m)
    assert (found["o"].transpose(1, 2)[hidden] == 0).all()
    assert (found["gradient of q"].transpose(1, 2)[hidden] == 0).all()
    assert all(answer.isfinite().all() for answer in found.values())


def test_recorded_weights_sum_to_one_and_give_the_output() -> None:
    kept: list[Tensor] = []
    given = inputs(5, 5)
    o = exact(given.q, given.k, given.v, Mask(Causal(), Tokens(5), Tokens(5), "cpu"), record=kept.append)
    (weights,) = kept
    assert weights.shape == (ROWS, 4, 5, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(ROWS, 4, 5))
    torch.testing.assert_close(weights @ given.v, o)


def test_recorded_weights_are_those_before_dropout() -> None:
    kept: list[Tensor] = []
    given = inputs(5, 5)
    exact(given.q, given.k, given.v, dropout=0.5, record=kept.append)
    exact(given.q, given.k, given.v, record=kept.append)
    assert torch.equal(kept[0], kept[1])


def test_very_large_scores_do_not_overflow() -> None:
    given = inputs(3, 3)
    o = exact(given.q * 1e4, given.k * 1e4, given.v, Mask(Everything(), Tokens(3), Tokens(3), "cpu"))
    assert o.isfinite().all()


def test_it_is_as_precise_as_what_it_is_given() -> None:
    situation, given = SITUATIONS["causal, padded left"], inputs(7, 7, heads=2, bias=True, dtype=torch.float64)
    m = mask(situation, 7)
    expected = by_hand(given, table(situation, m.query, m.key))
    torch.testing.assert_close(exact(given.q, given.k, given.v, m, given.bias), expected, atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize("kernel", [exact, fused, flash])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 3), (7, 7)])
@pytest.mark.parametrize("rule", [Causal(), Window(2)])
def test_no_kernel_takes_a_mask_made_for_other_tokens(kernel: Kernel, queries: int, keys: int, rule: Rule) -> None:
    """As a flag, or spread over all queries, it would be taken, and hide the wrong keys or none."""
    given = inputs(3, 3)
    with pytest.raises(QkvError, match=f"for {queries} queries and {keys} keys, but there are 3 and 3"):
        kernel(given.q, given.k, given.v, Mask(rule, Tokens(queries), Tokens(keys), "cpu"))


@pytest.mark.parametrize("kernel", [exact, fused, flash])
@pytest.mark.parametrize("shape", [(1, 1, 1, 3), (1, 4, 3, 1), (ROWS, 1, 3, 3)])
def test_a_bias_is_spread_over_what_it_does_not_tell_apart(kernel: Kernel, shape: tuple[int, ...]) -> None:
    given, bias = inputs(3, 3), torch.randn(shape)
    whole = bias.expand(ROWS, 4, 3, 3)
    found = kernel(given.q, given.k, given.v, None, bias)
    torch.testing.assert_close(found, exact(given.q, given.k, given.v, None, whole), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("kernel", [exact, fused, flash])
def test_no_kernel_takes_a_bias_that_is_too_large(kernel: Kernel) -> None:
    given = inputs(3, 3)
    with pytest.raises(RuntimeError, match="size"):
        kernel(given.q, given.k, given.v, None, torch.randn(1, 4, 4, 4))
