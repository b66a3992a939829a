"""Mixtures of experts against their definition, written token by token."""

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context, Ledger
from qkv.parts.experts import BALANCE, DROPPED, FIGURES, LOADS, Experts, GatedExperts, Mixture
from qkv.parts.grouped import EvenGroups, Groups
from qkv.parts.routing import Capacity, Router, of_all, of_chosen

WIDTH, HIDDEN, EXPERTS, ROWS, SLOTS = 8, 16, 4, 3, 13
KINDS = {"plain": Experts, "gated": GatedExperts}


def mixture(kind: str, chosen: int = 1, dropout: float = 0.0, **options: object) -> Mixture:
    torch.manual_seed(0)
    made = KINDS[kind](WIDTH, HIDDEN, Router(WIDTH, EXPERTS, chosen, **options), dropout=dropout).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def context(**more: object) -> Context:
    return Context(tokens=Tokens(SLOTS), **more)


def token_by_token(model: Mixture, x: Tensor) -> Tensor:
    """Σ weight · expert(token), each expert an ordinary feed-forward; where it is full, nothing."""
    routing = model.router(x, context())
    rows = []
    for row, experts, weights in zip(x, routing.experts, routing.weights, strict=True):
        made = []
        for token, numbers, shares in zip(row, experts.tolist(), weights, strict=True):
            total = torch.zeros_like(token)
            for number, share in zip(numbers, shares, strict=True):
                if isinstance(model, GatedExperts):
                    hidden = model.activation(token @ model.gate.weight[number]) * (token @ model.value.weight[number])
                else:
                    hidden = model.activation(token @ model.inner.weight[number])
                total = total + share * (hidden @ model.outer.weight[number])
            made.append(total)
        rows.append(torch.stack(made))
    return torch.stack(rows)


@pytest.mark.parametrize("capacity", [None, Capacity(2), Capacity(factor=1.0)], ids=str)
@pytest.mark.parametrize(("chosen", "shares"), [(1, of_all), (2, of_chosen), (3, of_chosen), (4, of_all)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_mixture_is_what_its_definition_says_token_by_token(kind, chosen, shares, capacity) -> None:
    model, x = mixture(kind, chosen, shares=shares, capacity=capacity), torch.randn(ROWS, SLOTS, WIDTH)
    x.requires_grad_()
    found, expected = model(x, context()), token_by_token(model, x)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    pull, inputs = torch.randn_like(found), (x, *model.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(found, inputs, pull), torch.autograd.grad(expected, inputs, pull), strict=True
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-3)


def test_a_token_whose_expert_is_full_gets_nothing() -> None:
    model, x = mixture("plain", capacity=Capacity(1)), torch.randn(ROWS, SLOTS, WIDTH)
    kept = model.router(x, context()).kept[..., 0]
    assert not kept.all()
    assert torch.equal((model(x, context()) == 0).all(-1), ~kept)


@pytest.mark.parametrize(
    ("capacity", "tokens", "expected"),
    [
        (Capacity(4), Tokens(SLOTS), EvenGroups),
        (Capacity(5), Tokens(SLOTS), Groups),  # 20 places for 13 tokens
        (Capacity(4), Tokens.padded(torch.tensor([13, 5, 9]), SLOTS), Groups),
        (None, Tokens(SLOTS), Groups),
    ],
)
def test_tokens_have_places_of_their_own_where_few_stay_empty(capacity, tokens, expected) -> None:
    model = mixture("plain", capacity=capacity)
    routing = model.router(torch.randn(ROWS, SLOTS, WIDTH), Context(tokens=tokens))
    assert type(model.grouping(routing)) is expected


@pytest.mark.parametrize("kind", KINDS)
def test_in_bfloat16_the_kernel_computes_the_same(kind: str) -> None:
    model, x = mixture(kind, 2, shares=of_chosen), torch.randn(ROWS, SLOTS, WIDTH).bfloat16()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
        wide = model(x.float(), context())
        narrow = model.bfloat16()(x, context())
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), wide, atol=0.1, rtol=0.1)


def test_autocast_narrows_experts_and_not_the_router() -> None:
    model, x = mixture("plain"), torch.randn(ROWS, SLOTS, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(x, context())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), model(x, context()), atol=0.1, rtol=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_expert_dropout_falls_on_hidden_units_in_training_alone(kind: str) -> None:
    model, x = mixture(kind, dropout=0.5), torch.randn(ROWS, SLOTS, WIDTH)
    assert torch.equal(model(x, context()), model(x, context()))
    model.train()
    seen: list[Tensor] = []
    model.dropout.register_forward_hook(lambda module, given, made: seen.append((made == 0) & (given[0] != 0)))
    assert not torch.allclose(model(x, context()), model(x, context()))
    (first, second) = seen
    assert first.shape == (ROWS * SLOTS, HIDDEN)
    assert first.any(-1).all()
    assert not torch.equal(first, second)


def test_experts_tell_a_ledger_how_they_were_used() -> None:
    model, x = mixture("plain", capacity=Capacity(2)), torch.randn(ROWS, SLOTS, WIDTH)
    ledger = Ledger(model, FIGURES)
    model(x, context(ledger=ledger))
    assert ledger.entries.keys() == {f"/{kind}" for kind in FIGURES}
    experts = model.router(x, context()).experts.flatten()
    (found,) = ledger.entries[f"/{LOADS}"]
    torch.testing.assert_close(found, experts.bincount(minlength=EXPERTS) / len(experts))
    few = Ledger(model, [DROPPED])
    model(x, context(ledger=few))
    assert list(few.entries) == [f"/{DROPPED}"]


def test_the_balance_loss_has_a_gradient() -> None:
    model = mixture("plain")
    ledger = Ledger(model, [BALANCE])
    model(torch.randn(ROWS, SLOTS, WIDTH), context(ledger=ledger))
    ((value,),) = ledger.entries.values()
    value.backward()
    assert model.router.weight.grad.abs().max() > 0


def test_a_compiled_block_records_as_well() -> None:
    """New ledgers and shapes from step to step are no new code, and what is held is what is held without compiling."""
    model = mixture("plain", capacity=Capacity(3))
    torch._dynamo.reset()
    counters["stats"].clear()
    compiled = torch.compile(model.forward, backend="eager", fullgraph=True, dynamic=True)
    for rows in (2, 3, 5):
        x, entries = torch.randn(rows, SLOTS, WIDTH), []
        for forward in (compiled, model):
            ledger = Ledger(model, FIGURES)
            forward(x, context(ledger=ledger)).sum().backward()
            entries.append({name: value for name, (value,) in ledger.entries.items()})
        assert entries[0].keys() == entries[1].keys() == {f"/{kind}" for kind in FIGURES}
        for name, value in entries[0].items():
            torch.testing.assert_close(value, entries[1][name])
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_the_host_never_waits(dtype: torch.dtype) -> None:
    model, x = mixture("plain", capacity=Capacity(2)).to("cuda", dtype), torch.randn(ROWS, SLOTS, WIDTH)
    documents = (torch.arange(SLOTS) < torch.tensor([[13], [4], [9]])).long()
    expected = mixture("plain", capacity=Capacity(2))(x, Context(tokens=Tokens(SLOTS, documents=documents)))
    x, documents = x.to("cuda", dtype).requires_grad_(), documents.to("cuda")
    ctx = Context(tokens=Tokens(SLOTS, documents=documents), ledger=Ledger(model, FIGURES))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = model(x, ctx)
        found.sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    if dtype == torch.float32:
        torch.testing.assert_close(found.cpu(), expected, atol=1e-3, rtol=1e-3)
    assert x.grad.isfinite().all()
