"""Blocks and stacks: steps in order, a bias for all blocks, a final norm."""

import torch
from torch import Tensor, nn

from qkv.parts.attention.attention import Attention
from qkv.parts.attention.cache import Cache
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.visibility import Tokens
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.norm import LayerNorm
from qkv.parts.position import ALiBi
from qkv.parts.stack import Stack


class Step(nn.Module):
    """x → factor · x + shift, and a note of the context."""

    def __init__(self, factor: float, shift: float) -> None:
        super().__init__()
        self.factor, self.shift = factor, shift
        self.seen: list[Context] = []

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        self.seen.append(ctx)
        return self.factor * x + self.shift


CTX = Context(tokens=Tokens(3))


def test_a_block_is_its_steps_in_order() -> None:
    block, x = Block(first=Step(2, 0), second=Step(1, 5)), torch.randn(1, 3, 4)
    torch.testing.assert_close(block(x, CTX), 2 * x + 5)
    assert [name for name, _ in block.named_children()] == ["first", "second"]


def test_a_stack_is_its_blocks_in_order_and_a_final_norm() -> None:
    blocks, x = [Block(step=Step(2, 0)), Block(step=Step(1, 5))], torch.randn(1, 3, 4)
    torch.testing.assert_close(Stack(blocks)(x, CTX), 2 * x + 5)
    norm = LayerNorm(4)
    torch.testing.assert_close(Stack(blocks, norm)(x, CTX), norm(2 * x + 5))


def test_the_bias_of_a_stack_reaches_every_block_and_counts_cached_slots() -> None:
    steps = [Step(1, 0), Step(1, 0)]
    stack = Stack([Block(step=step) for step in steps], bias=ALiBi(2))
    stack(torch.zeros(1, 3, 4), CTX)
    assert CTX.bias is None
    assert torch.equal(steps[0].seen[0].bias, ALiBi(2)(Tokens(3), Tokens(3)))
    assert steps[1].seen[0].bias is steps[0].seen[0].bias
    cache = Cache()
    cache.advance(Tokens(5))
    tokens = Tokens(3, start=5)
    stack(torch.zeros(1, 3, 4), Context(tokens=tokens, cache=cache))
    assert torch.equal(steps[1].seen[1].bias, ALiBi(2)(tokens, Tokens(8)))


def test_the_bias_is_added_to_the_scores() -> None:
    attention, x = Attention(4, 2), torch.randn(1, 3, 4)
    found = Stack([attention], bias=ALiBi(2))(x, CTX)
    q, k, v = (part.unflatten(-1, (2, 2)).transpose(1, 2) for part in attention.project(x))
    o = exact(q, k, v, None, ALiBi(2)(Tokens(3), Tokens(3)))
    torch.testing.assert_close(found, attention.out(o.transpose(1, 2).flatten(2)))
    assert not torch.allclose(found, attention(x, CTX))


def test_repeated_blocks_run_again_and_are_saved_once() -> None:
    """Depth without parameters. [lan2020 §3.1]"""
    steps, x = [Step(2, 0), Step(1, 5)], torch.randn(1, 3, 4)
    torch.testing.assert_close(Stack(steps, order=[0, 1] * 3)(x, CTX), 2 * (2 * (2 * x + 5) + 5) + 5)
    assert [len(step.seen) for step in steps] == [3, 3]
    torch.testing.assert_close(Stack(steps, order=[0, 0, 1])(x, CTX), 4 * x + 5)
    norm = LayerNorm(4)
    torch.testing.assert_close(Stack([Step(1, 1)], norm, order=[0, 0])(x, CTX), norm(x + 2))
    stack = Stack([Attention(4, 2)], order=[0] * 12)
    assert stack.state_dict().keys() == Stack([Attention(4, 2)]).state_dict().keys()
