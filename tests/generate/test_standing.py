from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.errors import QkvWarning
from qkv.generate import beam, fused, recording
from qkv.generate import write as writing
from qkv.generate.beam import beam_search, search_beams
from qkv.generate.choose import Drawn, TheLikeliest, chance_of
from qkv.generate.continuation import FromPrompts, FromSource, Slide
from qkv.generate.decode import LengthLimit, greedy
from qkv.generate.history import Forbidden
from qkv.generate.length_penalty import PowerPenalty
from qkv.generate.line import Line
from qkv.generate.prompted import FromMemory
from qkv.generate.recording import ROUND, Recording, Shape, next_logits
from qkv.generate.shape import TopK
from qkv.generate.standing import Standing, shape_of, standing, why_not
from qkv.generate.write import write
from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.models.llama import LlamaSizes
from qkv.models.t5 import T5Sizes
from qkv.parts import agreement
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.visibility import Causal
from tests.generate.language_models import END, PROMPTS, plain_greedy, small_gpt
from tests.generate.models import START, small_model, sources

MOST = 2 * ROUND + 5  # more than two rounds


def perturbed(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.eval()


def small_llama(window=None):
    sizes = LlamaSizes(
        vocabulary=23, positions=64, width=32, hidden=24, heads=4, key_value_heads=2, layers=2, window=window
    )
    return perturbed(build("llama", sizes, HeadChoice("language")))


def small_t5():
    sizes = T5Sizes(
        vocabulary=23, width=16, key_width=8, hidden=32, heads=2, encoder_layers=1, decoder_layers=2, dropout=0.0
    )
    return perturbed(build("t5", sizes))


def lines_for(prompts, most=MOST, samples=1, ends=(END,)):
    return [
        Line(prompt, most, frozenset(ends), chance=chance_of(0, prompt, number))
        for prompt in prompts
        for number in range(samples)
    ]


def written(rows, lines, chooser, shapers=(), **more):
    for _ in write(rows, lines, chooser, shapers, **more):
        pass
    return lines


def alike(found, expected):
    assert [line.ids for line in found] == [line.ids for line in expected]
    assert [line.ended for line in found] == [line.ended for line in expected]
    for line, other in zip(found, expected, strict=True):
        assert line.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-4)
        assert line.alternatives == other.alternatives


@pytest.fixture
def always(monkeypatch):
    """Decoding by records, on a CPU too, where they are no graphs but the same steps over the same buffers."""
    monkeypatch.setattr(writing, "standing", lambda rows, most, **_: Standing(rows))
    monkeypatch.setattr(beam, "standing", lambda rows, most, **_: Standing(rows))
    monkeypatch.setattr(fused, "find_spec", lambda name: None)


@pytest.fixture
def done_once(monkeypatch):
    """Recording does its work once, as it must on a GPU, so that libraries and programs are ready."""

    def recorded(work, device):
        work()
        return work

    monkeypatch.setattr(recording, "recorded", recorded)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[2:3]], ids=["many", "one"])
def test_a_record_writes_what_ordinary_steps_write(seed, prompts, monkeypatch):
    monkeypatch.setattr(fused, "find_spec", lambda name: None)
    model = small_gpt(seed=seed)
    expected = written(FromPrompts(model, prompts, most=MOST), lines_for(prompts), TheLikeliest())
    found = written(Standing(FromPrompts(model, prompts, most=MOST)), lines_for(prompts), TheLikeliest())
    alike(found, expected)
    assert found[0].ids == plain_greedy(model, prompts[0], MOST)


@pytest.mark.parametrize("make", [small_gpt, small_llama, lambda: small_llama(window=3)])
def test_a_text_that_stands_alone_is_read_by_the_record_of_an_earlier_one(make, monkeypatch, done_once):
    monkeypatch.setattr(fused, "find_spec", lambda name: None)
    monkeypatch.setattr(recording, "READ", 4)
    read = []
    monkeypatch.setattr(recording.Reading, "logits_after", noted(recording.Reading.logits_after, read))
    model = make()
    for prompt in ([3, 1, 4, 1, 5], [2, 7], [9], [1, 8, 2, 8, 1, 8], [5, 5, 5, 5], [3, 1, 4, 1, 6]):
        expected = written(FromPrompts(model, [prompt], most=MOST), lines_for([prompt]), TheLikeliest())
        found = written(
            Standing(FromPrompts(model, [prompt], most=MOST), alone=True), lines_for([prompt]), TheLikeliest()
        )
        alike(found, expected)
    assert read == [4, 4, 8, 4, 8]


def noted(read, slots):
    """The same, with a note of the slots that it takes."""

    def wrapped(reading, text):
        slots.append(reading.ids.shape[1])
        return read(reading, text)

    return wrapped


def test_rows_may_end_one_by_one(always):
    model = small_gpt()
    ends = [{token} for token in range(3, 8)]

    def lines():
        return [Line(prompt, MOST, frozenset(end)) for prompt, end in zip(PROMPTS, ends, strict=True)]

    alike(
        written(FromPrompts(model, PROMPTS, most=MOST), lines(), TheLikeliest()),
        [
            written(FromPrompts(model, [line.prompt], most=MOST), [line], TheLikeliest(), alternatives=0)[0]
            for line in lines()
        ],
    )


@pytest.mark.parametrize("alternatives", [0, 2])
def test_samples_shapers_and_alternatives(alternatives, monkeypatch):
    monkeypatch.setattr(fused, "find_spec", lambda name: None)
    model = small_gpt(seed=1)

    def by(wrap, chooser, shapers):
        rows = wrap(FromPrompts(model, PROMPTS, most=MOST))
        return written(rows, lines_for(PROMPTS, samples=2), chooser, shapers, alternatives=alternatives)

    for chooser, shapers in ((Drawn(), (TopK(9),)), (TheLikeliest(), (Forbidden((3, 5)),)), (Drawn(), ())):
        found, expected = by(Standing, chooser, shapers), by(lambda rows: rows, chooser, shapers)
        assert [line.ids for line in found] == [line.ids for line in expected]
        assert [len(line.alternatives) for line in found] == [len(line.alternatives) for line in expected]
    assert not {3, 5} & {token for line in by(Standing, TheLikeliest(), (Forbidden((3, 5)),)) for token in line.ids}


@pytest.mark.parametrize(
    "make", [small_gpt, small_llama, lambda: small_llama(window=5)], ids=["gpt2", "llama", "window"]
)
def test_beams_of_prompts(make, done_once, monkeypatch):
    monkeypatch.setattr(fused, "find_spec", lambda name: None)
    model = make()
    prompts = PROMPTS if not model.counts_slots else [[3, 4, 5], [6, 7, 8]]

    def by(wrap):
        rows = wrap(FromPrompts(model, prompts, most=MOST))
        found = search_beams(rows, lines_for(prompts), beams=3, best=2, penalty=PowerPenalty(1.0))
        return [[hypothesis.ids for hypothesis in each] for each in found]

    assert by(Standing) == by(lambda rows: rows)


@pytest.mark.parametrize("make", [small_model, small_t5], ids=["transformer", "t5"])
def test_models_that_read_a_source(make, always, done_once, monkeypatch):
    model = make()
    assert why_not(model) is None
    source, lengths = sources([5, 3, 7, 2, 6, 4, 5, 3, 2])

    def both():
        limit = LengthLimit(1.0, 30)
        one = greedy(model, source, lengths, start=START, end=END, limit=limit)
        many = beam_search(model, source, lengths, start=START, end=END, beams=3, best=2, limit=limit)
        return [each.ids for each in one], [[each.ids for each in row] for row in many]

    by_records = both()
    monkeypatch.setattr(writing, "standing", lambda rows, most, **_: rows)
    monkeypatch.setattr(beam, "standing", lambda rows, most, **_: rows)
    assert both() == by_records


def test_prompts_after_a_source(monkeypatch):
    model = small_model()
    source, lengths = sources([5, 3, 7])
    prompts = [[START, 4], [START], [START, 5, 6]]

    def by(wrap):
        rows = wrap(FromMemory(model, model.encode(source, lengths), prompts, most=MOST))
        return written(rows, lines_for(prompts), TheLikeliest())

    with torch.no_grad():
        alike(by(Standing), by(lambda rows: rows))


def test_shapes_serve_what_is_a_little_smaller():
    model = small_gpt(positions=300)
    rows = FromPrompts(model, PROMPTS, most=40)
    with torch.inference_mode():
        rows.begin()
    assert shape_of(rows.standpoint(), 5) == (5, 64, 0, 0)
    assert shape_of(rows.standpoint(), 13) == (16, 64, 0, 0)
    source, lengths = sources([5] * 9)
    from_source = FromSource(small_model(), source, lengths, start=START, most=70)
    with torch.inference_mode():
        from_source.begin()
    assert shape_of(from_source.standpoint(), 27) == (48, 128, 16, 64)


def test_what_cannot_be_recorded_says_why():
    assert why_not(small_gpt()) is None
    sizes = GPT2Sizes(vocabulary=23, positions=64, width=16, hidden=32, heads=2, layers=2, experts=2)
    assert "Experts" in why_not(build("gpt2", sizes, HeadChoice("language")))
    watched = small_gpt()
    watched.stack.register_forward_hook(lambda *_: None)
    assert "a Stack has a hook" in why_not(watched)
    assert "none of the parts" in why_not(torch.nn.Linear(2, 2))


def test_a_window_that_slides_is_not_recorded():
    model = small_gpt(positions=16)
    rows = FromPrompts(model, [[3, 4, 5]], most=30, slide=Slide())
    with torch.inference_mode():
        rows.begin()
    assert rows.standpoint() is None


def test_a_cpu_takes_ordinary_steps():
    rows = FromPrompts(small_gpt(), [[3]], most=20)
    assert standing(rows, 20) is rows


class Fused:
    """A step that says what the next logits are."""

    def __init__(self, record: Recording, model: nn.Module, times: float) -> None:
        self.record, self.model, self.times, self.asked = record, model, times, 0

    def step(self) -> Tensor:
        self.asked += 1
        record = self.record
        record.cache.begin_step()
        logits = next_logits(self.model, record.tokens, record.positions, record.cache, record.memory)
        record.positions.add_(1)
        return logits * self.times


@pytest.mark.parametrize("times", [1.0, 1.05])
@torch.no_grad()
def test_steps_by_custom_kernels_are_tried_beside_the_models_own(times: float) -> None:
    model = small_gpt()
    rows = FromPrompts(model, [[1, 2, 3], [4, 5, 6]], most=4)
    rows.begin()
    start = rows.standpoint()
    assert start is not None
    record = Recording(model, start, Shape(2, 16, 0, 0))
    record.fill(start)
    fused = Fused(record, model, times)
    record.plan, record._tried = fused, False  # type: ignore[assignment]
    before = [each.clone() for each in (record.positions, record.cache.place, record.cache.real)]
    with nullcontext() if times == 1.0 else pytest.warns(QkvWarning, match="custom kernels is not used here"):
        record.try_plan(model, start)
    for each, expected in zip((record.positions, record.cache.place, record.cache.real), before, strict=True):
        assert torch.equal(each, expected)
    assert (record.plan is fused) == (times == 1.0)
    record.try_plan(model, start)
    assert fused.asked == 1


class WithoutWindow(Fused):
    """Such a step that sees all that stands before a token."""

    def step(self) -> Tensor:
        attentions: list[Any] = [each for each in self.model.modules() if isinstance(each, Attention)]
        own = [each.visibility for each in attentions]
        for each in attentions:
            each.visibility = Causal()
        logits = super().step()
        for each, rule in zip(attentions, own, strict=True):
            each.visibility = rule
        return logits


@pytest.mark.parametrize(("window", "capacity"), [(20, 64), (62, 64), (700, 1024), (64, 64)])
@pytest.mark.parametrize("kind", [Fused, WithoutWindow])
@torch.no_grad()
def test_custom_kernels_that_lose_a_window_are_found_if_a_record_passes_it(
    kind: type[Fused], window: int, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "refused", [])
    torch.manual_seed(0)
    sizes = {"vocabulary": 23, "positions": 1024, "width": 16, "hidden": 24, "heads": 2, "layers": 2}
    model: Any = build("llama", LlamaSizes(key_value_heads=1, window=window, **sizes), HeadChoice("language")).eval()
    perturbed(model)
    rows = FromPrompts(model, [[1, 2, 3], [4, 5]], most=4)
    rows.begin()
    start = rows.standpoint()
    assert start is not None
    record = Recording(model, start, Shape(2, capacity, 0, 0))
    record.fill(start)
    fused = kind(record, model, 1.0)
    record.plan, record._tried = fused, False  # type: ignore[assignment]
    rooms = [room for _, pair in record.cache.rooms() for room in pair]
    state = (record.positions, record.first, record.cache.place, record.cache.real, *rooms)
    before = [each.clone() for each in state]
    right = kind is Fused or window >= capacity - 1
    with nullcontext() if right else pytest.warns(QkvWarning, match="custom kernels is not used here"):
        record.try_plan(model, start)
    assert (record.plan is fused) == right
    length = int(record.cache.place)
    for number, (each, expected) in enumerate(zip(state, before, strict=True)):
        same = (each, expected) if number < 4 else (each[:, :, :length], expected[:, :, :length])
        assert torch.equal(*same)
        assert bool(each.isfinite().all())
