"""Attention between blocks against tables written out and against attention with a mask."""

import pytest
import torch

from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.big_bird import BlockAttention, BlocksOfRow, RandomBlocks
from qkv.parts.attention.kernels.choose import Kernel
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.flash import flash
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.visibility import Causal, Mask, NotPadding, Rule, Tokens
from qkv.parts.context import Context, Ledger
from tests.parts.attention.kernels.compare import inputs


def drawn(rule: Rule, size: int, keys: int | None = None) -> list[str]:
    dense = Mask(rule, Tokens(size), Tokens(keys or size), "cpu").dense[0, 0]
    return ["".join("x" if seen else "." for seen in row) for row in dense.tolist()]


def test_who_sees_whom() -> None:
    """Two tokens a block, the last of one; two keys more behind the row."""
    assert drawn(BlocksOfRow(2, 11), 11, 13)[::2] == [
        "xxxxxxxxxxx..",
        "xxxxxx....xxx",
        "xxxxxxxx..xxx",
        "xx..xxxxxxxxx",
        "xx....xxxxxxx",
        "xxxxxxxxxxx..",
    ]


def test_random_blocks_are_others_than_those_seen_in_any_case() -> None:
    size, block, count = 39, 2, 3
    always = Mask(BlocksOfRow(block, size), Tokens(size), Tokens(size), "cpu").dense[0, 0]
    random = Mask(RandomBlocks(block, size, count, 1), Tokens(size), Tokens(size), "cpu").dense[0, 0]
    assert not (always & random).any()
    inner = slice(block, 38)
    assert (random[inner].sum(-1) == count * block).all()
    assert not random[:block].any()
    assert not random[38:].any()
    again = Mask(RandomBlocks(block, size, count, 1), Tokens(size), Tokens(size), "cpu").dense[0, 0]
    other = Mask(RandomBlocks(block, size, count, 2), Tokens(size), Tokens(size), "cpu").dense[0, 0]
    assert torch.equal(again, random)
    assert not torch.equal(other, random)


@pytest.mark.parametrize("kernel", [flash, fused])
def test_every_kernel_knows_the_rules(kernel: Kernel) -> None:
    given = inputs(300, 300, heads=2, rows=1)
    mask = Mask(BlocksOfRow(16, 300) | RandomBlocks(16, 300, 2, 1), Tokens(300), Tokens(300), "cpu")
    torch.testing.assert_close(kernel(given.q, given.k, given.v, mask), exact(given.q, given.k, given.v, mask))


def pair(rule: Rule | None = None) -> tuple[BlockAttention, Attention]:
    blocks, plain = BlockAttention(8, 2, block=2, randoms=2, seed=1), Attention(8, 2, visibility=rule)
    plain.load_state_dict(blocks.state_dict())
    return blocks, plain


def test_short_rows_are_read_whole() -> None:
    blocks, plain = pair()
    x = torch.randn(2, 18, 8)
    torch.testing.assert_close(blocks(x, Context(tokens=Tokens(18))), plain(x, Context(tokens=Tokens(18))))


def test_in_training_it_is_attention_under_both_rules() -> None:
    blocks, plain = pair(BlocksOfRow(2, 23) | RandomBlocks(2, 23, 2, 1))
    x, tokens = torch.randn(2, 23, 8), Tokens.padded(torch.tensor([23, 20]), 23)
    ctx = Context(tokens=tokens, visibility=NotPadding())
    torch.testing.assert_close(blocks.train()(x, ctx), plain(x, ctx))


def test_otherwise_the_first_block_counts_several_times() -> None:
    blocks, plain = pair(BlocksOfRow(2, 23))
    x, tokens = torch.randn(2, 23, 8), Tokens(23)
    more = torch.zeros(1, 1, 23, 23)
    more[:, :, 2:22, :2] = torch.log(torch.tensor(3.0))  # once, and twice more
    expected = plain(x, Context(tokens=tokens, bias=more))
    torch.testing.assert_close(blocks.eval()(x, Context(tokens=tokens)), expected)
    mine, theirs = Ledger(blocks, {"weights"}), Ledger(plain, {"weights"})
    blocks(x, Context(tokens=tokens, ledger=mine))
    plain(x, Context(tokens=tokens, bias=more, ledger=theirs))
    torch.testing.assert_close(mine.entries["/weights"], theirs.entries["/weights"])


def test_what_it_cannot_do_it_says() -> None:
    with pytest.raises(QkvError, match="looks both ways"):
        BlockAttention(8, 2, block=2, randoms=1, seed=0, visibility=Causal())
    blocks, _ = pair()
    with pytest.raises(QkvError, match="no bias"):
        blocks(torch.randn(1, 30, 8), Context(tokens=Tokens(30), bias=torch.zeros(1, 1, 30, 30)))
