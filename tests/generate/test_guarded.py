"""Parts that were changed in any way: whatever runs them answers as they do, or leaves them to themselves."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.errors import QkvWarning
from qkv.generate import bound, known
from qkv.generate import prepare as preparing
from qkv.generate.bound import disagreement_of_stacks
from qkv.generate.continuation import FromPrompts
from qkv.generate.residual_steps import AttentionStep
from qkv.models.catalogue import FAMILIES, build
from qkv.models.head_choice import HeadChoice
from qkv.models.llama import LlamaSizes
from qkv.parts import agreement, cpu_maps, spec
from qkv.parts import in_place as places
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.visibility import Causal, Window
from qkv.parts.position import Rotary
from tests.models.small import perturb

IDS = torch.randint(0, 23, (2, 9), generator=torch.Generator().manual_seed(0))
DECODERS, ENCODERS = ("gpt2", "llama", "qwen3"), ("bert",)
CHANGES = 500


def small(family: str) -> Any:
    """Wide enough for custom kernels."""
    names = {
        "vocabulary": 23,
        "positions": 32,
        "width": 32,
        "hidden": 48,
        "heads": 2,
        "layers": 2,
        "key_value_heads": 2,
    }
    kind = FAMILIES[family].sizes_type
    given = {name: value for name, value in names.items() if name in kind.__dataclass_fields__}
    if "key_width" in kind.__dataclass_fields__:
        given["key_width"] = 16
    torch.manual_seed(0)
    heads = HeadChoice("masked" if family == "bert" else "language")
    model = build(family, kind(**given), heads).eval()
    perturb(model)
    return model


@pytest.fixture(autouse=True)
def for_small_models_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_maps, "mkl_is_slow", lambda: True)
    monkeypatch.setattr(preparing, "SMALL", 1)
    for module, name in ((cpu_maps, "SMALL_FOR_MANY"), (cpu_maps, "MANY"), (places, "ENOUGH_FOR_A_CPU")):
        monkeypatch.setattr(module, name, 1)


def by_parts(model: Any, ids: Tensor = IDS) -> Tensor:
    """Logits as the parts are written: with gradients asked for, nobody takes another way on a CPU."""
    with torch.enable_grad():
        return model(ids).detach()


@torch.no_grad()
def decoded(model: Any) -> Tensor:
    """The same by steps of a model that was made ready to decode."""
    ready: preparing.Ready[Any] = preparing.Ready()
    with ready.decoding(model) as prepared:
        rows = FromPrompts(prepared, IDS[:, :3].tolist(), most=9)
        logits = [rows.begin()]
        logits += [rows.advance(IDS[:, [place]]) for place in range(3, 9)]
    return torch.stack(logits, 1)


@torch.no_grad()
def encoded(model: Any) -> Tensor:
    return model(IDS)


def check(model: Any) -> None:
    expected = by_parts(model)
    found = encoded(model)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)
    if hasattr(model, "looks_back") and model.looks_back and model.head_choice.kind == "language":
        torch.testing.assert_close(decoded(model), expected[:, 2:], atol=2e-4, rtol=1e-4)


class Louder:
    """A forward that a class made from another one may have."""

    def __init__(self, kind: type) -> None:
        def forward(part: Any, *given: Any) -> Any:
            return _louder(kind.forward(part, *given))

        self.kind = type(f"Louder{kind.__name__}", (kind,), {"forward": forward})


def _louder(answer: Any) -> Any:
    return tuple(map(_louder, answer)) if isinstance(answer, tuple) else answer * 1.3


def _larger(given: Any) -> Any:
    return given * 1.2 if isinstance(given, Tensor) and given.is_floating_point() else given


def _twice_as_sharp(q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any, **options: Any) -> Tensor:
    return exact(2 * q, k, v, mask, bias, **options)


OTHER_VALUES: dict[str, list[Any]] = {
    "scale": [0.7, 0.11],
    "eps": [0.5],
    "epsilon": [0.5],
    "visibility": [Causal() & Window(2), Causal()],
    "kernel": [_twice_as_sharp],
    "activation": [lambda x: x.relu() * 1.1, torch.tanh],
    "rotary": [None],
    "query_norm": [None],
    "key_norm": [None],
    "first": [1],
}


def changed(model: Any, chance: random.Random) -> str:
    """One change somewhere, and what it was."""
    name, part = chance.choice([(name, part) for name, part in model.named_modules() if name])
    says = spec.depends_on(type(part))
    fields = [field for field in (says.fields if says else ()) if field in OTHER_VALUES]
    ways = ["attribute", "buffer", "parameter", "child", "hook", "pre-hook", "forward", "class"] + ["value"] * 6 * bool(
        fields
    )
    way = chance.choice(ways)
    if way == "attribute":
        part.added = 3
    elif way == "buffer":
        part.register_buffer("added", torch.ones(2))
    elif way == "parameter":
        part.register_parameter("added", nn.Parameter(torch.ones(2)))
    elif way == "child" and not isinstance(part, nn.ModuleList) and not says.children:
        part.add_module("added", nn.Identity())
    elif way == "hook":
        part.register_forward_hook(lambda part, given, answer: _louder(answer))
    elif way == "pre-hook":
        part.register_forward_pre_hook(lambda part, given: (_larger(given[0]), *given[1:]))
    elif way == "forward":
        own = part.forward
        part.forward = lambda *given: _louder(own(*given))
    elif way == "class" and not isinstance(part, nn.ModuleList):
        part.__class__ = Louder(type(part)).kind
    elif way == "value":
        field = chance.choice(fields)
        value = chance.choice(OTHER_VALUES[field])
        if field == "rotary" and spec.field_of(part, field) is None:
            return "nothing"
        setattr(part, field, value)
        return f"{name}.{field} = {value}"
    return f"{way} of {name}"


@contextmanager
def told(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(what)
        raise


@pytest.mark.parametrize("family", [*DECODERS, *ENCODERS])
def test_a_model_as_it_is_answers_the_same_on_every_route(family: str) -> None:
    check(small(family))


def tried(changes: range) -> None:
    models = {family: small(family) for family in (*DECODERS, *ENCODERS)}
    for seed in changes:
        chance = random.Random(seed)
        family = chance.choice(list(models))
        model = deepcopy(models[family])
        what = f"{family}, {seed}: {changed(model, chance)}"
        with told(what):
            check(model)


@pytest.mark.filterwarnings("ignore::qkv.errors.QkvWarning")
def test_models_with_changed_parts_answer_as_their_parts_do() -> None:
    tried(range(60))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::qkv.errors.QkvWarning")
def test_five_hundred_changes_of_parts_are_all_heeded() -> None:
    tried(range(CHANGES))


def test_a_part_that_changes_between_two_texts_is_heeded() -> None:
    model = small("llama")
    ready: preparing.Ready[Any] = preparing.Ready()

    def logits() -> Tensor:
        with torch.no_grad(), ready.decoding(model) as prepared:
            rows = FromPrompts(prepared, IDS[:, :8].tolist(), most=2)
            rows.begin()
            return rows.advance(IDS[:, 8:])

    torch.testing.assert_close(logits(), by_parts(model)[:, -1], atol=2e-4, rtol=1e-4)
    model.stack.blocks[1].attention.mixer.scale = 0.9
    torch.testing.assert_close(logits(), by_parts(model)[:, -1], atol=2e-4, rtol=1e-4)


def test_a_program_that_is_wrong_is_found_when_it_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("gpt2")
    own = preparing.PackedLinear.forward
    monkeypatch.setattr(preparing, "residual_step", lambda *_: None)
    monkeypatch.setattr(preparing.PackedLinear, "forward", lambda part, x, ctx=None: own(part, x, ctx) * 1.01)
    monkeypatch.setattr(preparing.ReorderedLinear, "forward", preparing.PackedLinear.forward)
    with pytest.warns(QkvWarning, match="gave other answers"):
        assert preparing.prepare(model) is model


def test_blocks_in_place_that_are_wrong_are_found_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.parts import tried as trying

    model = small("bert")
    expected = by_parts(model)
    right = trying.in_place
    for module in (trying, __import__("qkv.parts.stack", fromlist=["stack"])):
        monkeypatch.setattr(module, "in_place", lambda *given: right(*given) * 1.01)
    with torch.no_grad():
        plan = places.plan_of(model.stack.blocks, torch.zeros(2, 9, 32))
    if plan is None or not plan.own:
        pytest.skip("no custom kernels for rows on this processor")
    with pytest.warns(QkvWarning, match="not used here"):
        torch.testing.assert_close(encoded(model), expected, atol=2e-4, rtol=1e-4)


def with_window(window: int) -> Any:
    torch.manual_seed(0)
    sizes = {"vocabulary": 23, "positions": 6000, "width": 32, "hidden": 48, "heads": 2, "layers": 2}
    model = build("llama", LlamaSizes(key_value_heads=1, window=window, **sizes), HeadChoice("language")).eval()
    perturb(model)
    return model


def text(length: int) -> Tensor:
    return torch.randint(0, 23, (1, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("window", [4, 700, 5000])
def test_a_model_with_a_window_is_made_ready_and_decodes_as_its_parts_do(window: int) -> None:
    model, ids = with_window(window), text(window + 9)
    expected = by_parts(model, ids)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        prepared = preparing.prepare(model)
        assert prepared is not model
        rows = FromPrompts(prepared, ids[:, :-3].tolist(), most=9)
        logits = [rows.begin()]
        logits += [rows.advance(ids[:, [place]]) for place in range(window + 6, window + 9)]
    torch.testing.assert_close(torch.stack(logits, 1), expected[:, -4:], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("window", [4, 700, 5000])
def test_steps_that_lose_a_window_are_refused(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_window(window)
    sees_all = spec.Known(Attention, known._HEADS, visibility=spec.anything, rotary=(Rotary,))
    for name in ("STEPS", "STACK"):
        monkeypatch.setattr(preparing, name, getattr(known, name).and_also(sees_all))
    if not any(isinstance(each, AttentionStep) for each in made_ready(model, monkeypatch).modules()):
        pytest.skip("needs a compiler")
    monkeypatch.setattr(agreement, "refused", [])
    with pytest.warns(QkvWarning, match="gave other answers"):
        assert preparing.prepare(model) is model


def made_ready(model: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What would be, untried."""
    with monkeypatch.context() as within:
        within.setattr(preparing, "disagreement_of_stacks", lambda *_: None)
        return preparing.prepare(model)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [40, 700, 5000])
@pytest.mark.parametrize("other", ["none", "one more", "one less", "half"])
@torch.no_grad()
def test_a_window_of_another_size_is_told_from_the_own(
    window: int, other: str, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_window(window).to(kind)
    ready = made_ready(model, monkeypatch)
    if ready is model:
        pytest.skip("nothing packs matrices of this type on this processor")
    assert disagreement_of_stacks(model.stack, ready.stack) is None
    found = {"none": 10**6, "one more": window + 1, "one less": window - 1, "half": window // 2}[other]
    for each in ready.modules():
        if isinstance(each, Attention):
            each.visibility = Causal() & Window(found)
    assert disagreement_of_stacks(model.stack, ready.stack) is not None


def test_a_window_too_wide_to_be_tried_leaves_a_model_to_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_window(700)
    monkeypatch.setattr(bound, "MOST", 1 << 16)
    monkeypatch.setattr(agreement, "refused", [])
    with pytest.warns(QkvWarning, match="window of 700 tokens is wider than is tried"):
        assert preparing.prepare(model) is model


@pytest.mark.parametrize(("window", "length"), [(12, 30), (700, 1000), (5000, 5600)])
@torch.no_grad()
def test_blocks_in_place_that_lose_a_window_are_found_when_rows_pass_it(
    window: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_window(window)
    plan = places.plan_of(model.stack.blocks, torch.zeros(1, 9, 32))
    if plan is None or not plan.own:
        pytest.skip("no custom kernels for rows on this processor")
    expected = by_parts(model, text(length))
    torch.testing.assert_close(model(text(length)), expected, atol=2e-4, rtol=1e-4)  # by blocks in place
    assert [*plan.tried.values()] == [True]
    plan.tried.clear()
    right = places._hidden

    def sees_all(stream: Tensor, step: Any, *given: Any) -> Any:
        own = step.mixer.__dict__.get("visibility")
        if own is not None:
            step.mixer.__dict__["visibility"] = Causal()
        try:
            return right(stream, step, *given)
        finally:
            if own is not None:
                step.mixer.__dict__["visibility"] = own

    monkeypatch.setattr(places, "_hidden", sees_all)
    monkeypatch.setattr(agreement, "refused", [])
    if window > 9:
        few = text(9)
        torch.testing.assert_close(model(few), by_parts(model, few), atol=2e-4, rtol=1e-4)
        assert [*plan.tried.values()] == [True]  # such rows cannot tell
    with pytest.warns(QkvWarning, match="not used here"):
        torch.testing.assert_close(model(text(length)), expected, atol=2e-4, rtol=1e-4)
