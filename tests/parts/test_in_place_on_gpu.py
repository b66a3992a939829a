"""Blocks in place on a GPU, by programs, against blocks as they are.

pytest -m gpu tests/parts
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.parts import activated_map, embed
from qkv.parts import in_place as places
from qkv.parts import stack as stacks
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.in_line import InLine
from qkv.parts.attention.visibility import Tokens
from qkv.parts.block import Block
from qkv.parts.context import Context, Ledger
from qkv.parts.feedforward import MLP
from qkv.parts.in_place import in_place
from qkv.parts.norm import LayerNorm, RMSNorm
from qkv.parts.position import ALiBi
from qkv.parts.residual import PostNorm, PreNorm
from qkv.parts.stack import Stack
from tests.models import small_images
from tests.parts.test_in_place import CASES, WIDTH, given_to_stack, stack_of

pytestmark = pytest.mark.gpu


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
    assert taken == [2, 4, 4]  # in float32 the last block alone
    torch.testing.assert_close(found, with_all, atol=0.05, rtol=0.05)
    torch.testing.assert_close(found.float(), expected, atol=0.1, rtol=0.1)
    model.stack.register_forward_hook(lambda _, given, answer: seen.append((given[0].shape, answer.shape)))
    model(images)
    assert seen[0][0] == seen[0][1]


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


@torch.no_grad()
def test_on_a_gpu_answers_repeat_bit_for_bit(taken: list[int]) -> None:
    stack = stack_of(lambda: LayerNorm(WIDTH), PreNorm, LayerNorm(WIDTH)).cuda().bfloat16()
    x, ctx = torch.randn(300, 7, WIDTH, device="cuda", dtype=torch.bfloat16), Context(tokens=Tokens(7))
    first = stack(x, ctx)
    assert all(torch.equal(stack(x, ctx), first) for _ in range(3))
    assert len(taken) == 4


@pytest.mark.parametrize("width", [384, 768])
@pytest.mark.parametrize("wanted", [None, 1])
@torch.no_grad()
def test_on_a_gpu_products_norm_the_stream_of_an_encoder(
    width: int, wanted: int | None, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a GPU with warpgroups")
    torch.manual_seed(0)
    blocks = [
        Block(
            attention=PostNorm(LayerNorm(width, 1e-12), Attention(width, width // 64)),
            feed_forward=PostNorm(LayerNorm(width, 1e-12), MLP(width, 4 * width)),
        )
        for _ in range(3)
    ]
    stack = Stack(blocks).cuda().eval()
    for parameter in stack.parameters():
        parameter.add_(0.02 * torch.randn_like(parameter))
    exact, narrow, products = deepcopy(stack).double(), stack.bfloat16(), []

    def noted(*given: Any) -> None:
        products.append(len(given[0]))
        activated_map.add_normed_map(*given)

    monkeypatch.setattr(places, "add_normed_map", noted)
    monkeypatch.setattr(activated_map, "LEAST", 1)
    x, ctx = torch.randn(40, 33, width, device="cuda").bfloat16(), Context(tokens=Tokens(33), wanted=wanted)
    wide, found = exact(x.double(), ctx)[:, :wanted], narrow(x, ctx)
    assert taken == ([6] if wanted is None else [2, 6])  # in double precision the last block alone
    assert products == [40 * 33] * 4 + [40 * (wanted or 33)] * 2
    assert all(torch.equal(narrow(x, ctx), found) for _ in range(3))
    monkeypatch.setattr(stacks, "only_answers", lambda *_: False)
    ordinary = narrow(x, ctx)[:, :wanted]
    error, usual = ((each.double() - wide).square().mean().sqrt() for each in (found, ordinary))
    assert error <= 1.1 * usual


@torch.no_grad()
def test_on_a_gpu_the_tokens_of_a_stack_with_a_bias_for_scores(taken: list[int]) -> None:
    stack = stack_of(lambda: RMSNorm(WIDTH), PreNorm, RMSNorm(WIDTH), bias=ALiBi(2)).cuda()
    x, ctx = torch.randn(2, 9, WIDTH, device="cuda"), Context(tokens=Tokens(9))
    expected = stack(x, ctx)
    found = stack.bfloat16()(x.bfloat16(), ctx)
    assert len(taken) == 1
    torch.testing.assert_close(found.float(), expected, atol=0.1, rtol=0.1)
