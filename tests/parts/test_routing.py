"""Routers against their definitions, written token by token."""

import math

import pytest
import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.attention.cache import PreallocatedCache
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.routing import (
    Capacity,
    Router,
    Routing,
    Tally,
    balance_loss,
    dropped,
    loads,
    of_chosen,
    tally,
    z_loss,
)

WIDTH, EXPERTS, ROWS, SLOTS = 6, 4, 3, 17


def router(chosen: int = 1, **options: object) -> Router:
    torch.manual_seed(0)
    made = Router(WIDTH, EXPERTS, chosen, **options).eval()
    torch.nn.init.normal_(made.weight)
    return made


def context(documents: Tensor | None = None, slots: int = SLOTS, start: int = 0, cache: object = None) -> Context:
    return Context(tokens=Tokens(slots, start, documents), cache=cache)


def room_by_definition(experts: Tensor, documents: Tensor, capacity: Capacity) -> list[list[list[bool]]]:
    """Token by token, its choices in order: an expert that has taken its number of a text takes no more of it."""
    answer = []
    for row, texts in zip(experts.tolist(), documents.tolist(), strict=True):
        taken: dict[tuple[int, int], int] = {}
        found = []
        for choices, text in zip(row, texts, strict=True):
            most = capacity.of(texts.count(text), EXPERTS)
            found.append([])
            for expert in choices:
                found[-1].append(taken.get((text, expert), 0) < most)
                taken[text, expert] = taken.get((text, expert), 0) + 1
        answer.append(found)
    return answer


def test_a_token_goes_to_the_likeliest_and_counts_as_much() -> None:
    route, x = router(), torch.randn(ROWS, SLOTS, WIDTH)
    routing = route(x, context())
    probabilities = (x @ route.weight.T).softmax(-1)
    assert torch.equal(routing.experts[..., 0], probabilities.argmax(-1))
    torch.testing.assert_close(routing.weights[..., 0], probabilities.amax(-1))
    assert routing.kept is None


@pytest.mark.parametrize("chosen", [1, 2, 3])
def test_the_weights_of_the_chosen_are_a_softmax_over_them_alone(chosen: int) -> None:
    x = torch.randn(ROWS, SLOTS, WIDTH)
    routing = router(chosen, shares=of_chosen)(x, context())
    torch.testing.assert_close(routing.weights, routing.logits.gather(-1, routing.experts).softmax(-1))
    assert torch.equal(routing.experts, routing.logits.topk(chosen).indices)


@pytest.mark.parametrize(
    "capacity", [Capacity(1), Capacity(3), Capacity(SLOTS), Capacity(factor=1.0), Capacity(factor=2.5)]
)
@pytest.mark.parametrize("chosen", [1, 2])
@pytest.mark.parametrize(
    "texts",
    [[1] * SLOTS, [1] * 11 + [0] * 6, [0] * 5 + [1] * 12, [1] * 7 + [2] * 6 + [3] + [0] * 3],
    ids=["whole", "padded", "padded before", "packed"],
)
def test_an_expert_takes_so_many_tokens_of_a_text_and_no_more(
    capacity: Capacity, chosen: int, texts: list[int]
) -> None:
    documents, x = torch.tensor([texts] * ROWS), torch.randn(ROWS, SLOTS, WIDTH)
    routing = router(chosen, capacity=capacity)(x, context(documents))
    expected = torch.tensor(room_by_definition(routing.experts, documents, capacity))
    assert torch.equal(routing.kept, expected)
    assert torch.equal(routing.weights == 0, ~expected)
    if documents.min() == documents.max():
        assert torch.equal(router(chosen, capacity=capacity)(x, context()).kept, expected)


def test_a_capacity_is_that_of_the_paper() -> None:
    assert Capacity(factor=1.25).of(512, 8) == 80
    assert Capacity(factor=1.0).of(10, 8) == math.ceil(10 / 8)
    assert Capacity(64).of(512, 8) == 64


@pytest.mark.parametrize("wrong", [{}, {"tokens": 3, "factor": 1.0}, {"tokens": 0}, {"factor": -1.0}])
def test_a_capacity_says_one_thing(wrong: dict[str, float]) -> None:
    with pytest.raises(QkvError, match="one of them and above 0"):
        Capacity(**wrong)


@pytest.mark.parametrize("chosen", [0, EXPERTS + 1])
def test_more_experts_than_there_are_cannot_be_chosen(chosen: int) -> None:
    with pytest.raises(QkvError, match=f"not to {chosen}"):
        Router(WIDTH, EXPERTS, chosen)


def test_earlier_steps_have_filled_experts_too() -> None:
    """Beams change places and steps are taken back, as in decoding."""
    route, x = router(capacity=Capacity(2)), torch.randn(ROWS, SLOTS, WIDTH)
    cache = PreallocatedCache(SLOTS)

    def read(start: int, end: int) -> Tensor:
        ctx = context(None, end - start, start, cache)
        kept = route(x[:, start:end], ctx).kept
        cache.advance(ctx.tokens)
        return kept

    whole = route(x, context()).kept
    parts = [read(0, 6), read(6, 7), read(7, 11)]
    cache.truncate(9)
    parts[-1] = torch.cat((parts[-1][:, :2], read(9, 11)), 1)
    order = torch.tensor([2, 0, 0])
    cache.select(order)
    x = x[order]
    after = torch.cat((read(11, 16), read(16, 17)), 1)
    assert torch.equal(torch.cat(parts, 1), whole[:, :11])
    assert torch.equal(after, whole[order, 11:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_router_computes_in_float32_whatever_the_rest_does(dtype: torch.dtype) -> None:
    route, x = router(), torch.randn(ROWS, SLOTS, WIDTH)
    narrow = router().to(dtype)
    routing = narrow(x.to(dtype), context())
    assert routing.logits.dtype == routing.weights.dtype == torch.float32
    torch.testing.assert_close(routing.logits, x.to(dtype).float() @ narrow.weight.float().T)
    with torch.autocast("cpu", torch.bfloat16):
        routing = route(x, context())
    torch.testing.assert_close(routing.logits, x @ route.weight.T)


def test_jitter_falls_in_training_alone_and_on_the_router_alone() -> None:
    route, x = router(jitter=0.1), torch.randn(ROWS, SLOTS, WIDTH)
    plain, before = x @ route.weight.T, x.clone()
    torch.testing.assert_close(route(x, context()).logits, plain)
    noisy = route.train()(x, context()).logits
    assert torch.equal(x, before)
    assert not torch.allclose(noisy, plain)
    bound = 0.1 * (x.abs() @ route.weight.abs().T)
    assert ((noisy - plain).abs() <= bound + 1e-5).all()


def test_a_bias_moves_the_logits() -> None:
    route, x = router(bias=True), torch.randn(ROWS, SLOTS, WIDTH)
    torch.nn.init.normal_(route.bias)
    torch.testing.assert_close(route(x, context()).logits, x @ route.weight.T + route.bias)


def some_routing(chosen: int) -> tuple[Routing, Tally, list[tuple[Tensor, Tensor]]]:
    """A routing with padding, its tally, and logits and choices of the real tokens."""
    documents = (torch.arange(SLOTS) < torch.tensor([[17], [4], [9]])).long()
    ctx, x = context(documents), torch.randn(ROWS, SLOTS, WIDTH)
    routing = router(chosen, capacity=Capacity(2))(x, ctx)
    sums = tally(routing, ctx)
    assert sums.tokens == documents.sum()
    pairs = [(routing.logits[row, slot], routing.experts[row, slot]) for row, slot in documents.nonzero().tolist()]
    return routing, sums, pairs


@pytest.mark.parametrize("chosen", [1, 2])
def test_the_balance_loss_is_that_of_the_paper(chosen: int) -> None:
    _, sums, pairs = some_routing(chosen)
    shares = [
        sum(expert in choices.tolist() for _, choices in pairs) / (chosen * len(pairs)) for expert in range(EXPERTS)
    ]
    means = torch.stack([logits.softmax(-1) for logits, _ in pairs]).mean(0)
    expected = EXPERTS * sum(share * mean for share, mean in zip(shares, means.tolist(), strict=True))
    assert balance_loss(sums).item() == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(loads(sums), torch.tensor(shares))
    assert loads(sums).sum().item() == pytest.approx(1)


def test_the_balance_loss_is_least_where_experts_are_used_alike() -> None:
    route, x = router(), torch.eye(WIDTH)[None, :EXPERTS].repeat(1, 5, 1)
    ctx = context(slots=5 * EXPERTS)
    with torch.no_grad():
        route.weight.copy_(9 * torch.eye(EXPERTS, WIDTH))
    assert balance_loss(tally(route(x, ctx), ctx)).item() == pytest.approx(1.0)
    with torch.no_grad():
        route.weight[0] += 40
    assert balance_loss(tally(route(x, ctx), ctx)).item() == pytest.approx(EXPERTS, rel=1e-3)


def test_the_z_loss_is_that_of_the_paper() -> None:
    _, sums, pairs = some_routing(1)
    expected = sum(math.log(sum(math.exp(x) for x in logits.tolist())) ** 2 for logits, _ in pairs) / len(pairs)
    assert z_loss(sums).item() == pytest.approx(expected, rel=1e-5)


def test_the_share_dropped_is_counted_on_real_tokens() -> None:
    routing, sums, pairs = some_routing(1)
    real = torch.arange(SLOTS) < torch.tensor([[17], [4], [9]])
    expected = float((~routing.kept[..., 0] & real).sum()) / len(pairs)
    assert expected > 0.1
    assert dropped(sums).item() == pytest.approx(expected)
    ctx = context()
    assert dropped(tally(router()(torch.randn(ROWS, SLOTS, WIDTH), ctx), ctx)).item() == 0


def test_padding_alone_has_no_losses() -> None:
    documents, x = torch.zeros(ROWS, SLOTS, dtype=torch.long), torch.randn(ROWS, SLOTS, WIDTH)
    ctx = context(documents)
    sums = tally(router(capacity=Capacity(2))(x, ctx), ctx)
    assert balance_loss(sums) == z_loss(sums) == dropped(sums) == 0
