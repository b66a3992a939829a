"""Stacks whose blocks matter one by one."""

import torch
from torch import Tensor, nn

from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.layers import DroppedStack, NormedSummedStack, SummedStack
from qkv.parts.norm import LayerNorm

CTX = Context(tokens=Tokens(3))


class Adding(nn.Module):
    def __init__(self, amount: float) -> None:
        super().__init__()
        self.amount = nn.Parameter(torch.tensor(amount))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return x + self.amount


def blocks() -> list[nn.Module]:
    return [Adding(1.0), Adding(10.0), Adding(100.0)]


def test_each_layer_is_left_out_as_often_as_said_and_only_while_learning() -> None:
    torch.manual_seed(0)
    stack = DroppedStack(blocks(), layer_dropout=0.3)
    sums = torch.stack([stack(torch.zeros(1, 1, 1), CTX).detach() for _ in range(2000)]).long().flatten()
    for amount in (1, 10, 100):
        kept = (sums // amount % 10).float().mean()
        assert abs(kept - 0.7) < 0.05
    assert stack.eval()(torch.zeros(1, 1, 1), CTX).item() == 111


def test_a_last_norm_is_applied() -> None:
    stack, x = DroppedStack(blocks(), LayerNorm(4)).eval(), torch.randn(2, 3, 4)
    torch.testing.assert_close(stack(x, CTX), nn.LayerNorm(4)(x + 111))


def test_a_sum_of_layers_is_their_mean_weighted_by_shares() -> None:
    stack, x = SummedStack(blocks(), LayerNorm(4)).eval(), torch.randn(2, 3, 4)
    streams = torch.stack([x, x + 1, x + 11, x + 111])
    torch.testing.assert_close(stack(x, CTX), streams.mean(0))
    nn.init.normal_(stack.shares)
    expected = (streams * stack.shares.softmax(0)[:, None, None, None]).sum(0)
    torch.testing.assert_close(stack(x, CTX), expected)


def test_the_last_of_them_can_be_heard_after_its_norm() -> None:
    stack, x = NormedSummedStack(blocks(), LayerNorm(4)).eval(), torch.randn(2, 3, 4)
    nn.init.normal_(stack.shares)
    streams = torch.stack([x, x + 1, x + 11, nn.LayerNorm(4)(x + 111)])
    expected = (streams * stack.shares.softmax(0)[:, None, None, None]).sum(0)
    torch.testing.assert_close(stack(x, CTX), expected)
