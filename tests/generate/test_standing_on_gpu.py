"""Graphs of steps: they write what ordinary steps write, one after the other and side by side."""

import pytest
import torch

from qkv.generate import beam, standing
from qkv.generate import write as writing
from qkv.generate.beam import beam_search
from qkv.generate.choose import Drawn, TheLikeliest, chance_of
from qkv.generate.continuation import FromPrompts
from qkv.generate.decode import LengthLimit, greedy
from qkv.generate.line import Line
from qkv.generate.write import write
from tests.generate.language_models import END, PROMPTS
from tests.generate.models import START, small_model, sources
from tests.generate.stepped import model_of
from tests.generate.test_standing import small_t5

pytestmark = pytest.mark.gpu
MOST = 40


def lines_for(prompts, samples=1):
    return [
        Line(prompt, MOST, frozenset([END]), chance=chance_of(0, prompt, number))
        for prompt in prompts
        for number in range(samples)
    ]


@pytest.fixture
def ordinary(monkeypatch):
    """Calls a function without records."""

    def call(function):
        with monkeypatch.context() as patch:
            for module in (writing, beam):
                patch.setattr(module, "standing", lambda rows, most, **_: rows)
            return function()

    return call


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["one", "several"])
def test_greedy_and_sampled(prompts, ordinary):
    model = model_of("gpt2", "cuda")

    def run(chooser, samples=1):
        lines = lines_for(prompts, samples)
        for _ in write(FromPrompts(model, prompts, most=MOST), lines, chooser):
            pass
        return [line.ids for line in lines]

    for chooser, samples in ((TheLikeliest(), 1), (Drawn(), 2)):
        expected = ordinary(lambda chooser=chooser, samples=samples: run(chooser, samples))
        assert run(chooser, samples) == expected
        assert run(chooser, samples) == expected  # by the record that was kept
    assert standing._records[model]


def test_two_streams_at_once_do_not_disturb_each_other(ordinary):
    model = model_of("gpt2", "cuda")

    def begin(prompt):
        lines = lines_for([prompt])
        return lines, write(FromPrompts(model, [prompt], most=MOST), lines, TheLikeliest())

    def run(prompt):
        lines, steps = begin(prompt)
        for _ in steps:
            pass
        return lines[0].ids

    expected = ordinary(lambda: [run([3, 4, 5]), run([9, 8, 7])])
    (first, steps), (second, others) = begin([3, 4, 5]), begin([9, 8, 7])
    for _ in range(MOST):
        next(steps, None)
        next(others, None)
    assert [first[0].ids, second[0].ids] == expected


def test_weights_that_moved_are_found(ordinary):
    model = model_of("gpt2", "cuda")

    def run():
        lines = lines_for(PROMPTS[:1])
        for _ in write(FromPrompts(model, PROMPTS[:1], most=MOST), lines, TheLikeliest()):
            pass
        return lines[0].ids

    run()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)  # in place: the record reads them where they are
    assert run() == ordinary(run)
    other = model_of("gpt2", "cuda", layers=2)
    model.load_state_dict({name: weight * 0.8 for name, weight in other.state_dict().items()}, assign=True)
    assert run() == ordinary(run)


@pytest.mark.parametrize("make", [small_model, small_t5], ids=["transformer", "t5"])
def test_models_that_read_a_source(make, ordinary):
    model = make().to("cuda")
    source, lengths = (each.to("cuda") for each in sources([5, 3, 7, 2]))

    def run():
        limit = LengthLimit(0.0, MOST)
        one = greedy(model, source, lengths, start=START, end=END, limit=limit)
        many = beam_search(model, source, lengths, start=START, end=END, beams=3, best=2, limit=limit)
        return [each.ids for each in one], [[each.ids for each in row] for row in many]

    expected = ordinary(run)
    assert run() == expected
    assert run() == expected


def test_bfloat16_is_near_what_single_precision_says(ordinary):
    model = model_of("gpt2", "cuda").to(torch.bfloat16)
    rows, steps = (
        FromPrompts(model, PROMPTS[:2], most=MOST),
        standing.Standing(FromPrompts(model, PROMPTS[:2], most=MOST)),
    )
    exact = model_of("gpt2", "cuda")
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.copy_(parameter.bfloat16())
    single = FromPrompts(exact, PROMPTS[:2], most=MOST)
    with torch.inference_mode():
        logits, *_ = [each.begin() for each in (rows, steps, single)]
        tokens = logits.argmax(-1)[:, None]
        for _ in range(8):
            by_parts, by_programs, wanted = (each.advance(tokens).float() for each in (rows, steps, single))
            far = (by_parts - wanted).abs().max()
            assert (by_programs - wanted).abs().max() <= 1.5 * far + 0.05
            tokens = by_parts.argmax(-1)[:, None]
