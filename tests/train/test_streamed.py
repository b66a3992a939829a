"""Sums that wait for the next norm while a stack trains: the same losses and gradients, or the stack as it is."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.errors import QkvWarning
from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.models.llama import LlamaSizes
from qkv.models.qwen3 import Qwen3Sizes
from qkv.models.vit import ViTSizes
from qkv.parts import agreement
from qkv.parts.attention.visibility import Causal
from qkv.parts.sum_norm import sum_norm
from qkv.train import streamed
from qkv.train.compiling import compiled_blocks
from tests.models.small import perturb

IDS = torch.randint(0, 23, (2, 9), generator=torch.Generator().manual_seed(0))
PICTURES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
PLAIN = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}


def gpt2(**options: Any) -> nn.Module:
    sizes = GPT2Sizes(vocabulary=23, positions=16, width=16, hidden=24, heads=2, layers=3, **{**PLAIN, **options})
    return build("gpt2", sizes, HeadChoice("language"))


def vit() -> nn.Module:
    sizes = ViTSizes(patch=4, image=16, width=16, hidden=24, heads=2, layers=2)
    return build("vit", sizes, HeadChoice("classification", labels=("a", "b", "c")))


def llama() -> nn.Module:
    sizes = LlamaSizes(vocabulary=23, positions=16, width=16, hidden=24, heads=2, key_value_heads=1, layers=2)
    return build("llama", sizes, HeadChoice("language"))


def qwen3() -> nn.Module:
    sizes = {"vocabulary": 23, "positions": 16, "width": 16, "hidden": 24, "heads": 2, "head_width": 4, "layers": 2}
    return build("qwen3", Qwen3Sizes(key_value_heads=1, **sizes), HeadChoice("language"))


def with_bias_off(model: Any) -> None:
    model.stack.blocks[1].feed_forward.mixer.outer.bias = None


def with_frozen_parts(model: Any) -> None:
    for parameter in (*model.stack.blocks[0].parameters(), model.stack.norm.weight):
        parameter.requires_grad_(False)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """As on a GPU, but for types; the list has the shape of each sum that was left to a norm."""
    as_on_a_gpu(monkeypatch)
    monkeypatch.setattr(streamed, "_agrees", lambda *_: True)  # whose sums are not counted
    found: list[tuple[int, ...]] = []

    def seen(name: str) -> None:
        own = getattr(streamed, name)

        def call(x: Tensor, *more: Any) -> Any:
            found.append(tuple(x.shape))
            return own(x, *more)

        monkeypatch.setattr(streamed, name, call)

    seen("sum_norm")
    seen("norm_of_sum")
    return found


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "runs_or_counts", lambda x: True)
    monkeypatch.setattr(streamed, "NARROW", (torch.float32,))
    monkeypatch.setattr(streamed, "ENOUGH", 1)


@pytest.mark.parametrize("make", [gpt2, llama, vit])
def test_a_stream_is_tried_beside_its_blocks_and_left_where_it_is_wrong(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_on_a_gpu(monkeypatch)
    model, given = make().train(), PICTURES if make is vit else IDS
    perturb(model)
    with warnings.catch_warnings(), in_stream(model):
        warnings.simplefilter("error")
        expected = model(given)
    monkeypatch.setattr(streamed, "sum_norm", lambda *given: tuple(1.01 * each for each in sum_norm(*given)))
    with in_stream(model), pytest.warns(QkvWarning, match="is not used here"):
        torch.testing.assert_close(model(given), expected)


def test_a_stream_that_loses_a_window_is_left_when_rows_pass_it(monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu(monkeypatch)
    monkeypatch.setattr(agreement, "refused", [])
    sizes = {"vocabulary": 23, "positions": 64, "width": 16, "hidden": 24, "heads": 2, "layers": 2}
    model: Any = build("llama", LlamaSizes(key_value_heads=1, window=12, **sizes), HeadChoice("language")).train()
    perturb(model)
    ids = torch.randint(0, 23, (2, 40), generator=torch.Generator().manual_seed(0))
    expected, right = model(ids), streamed._unbiased
    with warnings.catch_warnings(), in_stream(model):
        warnings.simplefilter("error")
        torch.testing.assert_close(model(ids), expected)

    def sees_all(mixer: Any, *given: Any) -> Tensor:
        own = mixer.__dict__.get("visibility")
        mixer.__dict__.update({} if own is None else {"visibility": Causal()})
        try:
            return right(mixer, *given)
        finally:
            mixer.__dict__.update({} if own is None else {"visibility": own})

    monkeypatch.setattr(streamed, "_unbiased", sees_all)
    with in_stream(model):
        model(ids[:, :11])  # such rows cannot tell
        with pytest.warns(QkvWarning, match="is not used here"):
            torch.testing.assert_close(model(ids), expected)


@contextmanager
def in_stream(model: Any) -> Iterator[None]:
    with streamed.streamed_stacks(model):
        yield
    assert "forward" not in model.stack.__dict__


def answers(model: nn.Module, given: Tensor) -> tuple[Tensor, dict[str, Tensor | None]]:
    model.zero_grad()
    y = model(given)
    (y * torch.linspace(-1, 1, y.numel(), device=y.device).view_as(y)).sum().backward()
    return y.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("change", [None, with_bias_off, with_frozen_parts])
@pytest.mark.parametrize(
    ("make", "given", "sums"), [(gpt2, IDS, 7), (vit, PICTURES, 5), (llama, IDS, 5), (qwen3, IDS, 5)]
)
def test_answers_and_gradients_are_those_of_the_modules(
    waiting: list[tuple[int, ...]], make: Any, given: Tensor, sums: int, change: Any
) -> None:
    torch.manual_seed(0)
    model = make()
    perturb(model)
    if change is not None:
        change(model)
    expected = answers(model.train(), given)
    with in_stream(model):
        found = answers(model, given)
    assert len(waiting) == sums
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def test_of_the_last_block_only_what_the_head_reads_is_computed(waiting: list[tuple[int, ...]]) -> None:
    model = vit().train()
    with in_stream(model):
        answers(model, PICTURES)
        assert [shape[1] for shape in waiting] == [17, 17, 17, 1, 1]
        waiting.clear()
        handle = model.stack.register_forward_hook(lambda *_: None)  # who watches sees all slots
        answers(model, PICTURES)
        handle.remove()
    assert [shape[1] for shape in waiting] == [17] * 5


def _hook(module: nn.Module, *_: object) -> None:
    pass


def watched(model: Any) -> None:
    model.stack.blocks[1].attention.mixer.out.register_forward_hook(_hook)


def watched_on_the_way_back(model: Any) -> None:
    model.stack.blocks[0].feed_forward.norm.register_full_backward_hook(_hook)


def in_8_bits(model: Any) -> None:
    project = model.stack.blocks[1].attention.mixer.project
    project.together = MethodType(type(project).together, project)


def replaced(model: Any) -> None:
    inner = model.stack.blocks[1].feed_forward.mixer.inner
    inner.forward = MethodType(nn.Linear.forward, inner)


@pytest.mark.parametrize("change", [watched, watched_on_the_way_back, in_8_bits, replaced])
def test_with_parts_that_others_changed_or_watch_the_stack_runs_as_it_is(waiting: list[Any], change: Any) -> None:
    model = gpt2().train()
    change(model)
    with in_stream(model):
        answers(model, IDS)
    assert not waiting


def test_what_drops_out_or_is_not_learned_from_runs_as_it_is(waiting: list[Any]) -> None:
    model = gpt2(dropout=0.1).train()
    with in_stream(model):
        model(IDS)
        assert not waiting
        model.eval()(IDS)
        assert waiting
        waiting.clear()
        with torch.no_grad():
            model(IDS)
        block = model.stack.blocks[0]  # type: ignore[union-attr,index]
        block.forward = MethodType(type(block).forward, block)  # as where blocks are computed twice
        model(IDS)
    assert not waiting


@pytest.mark.slow
def test_compiled_all_blocks_share_one_code_and_the_last_has_its_own_where_few_slots_are_read(
    waiting: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[Any] = []

    def keep(graph: torch.fx.GraphModule, inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    compile_ = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda code, dynamic: compile_(code, dynamic=dynamic, fullgraph=True, backend=keep)
    )
    monkeypatch.setattr(streamed, "sum_norm", sum_norm)  # the list would be part of the code
    for make, given, codes in ((gpt2, IDS, 1), (vit, PICTURES, 2)):
        torch._dynamo.reset()
        graphs.clear()
        torch.manual_seed(0)
        model = make()
        perturb(model)
        expected = answers(model.train(), given)
        with compiled_blocks(model):
            found = answers(model, given)
        assert len(graphs) == codes
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
        assert "forward" not in vars(model.stack)


@pytest.mark.gpu
@pytest.mark.parametrize(("make", "given"), [(gpt2, IDS), (vit, PICTURES), (llama, IDS)])
def test_on_a_gpu_gradients_are_as_near_to_those_in_single_precision_as_without(
    make: Any, given: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "ENOUGH", 1)
    taken: list[int] = []
    own = streamed.norm_of_sum
    monkeypatch.setattr(streamed, "norm_of_sum", lambda *given: taken.append(1) or own(*given))
    torch.manual_seed(0)
    model = make().cuda()
    perturb(model)
    given = given.cuda()
    _, right = answers(model.train(), given)
    right = {name: gradient.clone() for name, gradient in right.items() if gradient is not None}
    model.zero_grad()
    errors = []
    for compiles in (False, True):
        with torch.autocast("cuda", torch.bfloat16), compiled_blocks(model) if compiles else nullcontext():
            y = model(given).float()
        (y * torch.linspace(-1, 1, y.numel(), device="cuda").view_as(y)).sum().backward()
        errors.append({name: (model.get_parameter(name).grad - right[name]).norm() for name in right})
        model.zero_grad()
    assert taken == [1]
    for name in right:
        assert errors[1][name] <= 2 * errors[0][name] + 2e-2 * right[name].norm(), name
