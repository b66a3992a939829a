from itertools import product

import pytest
import torch

from qkv.errors import QkvError
from qkv.generate.beam import beam_search
from qkv.generate.decode import LengthLimit, greedy
from qkv.generate.length_penalty import penalty
from tests.generate.models import END, START, log_probabilities, small_model, sources
from tests.models.small import CASES
from tests.models.small import small_model as small_family

LENGTHS = [3, 7, 1, 5, 4, 2]
LIMIT = LengthLimit(2, 3)


def plain_beam_search(model, source, limit, beams, exponent, best):
    """Beam search as a sentence describes it: no batch, no cache, and always on to the limit."""
    live, whole = [([], 0.0)], []
    for length in range(1, limit + 1):
        candidates = []
        for written, total in live:
            scores = (total + log_probabilities(model, source, written)).tolist()
            candidates += [(score, written, token) for token, score in enumerate(scores)]
        candidates.sort(key=lambda candidate: -candidate[0])
        whole += [(s / penalty(length, exponent), w, True) for s, w, token in candidates[:beams] if token == END]
        live = [([*w, token], s) for s, w, token in candidates if token != END][:beams]
    whole += [(s / penalty(limit, exponent), w, False) for w, s in live]
    return sorted(whole, key=lambda hypothesis: -hypothesis[0])[:best]


@pytest.mark.parametrize("seed", [0, 1, 4, 7])
@pytest.mark.parametrize(("beams", "best", "exponent"), [(2, 1, 0.0), (4, 1, 0.6), (4, 4, 1.0), (3, 2, 2.0)])
def test_a_batch_gives_what_each_sentence_gives_alone_without_a_cache(seed, beams, best, exponent):
    """The reference never stops early, so this also shows that stopping early changes nothing."""
    model = small_model(seed=seed)
    source, lengths = sources(LENGTHS, seed=seed)
    answers = beam_search(
        model, source, lengths, start=START, end=END, beams=beams, best=best, length_penalty=exponent, limit=LIMIT
    )
    for row, length, answer in zip(source, LENGTHS, answers, strict=True):
        expected = plain_beam_search(model, row[:length], 2 * length + 3, beams, exponent, best)
        assert [(one.ids, one.ended) for one in answer] == [(ids, ended) for _, ids, ended in expected]
        assert [one.score for one in answer] == pytest.approx([score for score, _, _ in expected], abs=1e-4)
        for one in answer:
            length_of_it = len(one.ids) + one.ended
            assert one.score == pytest.approx(one.log_probability / penalty(length_of_it, exponent))


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.5])
def test_a_beam_as_wide_as_everything_finds_the_best_of_all_outputs(exponent):
    vocabulary, limit = 5, 4
    model = small_model(vocabulary)
    source, _ = sources([3], vocabulary)
    every = {}
    for length in range(1, limit + 1):
        for ids in product(range(vocabulary), repeat=length):
            if END in ids[:-1] or (length < limit and ids[-1] != END):
                continue  # an output ends once, or is cut at the limit
            total = sum(float(log_probabilities(model, source[0], list(ids[:i]))[ids[i]]) for i in range(length))
            every[ids] = total / penalty(length, exponent)
    ranked = sorted(every, key=lambda ids: -every[ids])[:20]
    (answer,) = beam_search(
        model,
        source,
        start=START,
        end=END,
        beams=vocabulary**limit,
        best=20,
        length_penalty=exponent,
        limit=LengthLimit(0, limit),
    )
    assert [(*one.ids, *([END] if one.ended else [])) for one in answer] == ranked
    assert [one.score for one in answer] == pytest.approx([every[ids] for ids in ranked], abs=1e-4)


@pytest.mark.parametrize("exponent", [0.0, 0.6])
def test_one_beam_is_greedy(exponent):
    model = small_model()
    source, lengths = sources(LENGTHS)
    chosen = greedy(model, source, lengths, start=START, end=END, limit=LIMIT)
    answers = beam_search(model, source, lengths, start=START, end=END, beams=1, length_penalty=exponent, limit=LIMIT)
    assert [one.ids for (one,) in answers] == [one.ids for one in chosen]
    for one in (one for (one,) in answers):
        assert one.score == pytest.approx(one.log_probability / penalty(len(one.ids) + one.ended, exponent))


def test_the_penalty_is_one_for_a_single_token_and_grows_with_length():
    assert penalty(1, 0.6) == 1
    assert penalty(7, 1.0) == 2
    assert penalty(100, 0.0) == 1


def test_a_larger_penalty_never_gives_shorter_outputs_on_average():
    source, lengths = sources([4] * 12)
    model = small_model(seed=1)

    def average(exponent):
        answers = beam_search(model, source, lengths, start=START, end=END, length_penalty=exponent)
        return sum(len(one.ids) for (one,) in answers) / len(answers)

    assert average(0.0) <= average(1.0) <= average(3.0)
    assert average(0.0) < average(3.0)


class CountsRows(torch.nn.Module):
    """Passes decode calls on and remembers how many rows each had."""

    def __init__(self, model):
        super().__init__()
        self.model, self.rows = model, []
        self.encode, self.new_cache = model.encode, model.new_cache
        self.source_vocabulary, self.target_vocabulary = model.source_vocabulary, model.target_vocabulary

    def decode(self, target, memory, cache=None, ledger=None):
        self.rows.append((len(target), len(memory.states)))
        return self.model.decode(target, memory, cache, ledger)


def test_a_sentence_leaves_the_batch_when_it_is_decided():
    counting = CountsRows(small_model()).eval()
    source, lengths = sources(LENGTHS)
    limit = LengthLimit(2, 0)  # the limits are far apart
    beam_search(counting, source, lengths, start=START, end=END, beams=3, limit=limit, never=[END])
    assert counting.rows[0] == (6, 6)  # one beam each at first
    alive = [sum(2 * length > step for length in LENGTHS) for step in range(1, 14)]
    assert counting.rows[1:] == [(3 * sentences, sentences) for sentences in alive]


def test_forbidden_tokens_are_not_produced_and_nothing_is_undefined():
    model = small_model(5)
    source, _ = sources([3, 2], 5)
    answers = beam_search(
        model, source, start=START, end=END, beams=4, best=3, limit=LengthLimit(0, 4), never=[0, START, END, 3]
    )
    for answer in answers:  # only token 4 is left, so there is but one output
        (one,) = answer
        assert one.ids == [4, 4, 4, 4]
        assert one.score == one.score > -float("inf")


def test_more_beams_than_tokens():
    model = small_model(5)
    source, _ = sources([3, 2], 5)
    answers = beam_search(model, source, start=START, end=END, beams=9, best=9, limit=LengthLimit(0, 3))
    for answer in answers:
        assert len({tuple(one.ids) for one in answer}) == 9
        assert all(one.score > -float("inf") for one in answer)


@pytest.mark.parametrize(
    ("device", "precision"), [("cpu", torch.float16), pytest.param("cuda", torch.bfloat16, marks=pytest.mark.gpu)]
)
def test_half_precision_decodes(device, precision):
    model = small_model().to(device, precision)
    source, lengths = (tensor.to(device) for tensor in sources(LENGTHS))
    answers = beam_search(model, source, lengths, start=START, end=END, limit=LIMIT)
    full = beam_search(model.float(), source, lengths, start=START, end=END, limit=LIMIT)
    assert all(
        one.score == pytest.approx(other.score, rel=0.05) for (one,), (other,) in zip(answers, full, strict=True)
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"beams": 0}, "outputs of 0 beams"),
        ({"best": 5}, "not 5"),
        ({"length_penalty": -1.0}, "but is -1.0"),
        ({"length_penalty": float("nan")}, "nan"),
    ],
)
def test_what_makes_no_sense_is_said(change, said):
    source, _ = sources([4])
    with pytest.raises(QkvError, match=said):
        beam_search(small_model(), source, start=START, end=END, **change)


def test_no_sentence_gives_no_answer():
    assert beam_search(small_model(), torch.zeros(0, 3, dtype=torch.long), start=START, end=END) == []


@pytest.mark.parametrize("case", CASES)
def test_every_family_decodes_a_batch_as_it_decodes_each_sentence(case):
    model = small_family(case)
    source, lengths = sources(LENGTHS, min(model.source_vocabulary, model.target_vocabulary))

    def search(*rows):
        return beam_search(model, *rows, start=START, end=END, beams=3, best=2, limit=LIMIT)

    together = search(source, lengths)
    for row, length, answer in zip(source, LENGTHS, together, strict=True):
        (alone,) = search(row[None, :length])
        assert [one.ids for one in answer] == [one.ids for one in alone]
        assert [one.score for one in answer] == pytest.approx([one.score for one in alone], abs=1e-4)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_damaged_model_is_said_and_not_decoded(beams: int) -> None:
    model = small_model()
    with torch.no_grad():
        model.decoder.blocks[0].feed_forward.norm.weight.fill_(torch.nan)
    with pytest.raises(QkvError, match="NaN"):
        beam_search(model, *sources([4, 2]), start=START, end=END, beams=beams, limit=LengthLimit(0, 4))
