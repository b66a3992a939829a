"""Our FlashAttention against the specification: its algorithm in torch ops, as it runs without a GPU."""

import pytest
import torch

from qkv.errors import QkvError
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.flash import flash
from qkv.parts.attention.kernels.flash_dropout import Lot
from qkv.parts.attention.visibility import Causal, Mask, Tokens, Window
from tests.parts.attention.cases import SITUATIONS, mask, tokens
from tests.parts.attention.kernels.compare import answers, assert_same, exact_in_float32, inputs, with_far_bias

TIGHT = {"atol": 2e-6, "rtol": 1e-5}


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("size", [1, 9, 128, 130, 300])
@pytest.mark.parametrize("name", SITUATIONS)
def test_flash_is_exact(name: str, size: int, bias: bool) -> None:
    given, m = inputs(size, size, bias=bias), mask(SITUATIONS[name], size)
    assert_same(answers(flash, given, m), answers(exact, given, m), **TIGHT)


@pytest.mark.parametrize("key_value_heads", [1, 2, 4])
@pytest.mark.parametrize("name", ["everything", "causal", "causal, padded left", "packed"])
def test_flash_is_exact_with_shared_keys_and_wider_values(name: str, key_value_heads: int) -> None:
    given = inputs(150, 150, key_value_heads=key_value_heads, value_width=12, bias=True)
    m = mask(SITUATIONS[name], 150)
    assert_same(answers(flash, given, m, scale=0.2), answers(exact, given, m, scale=0.2), **TIGHT)


@pytest.mark.parametrize(("queries", "start", "keys"), [(1, 8, 9), (3, 200, 203), (5, 0, 140), (140, 0, 4), (2, 3, 9)])
@pytest.mark.parametrize("name", ["everything", "causal", "window", "all but the near past"])
def test_flash_is_exact_when_queries_and_keys_differ_in_number(name: str, queries: int, start: int, keys: int) -> None:
    m = Mask(SITUATIONS[name].rule, Tokens(queries, start), Tokens(keys), "cpu")
    given = inputs(queries, keys)
    assert_same(answers(flash, given, m), answers(exact, given, m), **TIGHT)


@pytest.mark.parametrize("shape", [(1, 1, 1, 150), (3, 1, 1, 150), (1, 4, 1, 150), (3, 4, 150, 150), (1, 1, 150, 150)])
def test_a_bias_may_be_shared_by_rows_heads_and_queries(shape: tuple[int, ...]) -> None:
    given, m = inputs(150, 150), mask(SITUATIONS["causal"], 150)
    biased = type(given)(given.q, given.k, given.v, torch.randn(shape), given.pull)
    assert_same(answers(flash, biased, m), answers(exact, biased, m), **TIGHT)


@pytest.mark.parametrize("name", ["causal, padded left", "packed, causal window"])
def test_flash_is_exact_for_a_cached_step_of_padded_or_packed_rows(name: str) -> None:
    key = tokens(SITUATIONS[name].rows, 9)
    assert key.documents is not None
    m = Mask(SITUATIONS[name].rule, Tokens(3, 6, key.documents[:, 6:]), key, "cpu")
    given = inputs(3, 9)
    assert_same(answers(flash, given, m), answers(exact, given, m), **TIGHT)


@pytest.mark.parametrize("name", ["causal", "longformer", "packed", "causal, padded left"])
def test_flash_is_exact_to_the_precision_of_bfloat16(name: str) -> None:
    given, m = inputs(150, 150, bias=True, dtype=torch.bfloat16), mask(SITUATIONS[name], 150)
    assert_same(answers(flash, given, m), answers(exact, given, m), atol=0.03, rtol=0.03)


def test_a_wide_bias_of_narrow_queries_is_not_rounded() -> None:
    given, m = with_far_bias(inputs(9, 9, dtype=torch.bfloat16)), mask(SITUATIONS["causal"], 9)
    assert_same(answers(flash, given, m), exact_in_float32(given, m), atol=0.01, rtol=0.01)


def test_large_scores_neither_overflow_nor_vanish() -> None:
    given, m = inputs(150, 150), mask(SITUATIONS["causal"], 150)
    assert_same(answers(flash, given, m, scale=60.0), answers(exact, given, m, scale=60.0), atol=2e-4, rtol=1e-4)


def test_no_keys_at_all_give_zeros() -> None:
    given = inputs(3, 0)
    assert torch.equal(flash(given.q, given.k, given.v), torch.zeros(3, 4, 3, 8))


def test_no_mask_sees_everything() -> None:
    given = inputs(130, 130)
    assert_same(answers(flash, given, None), answers(exact, given, None), **TIGHT)


@pytest.mark.parametrize("name", ["causal, padded left", "all but the near past", "packed", "nothing"])
def test_a_query_that_sees_no_key_gets_exact_zeros(name: str) -> None:
    m = mask(SITUATIONS[name], 9)
    hidden = ~m.dense.any(-1).expand(3, 1, 9)[:, 0]
    found = answers(flash, inputs(9, 9, bias=True), m)
    assert hidden.any()
    assert (found["o"].transpose(1, 2)[hidden] == 0).all()
    assert (found["gradient of q"].transpose(1, 2)[hidden] == 0).all()
    assert all(answer.isfinite().all() for answer in found.values())


def test_torch_finds_the_operator_well_formed() -> None:
    from qkv.parts.attention.blocks import tile_map
    from qkv.parts.attention.kernels.flash import _apart, _flash, _flash_backward

    given = inputs(130, 130, bias=True)
    tiles = tile_map(Mask(Causal() & Window(50), Tokens(130), Tokens(130), "cpu"))
    leaves = [x for x in (given.q, given.k, given.v, given.bias) if x is not None]
    numbers = (*_apart(tiles), 0.3)
    torch.library.opcheck(_flash, (*leaves, *numbers))
    o, log_sum = _flash(*leaves, *numbers)
    torch.library.opcheck(_flash_backward, (*leaves, *numbers, o, log_sum, torch.randn_like(o)))


def test_what_it_cannot_do_it_says() -> None:
    given = inputs(2, 2)
    with pytest.raises(QkvError, match="exact kernel"):
        flash(given.q, given.k, given.v, record=lambda weights: None)


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("name", ["everything", "causal, padded left", "packed"])
def test_dropout_falls_on_the_same_weights_forwards_and_backwards(name: str, bias: bool) -> None:
    given, m = inputs(150, 150, bias=bias, key_value_heads=2), mask(SITUATIONS[name], 150)

    def drop(*tensors, dropout=0.0, **options):
        torch.manual_seed(7)
        return flash(*tensors, dropout=0.3, **options)

    def by_definition(q, k, v, seen, added, scale=None):
        torch.manual_seed(7)
        lot, whole = Lot(torch.randint(2**31, (1,)), 0.3), slice(0, 150)
        weights: list[torch.Tensor] = []
        exact(q, k, v, seen, added, scale=scale, record=weights.append)
        factor = lot.factor(slice(0, len(q)), q.shape[1], whole, whole, 150)
        return (weights[0] * factor) @ v.repeat_interleave(2, 1)

    assert_same(answers(drop, given, m), answers(by_definition, given, m), **TIGHT)


def test_dropout_leaves_its_share_and_no_two_rows_or_heads_the_same() -> None:
    whole, kept = slice(0, 200), []
    for seed in (3, 4):
        factor = Lot(torch.tensor([seed]), 0.1).factor(slice(0, 4), 3, whole, whole, 200)  # [4 3 200 200]
        assert set(factor.unique().tolist()) == {0.0, factor.max().item()}
        assert factor.max().item() == pytest.approx(1 / 0.9)
        assert float(factor.mean()) == pytest.approx(1, abs=2e-3)
        for axis in (2, 3):
            assert float((factor.mean(axis) - 1).abs().max()) < 6 * (0.1 / 0.9 / 200) ** 0.5
        kept.append((factor > 0).float().flatten(0, 1).flatten(1))
    together = torch.cat(kept) - 0.9  # [24 40000]
    like = (together @ together.T) / 40000 / 0.09  # correlations
    assert float(like.fill_diagonal_(0).abs().max()) < 6 * 40000**-0.5
    neighbours = (kept[0][:, 1:] - 0.9) * (kept[0][:, :-1] - 0.9)
    assert abs(float(neighbours.mean())) / 0.09 < 6 * neighbours.numel() ** -0.5
