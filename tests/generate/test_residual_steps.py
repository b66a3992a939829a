"""Steps by our own program against the model's own parts."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from qkv.errors import QkvError
from qkv.generate.continuation import FromPrompts
from qkv.generate.prepare import prepare
from qkv.generate.residual_steps import AttentionStep, FeedForwardStep, MemoryStep
from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.models.llama import LlamaSizes
from qkv.models.marian import MarianSizes
from qkv.models.t5 import T5Sizes
from qkv.parts import cpu
from qkv.parts.cpu_steps import StepsInOrder
from qkv.parts.eight_bits import quantised
from tests.generate.models import sources
from tests.models.small import perturb

pytestmark = pytest.mark.skipif(cpu.library() is None, reason="needs a C++ compiler that knows OpenMP")
VOCABULARY = 37
TEXTS = {
    "gpt2": GPT2Sizes(vocabulary=VOCABULARY, positions=64, width=48, hidden=96, heads=3, layers=2),
    "llama": LlamaSizes(
        vocabulary=VOCABULARY, positions=64, width=64, hidden=80, heads=4, key_value_heads=2, layers=2
    ),
}  # fmt: skip
TRANSLATORS = {
    "marian": MarianSizes(
        vocabulary=VOCABULARY, width=32, encoder_hidden=48, decoder_hidden=64, encoder_heads=2, decoder_heads=2,
        encoder_layers=1, decoder_layers=2, dropout=0.1,
    ),
    "t5": T5Sizes(
        vocabulary=VOCABULARY, width=32, key_width=16, hidden=64, heads=2, encoder_layers=2, decoder_layers=2,
        feed_forward="gated-gelu",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _all_maps_are_large(monkeypatch):
    """And no number of rows is too many, on any processor."""
    monkeypatch.setattr("qkv.generate.prepare.SMALL", 1)
    for room in ("qkv.generate.prepare", "qkv.generate.residual_steps", "qkv.parts.cpu_steps"):
        monkeypatch.setattr(f"{room}.most_rows", lambda kind: 1000)


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    head = (HeadChoice("language"),) if name in TEXTS else ()
    model = build(name, (TEXTS | TRANSLATORS)[name], *head).eval()
    perturb(model)
    return model


def kinds(model: torch.nn.Module) -> set[type]:
    return {type(module) for module in model.modules()}


def logits_of(model: Any, prompts: Sequence[Sequence[int]], new: torch.Tensor, order: list[int] | None) -> torch.Tensor:
    rows = FromPrompts(model, prompts, most=new.shape[1] + 1)
    found = [rows.begin()]
    for step in range(new.shape[1]):
        found.append(rows.advance(new[:, step : step + 1]))
        if order is not None and step == 1:
            rows.select(torch.tensor(order))
    return torch.stack(found, 1)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("rows", [1, 2, 5, 9])
@torch.inference_mode()
def test_a_language_model_carries_texts_on_as_by_its_parts(name, rows):
    """Rows of one length and of several, alone and together, whose rows change places."""
    model = model_of(name)
    ready = prepare(model)
    assert {AttentionStep, FeedForwardStep} <= kinds(ready)
    new = torch.randint(0, VOCABULARY, (rows, 5))
    for lengths in ([4] * rows, [1 + 3 * row % 11 for row in range(rows)]):
        prompts = [torch.randint(0, VOCABULARY, (length,)).tolist() for length in lengths]
        order = [0, *range(rows - 1)]
        for given in (None, order):
            ours, theirs = logits_of(ready, prompts, new, given), logits_of(model, prompts, new, given)
            torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


@torch.inference_mode()
def test_steps_are_those_of_the_program(monkeypatch):
    """So that the tests beside this one compare what they say."""
    model, called = prepare(model_of("llama")), []
    library = cpu.library()

    class Told:
        def __getattr__(self, name: str) -> Any:
            return getattr(library, name)

        def qkv_steps(self, steps: Any) -> None:
            called.append(steps._obj.many)
            library.qkv_steps(steps)

    monkeypatch.setattr(cpu, "library", Told)
    logits_of(model, [[3, 4], [5, 6]], torch.ones(2, 1, dtype=torch.long), None)
    assert called == [1, 1, 4]  # feed-forward of the prompts, in two layers; all steps of the one new token


@pytest.mark.parametrize("name", TRANSLATORS)
@pytest.mark.parametrize("beams", [1, 3])
@torch.inference_mode()
def test_a_translator_carries_outputs_on_as_by_its_parts(name, beams):
    model = model_of(name)
    ready = prepare(model)
    assert {AttentionStep, FeedForwardStep, MemoryStep} <= kinds(ready)
    for lengths in ([6, 6, 6], [7, 2, 5]):
        source, told = sources(lengths, VOCABULARY)
        target = torch.randint(0, VOCABULARY, (3 * beams, 6))
        found = []
        for each in (ready, model):
            memory, cache = each.encode(source, told), each.new_cache(6)
            if beams > 1:
                each.decode(target[::beams, :1], memory, cache)
                cache.select(torch.arange(3).repeat_interleave(beams))
            found.append([each.decode(target[:, step : step + 1], memory, cache) for step in range(1, 6)])
        torch.testing.assert_close(torch.cat(found[0], 1), torch.cat(found[1], 1), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", TRANSLATORS)
@torch.inference_mode()
def test_steps_are_told_anew_where_rows_or_sources_move_and_only_there(name, monkeypatch):
    model, made = model_of(name), []
    ready = prepare(model)

    class Noted(StepsInOrder):
        def __init__(self, steps: Any) -> None:
            made.append(len(steps))
            super().__init__(steps)

    source, told = sources([7, 2, 5], VOCABULARY)
    target = torch.randint(0, VOCABULARY, (3, 9))
    found, rows = [], torch.tensor([2, 0])
    for each in (ready, model):
        memory, cache, logits = each.encode(source, told), each.new_cache(9), []
        monkeypatch.setattr("qkv.generate.residual_steps.StepsInOrder", Noted)
        for step in range(9):
            if step == 4:  # a source leaves
                cache.select(rows, rows)
                memory = memory.select(rows)
            if step == 7:
                cache.truncate(6)
            logits.append(each.decode(target[: 3 if step < 4 else 2, step : step + 1], memory, cache))
        found.append(logits)
    assert [steps for steps in made if steps > 1] == [6, 6]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


@torch.inference_mode()
def test_a_cache_that_is_full_says_so_where_steps_were_told_before():
    model = prepare(model_of("t5"))
    memory, cache = model.encode(torch.randint(0, VOCABULARY, (1, 4))), model.new_cache(3)
    for _ in range(3):
        model.decode(torch.ones(1, 1, dtype=torch.long), memory, cache)
    with pytest.raises(QkvError, match="holds 3 slots and slot 4"):
        model.decode(torch.ones(1, 1, dtype=torch.long), memory, cache)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@torch.inference_mode()
def test_in_bfloat16_steps_are_as_near_to_single_precision_as_the_parts(name):
    model = model_of(name)
    prompts, new = [[3, 4, 5], [6, 7, 8]], torch.randint(0, VOCABULARY, (2, 6))
    exact = logits_of(model, prompts, new, None)
    narrow = model.bfloat16()
    theirs, ours = (logits_of(each, prompts, new, None).float() for each in (narrow, prepare(narrow)))
    assert (ours - exact).abs().mean() <= 1.1 * (theirs - exact).abs().mean()


@torch.inference_mode()
def test_in_8_bits_steps_are_those_of_the_parts(monkeypatch):
    monkeypatch.setattr("qkv.parts.narrow_maps.SMALL", 1)
    model = quantised(model_of("gpt2"))
    ready = prepare(model)
    assert {AttentionStep, FeedForwardStep} <= kinds(ready)
    prompts, new = [[3, 4, 5], [6, 7, 8]], torch.randint(0, VOCABULARY, (2, 6))
    ours, theirs = logits_of(ready, prompts, new, None), logits_of(model, prompts, new, None)
    torch.testing.assert_close(
        ours, theirs, atol=0.05 * float(theirs.abs().max()), rtol=0
    )  # a rounding goes either way
    assert (ours - theirs).abs().mean() < 0.005 * theirs.abs().mean()
