"""Blocks in place against blocks as they are: every family whose parts are known, padded, in line and in rows."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.models import ast
from qkv.models.catalogue import build
from qkv.models.head_choice import HeadChoice
from qkv.parts import embed
from qkv.parts import in_place as places
from qkv.parts import stack as stacks
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.in_line import InLine
from qkv.parts.attention.visibility import SameDocument, Tokens
from qkv.parts.block import Block
from qkv.parts.context import Context, Ledger
from qkv.parts.feedforward import MLP, ChunkedMLP, GatedMLP
from qkv.parts.in_place import in_place, only_answers, plan_of
from qkv.parts.norm import LayerNorm, RMSNorm
from qkv.parts.position import ALiBi
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


def test_only_a_gpu_in_half_precision_without_gradients_is_served() -> None:
    """Elsewhere the ordinary way is as good, or someone needs what lies between."""
    ctx = Context(tokens=Tokens(3))
    assert not only_answers(torch.randn(2, 3, WIDTH), ctx)
    with torch.no_grad():
        assert not only_answers(torch.randn(2, 3, WIDTH), ctx)
        assert not only_answers(torch.randn(2, 3, WIDTH, dtype=torch.bfloat16), ctx)


# On a GPU, by programs.


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps were done in place, call by call."""
    calls: list[int] = []

    def noted(plan: Any, *given: Any) -> Tensor:
        calls.append(len(plan.steps))
        return in_place(plan, *given)

    monkeypatch.setattr(places, "ENOUGH", 1)
    monkeypatch.setattr(stacks, "in_place", noted)
    return calls


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_families_on_a_gpu_are_no_further_from_exact_answers_than_their_blocks(
    case: str, kind: torch.dtype, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, call, given = CASES[case]()
    exact = deepcopy(model).cuda().double()
    narrow: Any = deepcopy(model).cuda().to(kind)
    given = tuple(each.cuda() for each in given)
    x, ctx = given_to_stack(narrow, call, tuple(each.to(kind) if each.is_floating_point() else each for each in given))
    taken.clear()
    wide = exact.stack(x.double(), ctx)
    found = narrow.stack(x, ctx)
    assert taken == [2 * len(narrow.stack.order)]
    monkeypatch.setattr(stacks, "only_answers", lambda *_: False)
    ordinary = narrow.stack(x, ctx)
    assert len(taken) == 1
    assert found.dtype == ordinary.dtype == kind
    assert found.shape == ordinary.shape
    real = slice(None) if ctx.tokens.documents is None else ctx.tokens.documents > 0
    error, usual = ((each.double() - wide)[real].square().mean().sqrt() for each in (found, ordinary))
    assert error <= 1.4 * usual  # but for chance, in so few numbers
    torch.testing.assert_close(found[real].double(), wide[real], atol=0.1, rtol=0.1)


@pytest.mark.gpu
@torch.no_grad()
def test_on_a_gpu_who_watches_sees_every_block(taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    stack = stack_of(lambda: LayerNorm(WIDTH), PreNorm, LayerNorm(WIDTH)).cuda().bfloat16()
    x = torch.randn(2, 3, WIDTH, device="cuda", dtype=torch.bfloat16)
    ctx = Context(tokens=Tokens(3))
    stack(x, ctx)
    assert len(taken) == 1
    with torch.enable_grad():
        stack(x, ctx)
    with torch.autocast("cuda", torch.bfloat16):
        stack(x, ctx)
    ledger = Ledger(stack, ["weights"])
    stack(x, Context(tokens=Tokens(3), ledger=ledger))
    assert len(ledger.written) == 4
    stack.float()(x.float(), ctx)
    assert len(taken) == 1
    stack.bfloat16()
    stack(x, Context(tokens=Tokens(3), ledger=Ledger(stack, [])))
    assert len(taken) == 2
    assert stack(x[:0], ctx).shape == (0, 3, WIDTH)
    monkeypatch.setattr(places, "ENOUGH", 1 << 20)
    stack(x, ctx)
    assert len(taken) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["vit", "deit", "clip-image"])
@torch.no_grad()
def test_on_a_gpu_the_last_block_is_done_for_those_slots_that_a_head_reads(family: str, taken: list[int]) -> None:
    kind = "projection" if family == "clip-image" else "classification"
    model = deepcopy(small_images.small_model(family, kind)).cuda()
    images, seen = torch.randn(3, model.sizes.channels, 12, 12, device="cuda"), []
    expected = model(images)
    model.bfloat16()
    with_all = model.head(model.states(images, model.context(images)), model.context(images))
    found = model(images)
    assert taken == [4, 4]
    torch.testing.assert_close(found, with_all, atol=0.05, rtol=0.05)
    torch.testing.assert_close(found.float(), expected, atol=0.1, rtol=0.1)
    model.stack.register_forward_hook(lambda _, given, answer: seen.append((given[0].shape, answer.shape)))
    model(images)
    assert seen[0][0] == seen[0][1]


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["bert", "bert in line", "distilbert in line", "roformer"])
@pytest.mark.parametrize("told", [False, True])
@torch.no_grad()
def test_on_a_gpu_embeddings_are_added_and_normed_at_once(
    case: str, told: bool, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = deepcopy(CASES[case]()[0]).cuda()
    lengths = [4, 2, 1] if "line" in case else [7] * 3
    line = InLine.of(lengths, "cuda") if "line" in case else Tokens(7)
    ids = torch.randint(3, 23, (1, 7) if "line" in case else (3, 7), device="cuda")
    segments = (ids % 2) if told and model.embed.tells_segments else None
    ctx = model.context(ids, tokens=line, segments=segments)
    expected, passes = model.embed(ids, ctx), []

    def noted(*given: Any, **more: Any) -> Any:
        passes.append(more)
        return places.norm_into(*given, **more)

    monkeypatch.setattr(embed, "norm_into", noted)
    model.bfloat16()
    found = model.embed(ids, ctx)
    assert len(passes) == 1
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=0.02, rtol=0.02)


@pytest.mark.gpu
@torch.no_grad()
def test_on_a_gpu_answers_repeat_bit_for_bit(taken: list[int]) -> None:
    stack = stack_of(lambda: LayerNorm(WIDTH), PreNorm, LayerNorm(WIDTH)).cuda().bfloat16()
    x, ctx = torch.randn(300, 7, WIDTH, device="cuda", dtype=torch.bfloat16), Context(tokens=Tokens(7))
    first = stack(x, ctx)
    assert all(torch.equal(stack(x, ctx), first) for _ in range(3))
    assert len(taken) == 4


@pytest.mark.gpu
@torch.no_grad()
def test_on_a_gpu_the_tokens_of_a_stack_with_a_bias_for_scores(taken: list[int]) -> None:
    stack = stack_of(lambda: RMSNorm(WIDTH), PreNorm, RMSNorm(WIDTH), bias=ALiBi(2)).cuda()
    x, ctx = torch.randn(2, 9, WIDTH, device="cuda"), Context(tokens=Tokens(9))
    expected = stack(x, ctx)
    found = stack.bfloat16()(x.bfloat16(), ctx)
    assert len(taken) == 1
    torch.testing.assert_close(found.float(), expected, atol=0.1, rtol=0.1)
