"""A stack in 8 bits from attention to attention, beside the same stack part by part."""

from dataclasses import replace

import pytest
import torch

from qkv.models.catalogue import build
from qkv.models.gpt2 import SIZES
from qkv.models.head_choice import HeadChoice
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.norm import RMSNorm
from qkv.parts.stack import Stack
from qkv.train.compiling import compiled_blocks
from qkv.train.float8.bounds import narrow_blocks
from qkv.train.float8.known import way_of
from qkv.train.float8.products import float8_products
from qkv.train.float8.stream import float8_stream
from qkv.train.streamed import streamed

SMALL = {"vocabulary": 300, "positions": 64, "width": 48, "hidden": 192, "heads": 3, "layers": 2}
PLAIN = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}


def stack_of(device="cpu", **changes):
    torch.manual_seed(0)
    with torch.device(device):
        model = build("gpt2", replace(SIZES["base"], **(SMALL | PLAIN | changes)), HeadChoice("language"))
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    (stack,) = (module for module in model.modules() if type(module) is Stack)
    return model, stack


def steps_of(stack):
    return [tuple(block.children()) for block in stack.blocks]


def distance(found, expected):
    return ((found.float() - expected.float()).norm() / expected.float().norm()).item()


@pytest.mark.parametrize("rms", [False, True])
def test_a_stream_in_8_bits_is_as_near_as_products_in_8_bits_are(rms):
    model, stack = stack_of()
    if rms:
        for first, second in steps_of(stack):
            first.norm, second.norm = RMSNorm(48), RMSNorm(48)
        stack.norm = RMSNorm(48)
    ctx, x, above = Context(tokens=Tokens(32)), torch.randn(2, 32, 48, requires_grad=True), torch.randn(2, 32, 48)
    learned = [x, *stack.parameters()]
    exact = stack(x, ctx)
    exact_gradients = torch.autograd.grad(exact, learned, above)
    found = float8_stream(steps_of(stack), stack.norm, x, ctx)
    gradients = torch.autograd.grad(found, learned, above)
    with float8_products(model):
        by_parts = stack(x, ctx)
        gradients_by_parts = torch.autograd.grad(by_parts, learned, above)
    assert distance(found, exact) < 0.03
    assert distance(found, by_parts) < 0.003
    for mine, other, right in zip(gradients, gradients_by_parts, exact_gradients, strict=True):
        assert distance(mine, right) < 0.1
        assert distance(mine, right) < distance(other, right) * 1.1 + 1e-4


def test_bounds_hold_for_what_passes():
    _, stack = stack_of()
    blocks = steps_of(stack)
    ctx, x = Context(tokens=Tokens(32)), torch.randn(2, 32, 48) * 10
    for (first, second), narrow in zip(blocks, narrow_blocks(blocks), strict=True):
        normed = first.norm(x)
        heads = first.mixer.hidden(normed, ctx)
        x = x + first.mixer.out(heads)
        again = second.norm(x)
        hidden = second.mixer.hidden(again)
        x = x + second.mixer.outer(hidden)
        made = (normed, heads, again, hidden)
        for each, scale in zip(made, (narrow.read, narrow.heads, narrow.normed, narrow.hidden), strict=True):
            assert each.abs().max() * scale.inverse <= 448
            assert scale.inverse * scale.power == 1


def test_a_part_that_is_not_known_is_no_stream():
    model, stack = stack_of()
    x, ctx = torch.randn(2, 32, 48), Context(tokens=Tokens(32))
    with float8_products(model):
        way = stack.__dict__["in_eight_bits"]
        assert way(x, ctx) is not None
        assert way(x[:, :5], Context(tokens=Tokens(5))) is None  # rows that products in 8 bits do not take
        watcher = stack.blocks[0].register_forward_hook(lambda *_: None)
        assert way(x, ctx) is None
        watcher.remove()
        steps_of(stack)[1][0].mixer.dropout = 0.5
        assert way(x, ctx) is None
    assert "in_eight_bits" not in stack.__dict__
    assert way_of(stack, {}, 16)(x, ctx) is None


def test_a_stack_that_learns_takes_the_stream(monkeypatch):
    model, stack = stack_of()
    x, ctx = torch.randn(2, 32, 48, requires_grad=True), Context(tokens=Tokens(32))
    expected = float8_stream(steps_of(stack), stack.norm, x, ctx)
    monkeypatch.setattr("qkv.train.streamed._learns_narrow", lambda *_: True)
    with float8_products(model):
        torch.testing.assert_close(streamed(stack, {})(x, ctx), expected, rtol=0, atol=0)


@pytest.mark.gpu
def test_a_stack_on_a_gpu_takes_the_stream_and_learns_as_in_bfloat16():
    model, stack = stack_of("cuda", width=256, hidden=1024, heads=4, positions=1024)
    x = torch.randn(32, 512, 256, device="cuda", requires_grad=True)
    above, ctx = torch.randn(32, 512, 256, device="cuda"), Context(tokens=Tokens(512))
    learned = [x, *stack.parameters()]
    exact = stack(x, ctx)
    exact_gradients = torch.autograd.grad(exact, learned, above)
    asked = []
    with float8_products(model), compiled_blocks(model), torch.autocast("cuda", torch.bfloat16):
        way = stack.__dict__["in_eight_bits"]
        stack.__dict__["in_eight_bits"] = lambda *given: asked.append(way(*given)) or asked[-1]
        found = stack(x, ctx)
        gradients = torch.autograd.grad(found, learned, above)
    assert asked[0] is found
    assert distance(found, exact) < 0.05
    for mine, right in zip(gradients, exact_gradients, strict=True):
        assert distance(mine, right) < 0.12
