"""A model divided among tensor ranks answers, learns and steps as the whole one does."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from qkv.errors import QkvError
from qkv.models.attention_choice import AttentionChoice
from qkv.models.catalogue import build
from qkv.parts.attention.attention import Attention, MultiHead
from qkv.parts.attention.visibility import Causal, SameDocument, Tokens
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.feedforward import GatedMLP
from qkv.parts.linear import JoinedLinear
from qkv.parts.position import ALiBi, positions_in_documents
from qkv.parts.residual import PreNorm
from qkv.parts.stack import Stack
from qkv.train.adapt.lora import add_lora
from qkv.train.parallel.tensor import divide_tensors
from tests.models import small, small_images, small_sounds, small_text
from tests.models.test_detr import OBJECTS, SIZES
from tests.train.parallel.divided import close, ids, text_model, ways
from tests.train.parallel.ranks import run_ranks
from tests.train.parallel.wholes import whole_tensors

Work = Callable[[nn.Module], Any]


def text_cases() -> dict[str, tuple[nn.Module, Work]]:
    gpt2, llama = text_model("gpt2"), text_model("llama", key_value_heads=2, attention_bias=True)
    bert = text_model("bert", "masked")
    documents = torch.tensor([[1, 1, 1, 1, 2, 2, 3, 0, 0], [1, 2, 2, 2, 2, 2, 2, 2, 2]])
    packed = {"tokens": Tokens(9, documents=documents), "positions": positions_in_documents(documents)}
    return {
        "GPT-2, one token": (gpt2, lambda model: model(ids(2, 1))),
        "GPT-2, two": (gpt2, lambda model: model(ids(2, 2))),
        "GPT-2, nine": (gpt2, lambda model: model(ids(2, 9))),
        "GPT-2, padded": (gpt2, lambda model: model(ids(2, 9), lengths=torch.tensor([9, 4]))),
        "GPT-2, packed": (gpt2, lambda model: model(ids(2, 9), visibility=SameDocument(), **packed)),
        "Llama, grouped queries": (llama, lambda model: model(ids(2, 9))),
        "BERT": (bert, lambda model: model(ids(2, 9), lengths=torch.tensor([9, 4]), segments=ids(2, 9) % 2)),
    }


def translating_cases() -> dict[str, tuple[nn.Module, Work]]:
    def work(model: nn.Module) -> Tensor:
        answer: Tensor = model(ids(2, 7), torch.tensor([7, 4]), ids(2, 5))
        return answer

    images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    return {
        "T5": (small.small_model("t5"), work),
        "the Transformer": (small.small_model("transformer"), work),
        "ViT": (small_images.small_model("vit"), lambda model: model(images)),
    }


def further_cases() -> dict[str, tuple[nn.Module, Work]]:
    """Parts that the others do not have: marked tokens, blocks, one block many times, positions apart, gates, ALiBi."""
    torch.manual_seed(0)
    norm, options = nn.LayerNorm(8), {"value_width": 6, "key_width": 2, "visibility": Causal()}
    stack = Stack(
        [
            Block(
                attention=PreNorm(_Normed(norm), Attention(8, 4, **options)),
                gated=PreNorm(_Normed(norm), GatedMLP(8, 6)),
            )
        ],
        bias=ALiBi(4),
    )
    detr = build("detr", SIZES, OBJECTS).eval()
    for made in (stack, detr):
        small.perturb(made)
    frames = torch.randn(2, 5, 8)
    waves, pictures = torch.randn(2, 200), torch.randn(2, 3, 40, 56)
    marks = torch.zeros(2, 9, dtype=torch.bool).index_fill(1, torch.tensor([0, 4]), True)
    return {
        "ALiBi": (stack, lambda model: model(frames, Context(tokens=Tokens(5)))),
        "DETR": (detr, lambda model: model(pictures)[0]),
        "ALBERT": (text_model("albert"), lambda model: model(ids(2, 9))),
        "Longformer": (text_model("longformer"), lambda model: model(ids(2, 9), tokens=Tokens(9, marks=marks))),
        "BigBird": (text_model("big-bird", block=2, randoms=1, positions=24), lambda model: model(ids(2, 18))),
        "wav2vec 2.0": (small_sounds.new_sound(), lambda model: model(waves)),
    }


class _Normed(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.norm(x)


def learn(model: nn.Module, work: Work) -> Tensor:
    """The answer, and gradients of all of it in the parameters."""
    model.zero_grad()
    answer = work(model)
    answer = torch.cat([each.flatten() for each in answer]) if isinstance(answer, tuple) else answer
    (answer * torch.linspace(-1, 2, answer.numel()).view_as(answer)).sum().backward()
    return answer.detach()


def agree(cases: Callable[[], dict[str, tuple[nn.Module, Work]]]) -> None:
    """Answers and all gradients are those of the whole model."""
    mesh, divided = ways(dist.get_world_size()), {}
    for case, (model, work) in cases().items():
        answer = learn(model, work)
        mine = divided.get(model)
        if mine is None:
            mine = divided[model] = deepcopy(model)
            divide_tensors(mine, mesh)
        torch.testing.assert_close(
            learn(mine, work), answer, rtol=1e-4, atol=1e-5, msg=lambda text, case=case: f"{case}: {text}"
        )
        close(whole_tensors(mine, gradients=True), whole_tensors(model, gradients=True))


def wide_cases() -> dict[str, tuple[nn.Module, Work]]:
    llama = text_model("llama", heads=8, key_value_heads=4, width=32, hidden=24)
    return {"Llama": (llama, lambda model: model(ids(2, 9)))}


@pytest.mark.parametrize("cases", [text_cases, translating_cases, further_cases])
def test_two_ranks_answer_and_learn_as_one_process_does(cases: Callable[[], Any]) -> None:
    run_ranks(2, agree, cases)


def test_four_ranks_do_too() -> None:
    run_ranks(4, agree, wide_cases)


def laid_out() -> list[str]:
    """What is whole and what is divided."""
    model = text_model("gpt2")
    frozen = model.stack.blocks[0].feed_forward.mixer
    frozen.requires_grad_(False)
    before = {name: parameter.shape for name, parameter in model.named_parameters()}
    divide_tensors(model, ways(2))
    assert {name: parameter.shape for name, parameter in model.named_parameters()} == before
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    attention = model.stack.blocks[1].attention.mixer
    assert (attention.heads, attention.key_value_heads, attention.query_size) == (2, 2, 8)
    assert attention.project.outputs == {"query": 8, "key": 8, "value": 8}
    assert attention.project.stretches()[:4] == [("query", 0, 8), ("key", 0, 8), ("value", 0, 8), ("query", 8, 8)]
    return [
        f"{name} {parameter.placements[0].dim}"
        for name, parameter in model.stack.blocks[1].named_parameters()
        if isinstance(parameter, DTensor) and isinstance(parameter.placements[0], Shard)
    ]


def test_maps_are_divided_by_heads_and_hidden_units_and_all_else_is_whole() -> None:
    for divided in run_ranks(2, laid_out):
        assert sorted(divided) == [
            "attention.mixer.out.weight 1",
            "attention.mixer.project.bias 0",
            "attention.mixer.project.weight 0",
            "feed_forward.mixer.inner.bias 0",
            "feed_forward.mixer.inner.weight 0",
            "feed_forward.mixer.outer.weight 1",
        ]


@torch.no_grad()
def decoded_and_dropped() -> Tensor:
    model = text_model("gpt2", attention_dropout=0.1)
    expected = model(ids(2, 6))
    divide_tensors(model, ways(2))
    cache = model.new_cache(6)
    found = [model(part, cache=cache) for part in ids(2, 6).split((4, 1, 1), 1)]
    torch.testing.assert_close(torch.cat(found, 1), expected, rtol=1e-4, atol=1e-5)
    torch.manual_seed(5)
    answer: Tensor = model.train()(ids(2, 9))
    return answer


def test_a_cache_keeps_a_ranks_own_heads_and_one_seed_drops_the_same_units_of_the_stream() -> None:
    one, other = run_ranks(2, decoded_and_dropped)
    assert torch.equal(one, other), "units that one rank drops and another keeps would part their streams"


def linformer() -> nn.Module:
    model = text_model("bert")
    return AttentionChoice.parse("linformer:4").put_into(model)


def adapted() -> nn.Module:
    model = text_model("gpt2")
    add_lora(model)
    return model


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "queries": (lambda: text_model("llama", heads=4, key_value_heads=1), "the 1 key/value heads and 4 query heads of"),
    "heads": (lambda: text_model("gpt2", heads=3, width=12), "3 key/value heads and 3 query heads"),
    "hidden": (lambda: text_model("gpt2", hidden=15), "the 15 hidden units of stack.blocks.0.feed_forward.mixer"),
    "experts": (lambda: small.small_model("switch"), "by expert:2"),
    "gated experts": (lambda: text_model("mixtral", key_value_heads=2), "by expert:2"),
    "recurrent": (lambda: small.small_model("rnn"), "a recurrent net"),
    "hashed": (lambda: small_text.small_model("reformer"), "an attention by LSHKernel"),
    "Linformer": (linformer, "an attention by LinformerKernel"),
    "sums": (lambda: AttentionChoice.parse("performer:8").put_into(text_model("gpt2")), "a SummingAttention"),
    "updates": (adapted, "low-rank updates"),
    "nothing": (lambda: nn.Linear(4, 4), "no attention or feed-forward"),
}


def refuse() -> dict[str, str]:
    """What is said of each; nothing may have changed."""
    mesh, said = ways(2), {}
    for name, (make, _) in REFUSED.items():
        model = make()
        try:
            divide_tensors(model, mesh)
        except QkvError as error:
            said[name] = str(error)
        assert not any(isinstance(parameter, DTensor) for parameter in model.parameters())
        for module in model.modules():
            assert not isinstance(module, JoinedLinear) or module.stretches() == JoinedLinear.stretches(module)
            assert not isinstance(module, MultiHead) or module.query_size == module.heads * module.key_width
    return said


def test_what_cannot_be_divided_is_refused_before_anything_changes() -> None:
    said, _ = run_ranks(2, refuse)
    for name, (_, expected) in REFUSED.items():
        assert expected in said.get(name, "nothing was said"), name
