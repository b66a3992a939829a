"""LSH attention against the reference library's with the same rotations, and against what its paper promises.

In float64: near a score of -100,000, which a token has for itself, float32 knows steps of 0.008 only, and the
reference's weights of a token that sees none but itself then sum up to 0.998.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels.lsh import LSHKernel, recommended_buckets, unit_keys
from qkv.parts.attention.shared import SharedAttention
from qkv.parts.attention.visibility import Causal, Everything, Mask, NotPadding, Rule, SameDocument, Tokens, Window
from qkv.parts.context import Context

CLOSE = {"atol": 1e-8, "rtol": 1e-7}


def pair(
    *, causal: bool, rounds: int, buckets: int | tuple[int, int], chunk: int = 8, after: int = 0
) -> tuple[nn.Module, SharedAttention]:
    """The reference's attention and ours with the same weights and the same rotations."""
    config = ReformerConfig(
        hidden_size=24, num_attention_heads=3, attention_head_size=8, lsh_attn_chunk_length=chunk, num_hashes=rounds,
        num_buckets=list(buckets) if isinstance(buckets, tuple) else buckets, is_decoder=causal, hash_seed=7,
        lsh_num_chunks_after=after, lsh_attention_probs_dropout_prob=0.0, attn_layers=["lsh"],
    )  # fmt: skip
    reference = LSHSelfAttention(config, layer_idx=0).eval()
    kernel = LSHKernel(chunk=chunk, rounds=rounds, buckets=buckets, after=after, seed=7)
    rule: Rule = Causal() if causal else Everything()
    ours = SharedAttention(24, 3, key_width=8, bias=False, visibility=rule, kernel=kernel).eval()
    with torch.no_grad():
        ours.project.weight.copy_(torch.cat([reference.query_key.weight, reference.value.weight]))
        ours.out.weight.copy_(torch.eye(24))
    return reference.double(), ours.double()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rounds", "buckets", "after"), [(1, 4, 0), (3, 8, 0), (2, (4, 6), 0), (2, 4, 1)])
@pytest.mark.parametrize("size", [1, 8, 16, 64])
def test_it_is_the_reference_attention(size: int, rounds: int, buckets: int, after: int, causal: bool) -> None:
    reference, ours = pair(causal=causal, rounds=rounds, buckets=buckets, after=after)
    x = torch.randn(2, size, 24).double()
    expected = reference(x, num_hashes=rounds).hidden_states
    torch.testing.assert_close(ours(x, Context(tokens=Tokens(size))), expected, **CLOSE)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_the_reference_ones(causal: bool) -> None:
    reference, ours = pair(causal=causal, rounds=2, buckets=8)
    x, pull = torch.randn(2, 64, 24).double(), torch.randn(2, 64, 24).double()
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours(mine, Context(tokens=Tokens(64))).backward(pull)
    reference(theirs, num_hashes=2).hidden_states.backward(pull)
    torch.testing.assert_close(mine.grad, theirs.grad, **CLOSE)
    expected = torch.cat([reference.query_key.weight.grad, reference.value.weight.grad])
    torch.testing.assert_close(ours.project.weight.grad, expected, **CLOSE)


@pytest.mark.parametrize("causal", [False, True])
def test_padded_rows_are_the_reference_ones(causal: bool) -> None:
    reference, ours = pair(causal=causal, rounds=2, buckets=4)
    x, real = torch.randn(2, 32, 24).double(), torch.arange(32) < torch.tensor([[32], [19]])
    expected = reference(x, attention_mask=real, num_hashes=2).hidden_states
    tokens = Tokens(32, documents=real.long())
    found = ours(x, Context(tokens=tokens, visibility=NotPadding()))
    torch.testing.assert_close(found[real], expected[real], **CLOSE)


@pytest.mark.parametrize("size", [9, 61])
def test_rows_that_fill_no_chunk_are_padded_inside(size: int) -> None:
    _, ours = pair(causal=True, rounds=2, buckets=4)
    x = torch.randn(2, size, 24).double()
    whole = -size % 8 + size
    padded = torch.cat([x, torch.zeros(2, whole - size, 24).double()], 1)
    tokens = Tokens(whole, documents=(torch.arange(whole) < size).long().expand(2, whole))
    expected = ours(padded, Context(tokens=tokens, visibility=NotPadding()))[:, :size]
    torch.testing.assert_close(ours(x, Context(tokens=Tokens(size))), expected, **CLOSE)


@pytest.mark.parametrize(("size", "slots"), [(5, 5), (7, 24), (9, 24), (24, 24), (25, 48)])
def test_rows_can_be_filled_further(size: int, slots: int) -> None:
    """As if the row had come with so much padding behind it; up to `whole` tokens it is one chunk."""
    q, v = torch.randn(2, 2, 48, 8).double(), torch.randn(2, 2, 48, 8).double()
    kernel = LSHKernel(chunk=8, rounds=2, buckets=4, seed=3, fill=24, whole=6)
    plain = LSHKernel(chunk=8, rounds=2, buckets=4, seed=3)
    tokens = Tokens(slots, documents=(torch.arange(slots) < size).long().expand(2, -1))
    padding = Mask(NotPadding(), tokens, tokens, "cpu")
    expected = plain(q[:, :, :slots], q[:, :, :slots], v[:, :, :slots], padding)[:, :, :size]
    torch.testing.assert_close(kernel(q[:, :, :size], q[:, :, :size], v[:, :, :size]), expected, **CLOSE)


def test_documents_of_a_row_do_not_see_each_other() -> None:
    documents = torch.tensor([[1] * 9 + [2] * 14 + [3] * 6 + [0] * 3])
    tokens = Tokens(32, documents=documents)
    mask = Mask(Causal() & SameDocument(), tokens, tokens, "cpu")
    q, v = torch.randn(1, 2, 32, 8), torch.randn(1, 2, 32, 8)
    kernel = LSHKernel(chunk=8, rounds=2, buckets=4, seed=3)
    before = kernel(q, q, v, mask)
    for number in (1, 2, 3):
        own = (documents == number)[0]
        after = kernel(q, q, torch.where(own[:, None], v + 1, v), mask)
        assert torch.equal(after[:, :, ~own], before[:, :, ~own])
        assert ((after - before)[:, :, own].abs() > 0.5).all()
    whole = LSHKernel(chunk=32)(q, q, v, mask)
    alone = LSHKernel(chunk=32)(*(x[:, :, 9:23] for x in (q, q, v)), Mask(Causal(), Tokens(14), Tokens(14), "cpu"))
    torch.testing.assert_close(whole[:, :, 9:23], alone)


def test_a_row_of_padding_alone_has_finite_gradients() -> None:
    tokens = Tokens.padded(torch.tensor([32, 0]), 32)
    leaves = [torch.randn(2, 2, 32, 8, requires_grad=True) for _ in range(3)]
    o = LSHKernel(chunk=8, rounds=2)(*leaves, Mask(NotPadding(), tokens, tokens, "cpu"))
    o.square().sum().backward()
    assert (o[1] == 0).all()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)


def one_chunk(q: Tensor, v: Tensor) -> Tensor:
    return LSHKernel(chunk=256)(q, q / q.norm(dim=-1, keepdim=True), v, scale=1.0)


def test_more_rounds_come_nearer_to_full_attention() -> None:
    """[kitaev2020 figure 4]"""
    torch.manual_seed(0)
    q, v = 4 * torch.randn(1, 2, 256, 16), torch.randn(1, 2, 256, 16)
    k, expected = q / q.norm(dim=-1, keepdim=True), one_chunk(q, v)
    misses = [
        float((LSHKernel(chunk=16, rounds=rounds, seed=1)(q, k, v, scale=1.0) - expected).square().mean())
        for rounds in (1, 4, 16)
    ]
    assert misses[0] > 1.5 * misses[1] > 2.25 * misses[2]


def test_a_token_reads_itself_only_when_alone() -> None:
    v = torch.randn(1, 1, 5, 4)
    q = torch.ones(1, 1, 5, 4)
    mask = Mask(Causal(), Tokens(5), Tokens(5), "cpu")
    o = LSHKernel(chunk=8)(q, q / 2, v, mask)
    torch.testing.assert_close(o[0, 0, 0], v[0, 0, 0])
    torch.testing.assert_close(o[0, 0, 1], v[0, 0, 0])
    torch.testing.assert_close(o[0, 0, 2], v[0, 0, :2].mean(0))


def test_seeds_repeat_and_draws_differ() -> None:
    q, v = torch.randn(1, 2, 64, 8), torch.randn(1, 2, 64, 8)
    fixed, free = LSHKernel(chunk=8, seed=1), LSHKernel(chunk=8)
    assert torch.equal(fixed(q, q, v), fixed(q, q, v))
    assert not torch.equal(free(q, q, v), free(q, q, v))


@pytest.mark.parametrize("size", [8, 64])
def test_without_keys_it_makes_them(size: int) -> None:
    q, v = torch.randn(2, 2, size, 8).double(), torch.randn(2, 2, size, 8).double()
    kernel = LSHKernel(chunk=8, rounds=2, seed=1)
    torch.testing.assert_close(unit_keys(q).norm(dim=-1), torch.ones(2, 2, size).double(), atol=1e-4, rtol=0)
    torch.testing.assert_close(kernel(q, None, v), kernel(q, unit_keys(q), v), **CLOSE)


def test_recommended_buckets() -> None:
    assert recommended_buckets(1024, 64) == (32,)
    assert recommended_buckets(65_536, 64) == (32, 64)


def test_what_it_cannot_do_it_says() -> None:
    x = torch.randn(1, 4, 8)
    with pytest.raises(QkvError, match="even number"):
        LSHKernel(buckets=5)
    for wrong in ({"fill": 12}, {"whole": 9}):
        with pytest.raises(QkvError, match="chunks of 8"):
            LSHKernel(chunk=8, **wrong)
    with pytest.raises(QkvError, match="another kernel"):
        SharedAttention(8, 2, visibility=Causal() & Window(2), kernel=LSHKernel())(x, Context(tokens=Tokens(4)))
    with pytest.raises(QkvError, match="each with one key"):
        Attention(8, 2, key_value_heads=1, kernel=LSHKernel())(x, Context(tokens=Tokens(4)))
