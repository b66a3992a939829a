"""The block-sparse kernel against the specification, uncompiled and without gradients, as it runs on a CPU.

The compiled kernel and its gradients: `test_on_gpu.py`.
"""

import pytest
import torch

from qkv.errors import QkvError
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.flex import block_mask, flex
from qkv.parts.attention.visibility import Causal, Mask, Tokens, Window
from tests.parts.attention.cases import SITUATIONS, mask, tokens
from tests.parts.attention.kernels.compare import assert_same, inputs, output

TIGHT = {"atol": 2e-6, "rtol": 1e-5}


FEW = ("everything", "causal, padded left", "packed")


@pytest.mark.parametrize(
    ("name", "size", "bias"),
    [
        *((name, 130, False) for name in SITUATIONS),  # two blocks, the second nearly empty
        *((name, size, bias) for name in FEW for size, bias in ((1, False), (9, True), (33, True))),
    ],
)
def test_flex_is_exact(name: str, size: int, bias: bool) -> None:
    given, m = inputs(size, size, bias=bias), mask(SITUATIONS[name], size)
    assert_same(output(flex, given, m), output(exact, given, m), **TIGHT)


@pytest.mark.parametrize(
    ("name", "key_value_heads", "bias"), [("everything", 1, False), ("causal", 2, True), ("packed", 4, False)]
)
def test_flex_is_exact_with_shared_keys_and_wider_values(name: str, key_value_heads: int, bias: bool) -> None:
    given = inputs(33, 33, key_value_heads=key_value_heads, value_width=12, bias=bias)
    m = mask(SITUATIONS[name], 33)
    assert_same(output(flex, given, m, scale=0.2), output(exact, given, m, scale=0.2), **TIGHT)


@pytest.mark.parametrize(("queries", "start", "keys"), [(1, 8, 9), (9, 0, 4), (2, 3, 9)])
@pytest.mark.parametrize("name", ["causal", "all but the near past"])
def test_flex_is_exact_when_queries_and_keys_differ_in_number(name: str, queries: int, start: int, keys: int) -> None:
    m = Mask(SITUATIONS[name].rule, Tokens(queries, start), Tokens(keys), "cpu")
    given = inputs(queries, keys)
    assert_same(output(flex, given, m), output(exact, given, m), **TIGHT)


@pytest.mark.parametrize("name", ["causal, padded left", "packed, causal window"])
def test_flex_is_exact_for_a_cached_step_of_padded_or_packed_rows(name: str) -> None:
    key = tokens(SITUATIONS[name].rows, 9)
    assert key.documents is not None
    m = Mask(SITUATIONS[name].rule, Tokens(3, 6, key.documents[:, 6:]), key, "cpu")
    given = inputs(3, 9)
    assert_same(output(flex, given, m), output(exact, given, m), **TIGHT)


def test_flex_is_exact_to_the_precision_of_bfloat16() -> None:
    given, m = inputs(65, 65, bias=True, dtype=torch.bfloat16), mask(SITUATIONS["packed, causal window"], 65)
    assert_same(output(flex, given, m), output(exact, given, m), atol=0.03, rtol=0.03)


@pytest.mark.parametrize("name", ["causal, padded left", "all but the near past", "packed", "nothing"])
def test_a_query_that_sees_no_key_gets_exact_zeros(name: str) -> None:
    m = mask(SITUATIONS[name], 9)
    hidden = ~m.dense.any(-1).expand(3, 1, 9)[:, 0]
    found = output(flex, inputs(9, 9, bias=True), m)
    assert hidden.any()
    assert (found["o"].transpose(1, 2)[hidden] == 0).all()
    assert found["o"].isfinite().all()


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_no_keys_at_all_give_zeros(bias: bool) -> None:
    given = inputs(3, 0, bias=bias, value_width=12)
    m = Mask(Causal(), Tokens(3), Tokens(0), "cpu")
    assert torch.equal(flex(given.q, given.k, given.v, m, given.bias), torch.zeros(3, 4, 3, 12))
    assert torch.equal(flex(given.q, given.k, given.v), torch.zeros(3, 4, 3, 12))


def test_blocks_that_no_query_sees_are_skipped() -> None:
    """1024 slots are 8 blocks of 128; a causal window of 100 reaches into the own block and the one before it."""
    m = Mask(Causal() & Window(100), Tokens(1024), Tokens(1024), "cpu")
    blocks = block_mask(m).to_dense()[0, 0]  # [8 8]
    expected = torch.eye(8) + torch.diag(torch.ones(7), -1)
    assert torch.equal(blocks.float(), expected)


def test_a_map_is_made_once_for_equal_rules_and_sizes() -> None:
    def made(rule: Window, size: int, start: int = 0) -> object:
        return block_mask(Mask(rule, Tokens(size, start), Tokens(size), "cpu"))

    assert made(Window(5), 200) is made(Window(5), 200)
    assert made(Window(5), 200) is not made(Window(6), 200)
    assert made(Window(5), 200) is not made(Window(5), 200, start=1)


def test_a_map_first_made_while_decoding_serves_training() -> None:
    with torch.inference_mode():
        blocks = block_mask(Mask(Causal() & Window(77), Tokens(300), Tokens(300), "cpu"))
    assert not blocks.kv_indices.is_inference()


@pytest.mark.parametrize("name", ["sparse transformer", "packed"])
def test_it_becomes_part_of_a_graph_that_is_compiled_around_it(name: str) -> None:
    torch._dynamo.reset()
    given, m = inputs(9, 9, bias=True), mask(SITUATIONS[name], 9)
    compiled = torch.compile(flex, backend="eager", fullgraph=True)
    assert_same(output(compiled, given, m), output(exact, given, m), **TIGHT)


def test_it_cannot_record_or_drop_and_says_so() -> None:
    given = inputs(2, 2)
    with pytest.raises(QkvError, match="exact kernel"):
        flex(given.q, given.k, given.v, record=lambda weights: None)
    with pytest.raises(QkvError, match="dropout"):
        flex(given.q, given.k, given.v, dropout=0.1)


@pytest.mark.parametrize("name", ["q", "k", "v", "bias"])
def test_it_has_no_gradients_on_a_cpu_and_says_so(name: str) -> None:
    given = inputs(2, 2, bias=True)
    getattr(given, name).requires_grad_()
    with pytest.raises(QkvError, match="gradients on a GPU only"):
        flex(given.q, given.k, given.v, None, given.bias)
