"""Blocks in place against blocks as they are: every family whose parts are known, padded, in line and in rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.models import ast
from qkv.models.catalogue import build
from qkv.models.head_choice import HeadChoice
from qkv.parts import in_place as places
from qkv.parts import stack as stacks
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.cache import PreallocatedCache
from qkv.parts.attention.in_line import InLine
from qkv.parts.attention.visibility import SameDocument, Tokens
from qkv.parts.block import Block
from qkv.parts.context import Context, Ledger
from qkv.parts.feedforward import MLP, ChunkedMLP, GatedMLP
from qkv.parts.in_place import in_place, only_answers, pays, plan_of
from qkv.parts.norm import LayerNorm, RMSNorm
from qkv.parts.product import Norm
from qkv.parts.residual import PostNorm, PreNorm, ReZero
from qkv.parts.stack import Stack
from tests.models import small_images, small_sounds, small_text
from tests.models.small import perturb

LENGTHS = [7, 4, 1]
WIDTH = 12


def of_text(family: str) -> tuple[nn.Module, Callable[..., Any], tuple[Any, ...]]:
    def read(model: Any, ids: Tensor) -> Any:
        return model(ids, lengths=torch.tensor(LENGTHS, device=ids.device))

    return small_text.small_model(family), read, (torch.randint(3, 23, (3, 7)),)


def of_texts_in_line(family: str) -> tuple[nn.Module, Callable[..., Any], tuple[Any, ...]]:
    model = small_text.small_model(family, "embedding")

    def read(model: Any, ids: Tensor) -> Any:
        return model(ids, tokens=InLine.of(LENGTHS, ids.device))

    return model, read, (torch.randint(3, 23, (1, sum(LENGTHS))),)


def of_pictures(family: str) -> tuple[nn.Module, Callable[..., Any], tuple[Any, ...]]:
    model = small_images.small_model(family)
    return model, lambda model, images: model(images), (torch.randn(3, model.sizes.channels, 12, 12),)


def of_sound(sizes: str) -> tuple[nn.Module, Callable[..., Any], tuple[Any, ...]]:
    def hear(model: Any, waves: Tensor) -> Any:
        return model(waves, lengths=torch.tensor([400, 300, 90]))

    return small_sounds.small_sound(sizes), hear, (torch.randn(3, 400),)


def of_clips() -> tuple[nn.Module, Callable[..., Any], tuple[Any, ...]]:
    torch.manual_seed(0)
    sizes = replace(ast.SIZES["base"], width=12, hidden=20, heads=2, layers=2, frames=40, bands=32)
    model = build("ast", sizes, HeadChoice("states")).eval()
    perturb(model)
    return model, lambda model, banks: model(banks), (torch.randn(3, 1, 32, 40),)


CASES = {
    "vit": lambda: of_pictures("vit"),
    "deit": lambda: of_pictures("deit"),
    "ast": of_clips,
    "clip-image": lambda: of_pictures("clip-image"),
    "clip-text": lambda: of_text("clip-text"),
    "bert": lambda: of_text("bert"),
    "bert in line": lambda: of_texts_in_line("bert"),
    "distilbert in line": lambda: of_texts_in_line("distilbert"),
    "roformer": lambda: of_text("roformer"),
    "albert": lambda: of_text("albert"),
    "gpt2": lambda: of_text("gpt2"),
    "llama": lambda: of_text("llama"),
    "wav2vec2": lambda: of_sound("base"),
    "wav2vec2, norms before": lambda: of_sound("prenorm"),
}


def given_to_stack(model: Any, call: Callable[..., Any], given: tuple[Any, ...]) -> tuple[Tensor, Context]:
    seen: list[Any] = []
    watch = model.stack.register_forward_pre_hook(lambda _, passed: seen.append(passed))
    try:
        call(model, *given)
    finally:
        watch.remove()
    x, ctx = seen[0]
    return x, ctx


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_every_family_answers_as_its_blocks_do(case: str) -> None:
    torch.manual_seed(0)
    model, call, given = CASES[case]()
    stack: Any = model.stack
    x, ctx = given_to_stack(model, call, given)
    before = x.clone()
    plan = plan_of([stack.blocks[number] for number in stack.order], x)
    assert plan is not None
    assert len(plan.steps) == 2 * len(stack.order)
    torch.testing.assert_close(in_place(plan, stack.norm, x, ctx), stack(x, ctx), atol=1e-5, rtol=1e-5)
    assert torch.equal(x, before)


def block(norm: Callable[[], nn.Module], wiring: Any, feed_forward: nn.Module, bias: bool = True) -> Block:
    attention = Attention(WIDTH, 2, bias=bias)
    return Block(attention=wiring(norm(), attention), feed_forward=wiring(norm(), feed_forward))


def stack_of(norm: Callable[[], nn.Module], wiring: Any, last_norm: nn.Module | None = None, **options: Any) -> Stack:
    """Blocks of which some have biases and some have none."""
    torch.manual_seed(0)
    made = [
        block(norm, wiring, MLP(WIDTH, 20)),
        block(norm, wiring, GatedMLP(WIDTH, 16), bias=False),
        block(norm, wiring, MLP(WIDTH, 20, bias=False)),
        block(norm, wiring, GatedMLP(WIDTH, 16, bias=True)),
    ]
    stack = Stack(made, last_norm, **options).eval()
    perturb(stack)
    return stack


@pytest.mark.parametrize("wiring", [PreNorm, PostNorm])
@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("last_norm", [None, LayerNorm(WIDTH), nn.Identity()], ids=str)
@torch.no_grad()
def test_blocks_with_biases_and_without(wiring: Any, norm: Any, last_norm: Any) -> None:
    if isinstance(last_norm, nn.Identity):  # any other norm gets the whole stream
        last_norm.forward = lambda x, ctx: 2 * x  # type: ignore[method-assign]
    stack = stack_of(lambda: norm(WIDTH), wiring, last_norm)
    x, ctx = torch.randn(5, 3, WIDTH).transpose(0, 1), Context(tokens=Tokens(5))
    plan = plan_of(stack.blocks, x)
    assert plan is not None
    torch.testing.assert_close(in_place(plan, stack.norm, x, ctx), stack(x, ctx), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("wanted", [None, 2])
@torch.no_grad()
def test_norms_behind_mixers_are_left_to_products_that_can(
    norm: Any, wanted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[torch.Size, bool]] = []

    def added(stream: Tensor, x: Tensor, linear: nn.Linear, norm: Norm) -> None:
        taken.append((stream.shape, norm.rms))
        total = stream + linear(x)
        if norm.rms:
            stream.copy_(F.rms_norm(total, (WIDTH,), norm.gain, norm.epsilon))
        else:
            stream.copy_(F.layer_norm(total, (WIDTH,), norm.gain, norm.shift, norm.epsilon))

    monkeypatch.setattr(places, "fits_normed", lambda stream, x, weight: x.shape[1] != 16)  # not of gated ones
    monkeypatch.setattr(places, "add_normed_map", added)
    x, ctx = torch.randn(3, 5, WIDTH), Context(tokens=Tokens(5))
    for wiring in (PreNorm, PostNorm):
        stack = stack_of(lambda: norm(WIDTH), wiring)
        plan = plan_of(stack.blocks, x)
        assert plan is not None
        found, expected = in_place(plan, stack.norm, x, ctx, wanted), stack(x, ctx)[:, :wanted]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        assert len(taken) == (6 if wiring is PostNorm else 0)
    assert taken == 5 * [((15, WIDTH), norm is RMSNorm)] + [((3 * (wanted or 5), WIDTH), norm is RMSNorm)]


@pytest.mark.parametrize("wiring", [PreNorm, PostNorm])
@pytest.mark.parametrize("last_norm", [None, LayerNorm(WIDTH)], ids=str)
@pytest.mark.parametrize("wanted", [1, 2, 5])
@torch.no_grad()
def test_the_first_slots_are_the_same_where_they_alone_are_wanted(
    wiring: Any, last_norm: nn.Module | None, wanted: int
) -> None:
    stack = stack_of(lambda: LayerNorm(WIDTH), wiring, last_norm)
    x, ctx = torch.randn(3, 5, WIDTH), Context(tokens=Tokens(5))
    plan = plan_of(stack.blocks, x)
    assert plan is not None
    found, expected = in_place(plan, stack.norm, x, ctx, wanted), stack(x, ctx)[:, :wanted]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("tokens", "beside"),
    [
        (Tokens(6, documents=torch.tensor([[0, 1, 1, 1, 1, 1]])), {}),
        (InLine.of([4, 2]), {"visibility": SameDocument()}),
        (Tokens(6), {"bias": torch.zeros(1, 2, 6, 6)}),
        (Tokens(6), {"position_vectors": torch.randn(6, WIDTH)}),
    ],
)
@torch.no_grad()
def test_all_slots_come_where_the_first_cannot_be_had_alone(tokens: Tokens, beside: dict[str, Any]) -> None:
    stack = stack_of(lambda: LayerNorm(WIDTH), PreNorm)
    x, ctx = torch.randn(1, 6, WIDTH), Context(tokens=tokens, **beside)
    plan = plan_of(stack.blocks, x)
    assert plan is not None
    torch.testing.assert_close(in_place(plan, None, x, ctx, 1), stack(x, ctx), atol=1e-5, rtol=1e-5)


def compiled(part: nn.Module) -> None:
    part.forward = lambda *given: type(part).forward(part, *given)  # type: ignore[method-assign]


def with_another(stack: Stack, wiring: Any, feed_forward: nn.Module) -> None:
    stack.blocks.append(block(lambda: LayerNorm(WIDTH), wiring, feed_forward).eval())


WATCHERS: dict[str, Callable[[Stack], object]] = {
    "a hook on a block": lambda stack: stack.blocks[1].register_forward_hook(lambda *_: None),
    "a hook on a mixer": lambda stack: stack.blocks[1].attention.mixer.register_forward_pre_hook(lambda *_: None),
    "a hook on a product": lambda stack: stack.blocks[0].attention.mixer.out.register_forward_hook(lambda *_: None),
    "a block compiled": lambda stack: compiled(stack.blocks[2]),
    "a product replaced": lambda stack: compiled(stack.blocks[0].attention.mixer.out),
    "a block compiled by itself": lambda stack: setattr(stack.blocks[0], "_compiled_call_impl", len),
    "training": lambda stack: stack.train(),
    "dropout at work": lambda stack: stack.blocks[3].feed_forward.dropout.train(),
    "dropout of hidden units at work": lambda stack: stack.blocks[3].feed_forward.mixer.dropout.train(),
    "another precision": lambda stack: stack.blocks[0].feed_forward.norm.double(),
    "another precision of a product": lambda stack: stack.blocks[0].feed_forward.mixer.outer.double(),
    "another feed-forward": lambda stack: with_another(stack, PreNorm, ChunkedMLP(WIDTH, 8, chunk=2)),
    "a norm that is not known": lambda stack: setattr(stack.blocks[0].attention, "norm", nn.Identity().eval()),
    "another wiring": lambda stack: stack.blocks.append(Block(step=ReZero(MLP(WIDTH, 8))).eval()),
    "two wirings": lambda stack: with_another(stack, PostNorm, MLP(WIDTH, 8)),
    "no block": lambda stack: stack.blocks.append(MLP(WIDTH, 8)),
    "no blocks": lambda stack: setattr(stack, "blocks", nn.ModuleList()),
}  # fmt: skip


@pytest.mark.parametrize("watcher", WATCHERS)
def test_what_is_not_known_or_watched_runs_as_it_is(watcher: str) -> None:
    stack = stack_of(lambda: LayerNorm(WIDTH), PreNorm)
    x = torch.randn(2, 3, WIDTH)
    assert plan_of(stack.blocks, x) is not None
    WATCHERS[watcher](stack)
    assert plan_of(stack.blocks, x) is None


def test_short_streams_are_not_served() -> None:
    """The ordinary way is as good."""
    assert not pays(torch.randn(2, 3, WIDTH))
    assert not pays(torch.randn(2, 3, WIDTH, dtype=torch.bfloat16))
    assert not pays(torch.randn(8, 4096, WIDTH, dtype=torch.half))


def test_more_than_an_answer_is_asked_for_with_gradients_a_cache_or_a_ledger() -> None:
    x, ctx = torch.randn(2, 3, WIDTH), Context(tokens=Tokens(3))
    assert not only_answers(x, ctx)
    with torch.no_grad():
        assert only_answers(x, ctx)
        assert not only_answers(x, replace(ctx, cache=PreallocatedCache(4)))
        assert not only_answers(x, replace(ctx, ledger=Ledger(nn.Identity(), ["weights"])))
        with torch.autocast("cpu", torch.bfloat16):
            assert not only_answers(x, ctx)


@pytest.mark.parametrize("wiring", [PreNorm, PostNorm])
@torch.no_grad()
def test_of_the_last_block_only_those_slots_are_computed_that_are_wanted(wiring: Any) -> None:
    stack = stack_of(lambda: LayerNorm(WIDTH), wiring, LayerNorm(WIDTH)).eval()
    x, ctx, tokens = torch.randn(2, 9, WIDTH), Context(tokens=Tokens(9)), []
    expected = stack(x, ctx)
    for block in stack.blocks:
        of_last = block.feed_forward.mixer.outer
        of_last.forward = lambda given, of=of_last: tokens.append(given.shape[1]) or nn.Linear.forward(of, given)
    torch.testing.assert_close(stack(x, replace(ctx, wanted=2)), expected)  # who is watched gets all
    assert tokens == [9] * len(stack.blocks)
    del stack.blocks[-1].feed_forward.mixer.outer.forward
    found = stack(x, replace(ctx, wanted=2))
    assert found.shape == (2, 2, WIDTH)
    torch.testing.assert_close(found, expected[:, :2])
    padded = Tokens.padded(torch.tensor([9, 4]), 9)
    assert stack(x, replace(ctx, tokens=padded, wanted=2)).shape == x.shape  # its first token may stand further on


@torch.no_grad()
def test_a_text_is_classified_by_its_first_slot_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids, wanted = small_text.small_model("bert", "classification"), torch.randint(3, 23, (3, 7)), []

    def noted(*given: Any) -> Tensor:
        wanted.append(given[4])
        return in_place(*given)

    monkeypatch.setattr(stacks, "in_place", noted)
    found = model(ids)
    assert wanted == [1]
    monkeypatch.setattr("qkv.models.text_model.slots_read", lambda head: None)
    torch.testing.assert_close(found, model(ids))
    assert len(wanted) == 1
