"""Blocks in place on a CPU, by our own program: whole steps, sums and norms in few calls."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.parts import cpu, cpu_maps, cpu_steps, narrow_maps
from qkv.parts import in_place as places
from qkv.parts import stack as stacks
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.in_line import InLine
from qkv.parts.attention.visibility import NotPadding, SameDocument, Tokens
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.cpu_panels import kept_map
from qkv.parts.eight_bits import quantised
from qkv.parts.feedforward import MLP, GatedMLP, gelu
from qkv.parts.norm import LayerNorm, RMSNorm
from qkv.parts.residual import PostNorm, PreNorm
from qkv.parts.stack import Stack
from tests.models.small import perturb


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """On a CPU any stream is served by our own program; the list has the rows of each step it ends."""
    if cpu.library() is None:
        pytest.skip("needs a compiler")
    monkeypatch.setattr(cpu_maps, "mkl_is_slow", lambda: True)
    for module, name in ((cpu_maps, "SMALL_FOR_MANY"), (cpu_maps, "MANY"), (places, "ENOUGH_FOR_A_CPU")):
        monkeypatch.setattr(module, name, 1)
    monkeypatch.setattr(stacks, "tried_plan", lambda blocks, norm, x, ctx: places.plan_of(blocks, x))  # not counted
    found: list[int] = []

    def add_rows(*given: Any) -> None:
        found.append(given[1].numel() // given[1].shape[-1])
        cpu_steps.add_rows(*given)

    def do_steps(steps: Any, x: Tensor, y: Tensor) -> None:
        found.extend([x.numel() // x.shape[-1]] * len(steps))
        cpu_steps.do_steps(steps, x, y)

    monkeypatch.setattr(places, "add_rows", add_rows)
    monkeypatch.setattr(places, "do_steps", do_steps)
    return found


def needs_maps_in(precision: str) -> None:
    """Skips where our own program does not map many rows in it."""
    if precision != "int8" and not cpu_steps.takes_many(torch.empty(1, 16, dtype=getattr(torch, precision))):
        pytest.skip(f"maps in {precision} are by torch's libraries on this processor")


def held(stack: Stack, precision: str) -> Stack:
    return quantised(stack) if precision == "int8" else stack.to(getattr(torch, precision))


@pytest.mark.parametrize("wiring", [PreNorm, PostNorm])
@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("last_norm", [None, LayerNorm, nn.Identity])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@torch.no_grad()
def test_on_a_cpu_sums_and_norms_are_one_call(
    wiring: Any, norm: Any, last_norm: Any, precision: str, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_maps_in(precision)
    torch.manual_seed(0)
    last = LayerNorm(32) if last_norm is LayerNorm else None
    if last_norm is nn.Identity:  # any other norm gets the whole stream
        last = nn.Identity()  # type: ignore[assignment]
        last.forward = lambda x, ctx: 2 * x  # type: ignore[assignment,union-attr,method-assign]
    mixers: list[nn.Module] = [MLP(32, 48, gelu), GatedMLP(32, 64), MLP(32, 512, bias=False)]
    blocks = [Block(attention=wiring(norm(32), Attention(32, 2)), feed_forward=wiring(norm(32), m)) for m in mixers]
    stack = Stack(blocks, last).eval()
    perturb(stack)
    monkeypatch.setattr(narrow_maps, "SMALL", 1)
    stack = held(stack, precision)
    x = torch.randn(3, 7, 32).to(torch.bfloat16 if precision == "bfloat16" else torch.float32)
    padded = Context(tokens=Tokens.padded(torch.tensor([7, 4, 1]), 7), visibility=NotPadding())
    for ctx in (Context(tokens=Tokens(7)), padded):
        found = stack(x, ctx)
        assert calls == [21] * 6
        calls.clear()
        with monkeypatch.context() as ordinary:
            for name in ("pays", "is_packed"):
                ordinary.setattr(stacks, name, lambda _: False)
            expected = stack(x, ctx)
        assert calls == []
        if precision == "bfloat16":  # the ordinary way rounds more often
            near = stack.float()(x.float(), ctx)
            far = (expected.float() - near).norm()
            assert float((found.float() - near).norm()) <= float(far)
            stack.bfloat16()
            calls.clear()
        else:
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("wiring", [PreNorm, PostNorm])
@pytest.mark.parametrize("last_norm", [None, LayerNorm])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@torch.no_grad()
def test_on_a_cpu_all_steps_are_one_call(
    wiring: Any, last_norm: Any, precision: str, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against blocks as they are in double precision: whole texts, padded ones and texts in line, by any threads."""
    needs_maps_in(precision)
    torch.manual_seed(0)
    mixers: list[nn.Module] = [MLP(64, 112, gelu), GatedMLP(64, 48), MLP(64, 528, bias=False)]
    blocks = [
        Block(attention=wiring(LayerNorm(64), Attention(64, 2)), feed_forward=wiring(LayerNorm(64), m)) for m in mixers
    ]
    stack = Stack(blocks, None if last_norm is None else LayerNorm(64)).eval()
    perturb(stack)
    stack = held(stack, precision)
    exactly = deepcopy(stack).double()
    told: list[int] = []

    def noted(steps: Any, x: Tensor, y: Tensor) -> None:
        told.append(len(steps))
        cpu_steps.do_steps(steps, x, y)

    monkeypatch.setattr(places, "do_steps", noted)
    before, lengths = torch.get_num_threads(), [33, 1, 150, 7]
    for x, ctx in (
        (torch.randn(3, 75, 64), Context(tokens=Tokens(75))),
        (torch.randn(3, 40, 64), Context(tokens=Tokens.padded(torch.tensor([40, 4, 1]), 40), visibility=NotPadding())),
        (torch.randn(1, 191, 64), Context(tokens=InLine.of(lengths), visibility=SameDocument())),
    ):
        given = x.to(getattr(torch, precision))
        near = exactly(given.double(), ctx)
        stack(given, ctx)
        assert told == [6]
        with monkeypatch.context() as ordinary:
            ordinary.setattr(stacks, "pays", lambda _: False)
            far = float((stack(given, ctx) - near).norm())
        assert len(told) == 1
        for threads in (1, 2, 7):  # rows are one thread's, or all threads'
            torch.set_num_threads(threads)
            again = stack(given, ctx)
            assert again.dtype == given.dtype
            off = float((again - near).norm())
            assert off <= (far if precision == "bfloat16" else 2 * far)  # which rounds more often in bfloat16 alone
        torch.set_num_threads(before)
        told.clear()


@torch.no_grad()
def test_on_a_cpu_no_part_of_a_step_reads_rows_that_are_not_made_yet(calls: list[int]) -> None:
    """Parts of texts and of rows, of which none begin where others do, by more threads than there are cores."""
    needs_maps_in("float32")
    torch.manual_seed(0)
    lengths = torch.randint(1, 90, (120,)).tolist()
    stack = Stack(
        Block(attention=PreNorm(LayerNorm(64), Attention(64, 2)), feed_forward=PreNorm(LayerNorm(64), MLP(64, 112)))
        for _ in range(6)
    ).eval()
    perturb(stack)
    x, ctx = torch.randn(1, sum(lengths), 64), Context(tokens=InLine.of(lengths), visibility=SameDocument())
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = stack(x, ctx)
    for threads in (2, 3, 7) * 3:
        torch.set_num_threads(threads)
        torch.testing.assert_close(stack(x, ctx), alone, atol=2e-5, rtol=1e-5)
    torch.set_num_threads(before)


@torch.no_grad()
def test_panels_of_large_models_are_not_kept(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    needs_maps_in("float32")
    stack = Stack([Block(step=PreNorm(LayerNorm(32), MLP(32, 48))) for _ in range(2)]).eval()
    perturb(stack)
    x, ctx = torch.randn(3, 9, 32), Context(tokens=Tokens(9))
    asked: list[Any] = []
    monkeypatch.setattr(places, "kept_map", lambda *given: asked.append(given) or kept_map(*given))
    expected = stack(x, ctx)
    assert len(asked) == 4
    monkeypatch.setattr(places, "MOST_KEPT", 4 * 32 * 48 * 4 - 1)
    torch.testing.assert_close(deepcopy(stack)(x, ctx), expected, atol=2e-6, rtol=1e-5)
    assert len(asked) == 4
    assert calls == [27] * 4


@pytest.mark.parametrize("wiring", [PreNorm, PostNorm])
@torch.no_grad()
def test_in_8_bits_a_text_has_the_same_bits_in_any_company(wiring: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if cpu.library() is None:
        pytest.skip("needs a compiler")
    monkeypatch.setattr(narrow_maps, "SMALL", 1)
    torch.manual_seed(0)
    mixers: list[nn.Module] = [MLP(64, 96, gelu), GatedMLP(64, 64)]
    blocks = [
        Block(attention=wiring(LayerNorm(64), Attention(64, 2)), feed_forward=wiring(LayerNorm(64), m)) for m in mixers
    ]
    stack = Stack(blocks, LayerNorm(64)).eval()
    perturb(stack)
    stack = held(stack, "int8")
    lengths, told = [33, 1, 150, 7], []
    x = torch.randn(1, sum(lengths), 64)

    def noted(steps: Any, x: Tensor, y: Tensor) -> None:
        told.append(len(steps))
        cpu_steps.do_steps(steps, x, y)

    stack(x, Context(tokens=InLine.of(lengths), visibility=SameDocument()))  # tried beside its blocks once
    monkeypatch.setattr(places, "do_steps", noted)
    together = stack(x, Context(tokens=InLine.of(lengths), visibility=SameDocument()))
    assert told == [4]  # all steps in one call
    for text, found in zip(x.split(lengths, 1), together.split(lengths, 1), strict=True):
        size = text.shape[1]
        alone = stack(text, Context(tokens=Tokens(size)))
        torch.testing.assert_close(alone, found, rtol=0, atol=0)
        padded = torch.cat((torch.cat((text, torch.randn(1, 5, 64)), 1), torch.randn(1, size + 5, 64)))  # [2 s+5 d]
        ctx = Context(tokens=Tokens.padded(torch.tensor([size, size + 5]), size + 5), visibility=NotPadding())
        torch.testing.assert_close(stack(padded, ctx)[:1, :size], found, rtol=0, atol=0)


@torch.no_grad()
def test_widths_that_fill_no_register_go_the_ordinary_way(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    attention = Attention(40, 2, key_width=16)
    stack = Stack([Block(attention=PreNorm(LayerNorm(40), attention))]).eval()
    perturb(stack)
    x, ctx = torch.randn(3, 9, 40), Context(tokens=Tokens(9))
    expected = stack(x, ctx)
    monkeypatch.setattr(narrow_maps, "SMALL", 1)
    torch.testing.assert_close(held(stack, "int8")(x, ctx), expected, atol=0.1, rtol=0.1)
    assert calls == []


@pytest.mark.parametrize("wiring", [PreNorm, PostNorm])
@torch.no_grad()
def test_on_a_cpu_the_first_slots_may_be_wanted_alone(wiring: Any, calls: list[int]) -> None:
    needs_maps_in("float32")
    blocks = [Block(attention=wiring(LayerNorm(32), Attention(32, 2)), feed_forward=wiring(LayerNorm(32), MLP(32, 48)))]
    stack = Stack(blocks * 2, LayerNorm(32)).eval()
    perturb(stack)
    x, ctx = torch.randn(3, 9, 32), Context(tokens=Tokens(9))
    expected = stack(x, ctx)
    calls.clear()
    torch.testing.assert_close(stack(x, replace(ctx, wanted=2)), expected[:, :2], atol=2e-6, rtol=1e-5)
    assert calls == [27, 27, 6, 6]
