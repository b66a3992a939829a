import pytest
import torch

from qkv.errors import QkvError
from qkv.generate.decode import PAPER_LIMIT, LengthLimit, greedy, sample
from qkv.generate.shape import TopK
from tests.generate.models import END, START, log_probabilities, small_model, sources

LENGTHS = [3, 7, 1, 5, 4, 2]
LIMIT = LengthLimit(2, 3)


def plain_greedy(model, source, limit, never=()):
    """Greedy decoding as a sentence describes it: no batch, no cache."""
    written, total = [], 0.0
    while len(written) < limit:
        scores = log_probabilities(model, source, written)
        scores[list(never)] = -torch.inf
        token = int(scores.argmax())
        total += float(scores[token])
        if token == END:
            return written, total, True
        written.append(token)
    return written, total, False


@pytest.mark.parametrize("seed", [0, 1, 4, 7])
def test_a_batch_gives_what_each_sentence_gives_alone_without_a_cache(seed):
    model = small_model(seed=seed)
    source, lengths = sources(LENGTHS, seed=seed)
    answers = greedy(model, source, lengths, start=START, end=END, limit=LIMIT)
    for row, length, answer in zip(source, LENGTHS, answers, strict=True):
        ids, total, ended = plain_greedy(model, row[:length], 2 * length + 3)
        assert (answer.ids, answer.ended) == (ids, ended)
        assert answer.log_probability == pytest.approx(total, abs=1e-4)
        assert answer.score == answer.log_probability


def test_sentences_end_in_both_ways_in_these_tests():
    """Otherwise the comparison above would not see how a sentence leaves its batch."""
    ends = set()
    for seed in [0, 1, 4, 7]:
        source, lengths = sources(LENGTHS, seed=seed)
        answers = greedy(small_model(seed=seed), source, lengths, start=START, end=END, limit=LIMIT)
        ends |= {answer.ended for answer in answers}
    assert ends == {True, False}


def test_forbidden_tokens_are_not_produced():
    model = small_model()
    source, lengths = sources(LENGTHS)
    free = greedy(model, source, lengths, start=START, end=END, limit=LIMIT)
    never = [END, *next(answer.ids[:1] for answer in free if answer.ids)]
    answers = greedy(model, source, lengths, start=START, end=END, limit=LIMIT, never=never)
    for row, length, answer in zip(source, LENGTHS, answers, strict=True):
        ids, total, _ = plain_greedy(model, row[:length], 2 * length + 3, never)
        assert not set(answer.ids) & set(never)
        assert len(answer.ids) == 2 * length + 3
        assert answer.ids == ids
        assert answer.log_probability == pytest.approx(total, abs=1e-4)


def test_rows_without_lengths_are_full():
    model = small_model()
    source, _ = sources([4, 4])
    with_lengths = greedy(model, source, torch.tensor([4, 4]), start=START, end=END)
    without = greedy(model, source, start=START, end=END)
    assert [answer.ids for answer in with_lengths] == [answer.ids for answer in without]


def test_no_sentence_gives_no_answer():
    assert greedy(small_model(), torch.zeros(0, 3, dtype=torch.long), start=START, end=END) == []


def test_the_paper_limits_an_output_to_fifty_tokens_more_than_its_source():
    assert PAPER_LIMIT.of([1, 30]) == [51, 80]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"limit": LengthLimit(0, 0)}, "no room"),
        ({"never": [99]}, "vocabulary has 23"),
        ({"source": torch.tensor([[40]])}, "vocabulary has 23"),
        ({"source": torch.zeros(2, 0, dtype=torch.long)}, "a slot at least"),
        ({"source_lengths": torch.tensor([4, 5])}, "cannot hold 5"),
    ],
)
def test_what_cannot_be_decoded_is_said(change, said):
    source, _ = sources([4, 4])
    arguments = {"source": source, "start": START, "end": END} | change
    with pytest.raises(QkvError, match=said):
        greedy(small_model(), **arguments)


def test_a_model_in_training_is_refused():
    source, _ = sources([4])
    with pytest.raises(QkvError, match=r"model.eval"):
        greedy(small_model().train(), source, start=START, end=END)


def test_samples_of_a_sentence_are_the_same_alone_and_in_any_company():
    model = small_model()
    source, lengths = sources(LENGTHS)
    given = {"start": START, "end": END, "seed": 3, "samples": 2, "shapers": (TopK(9),), "limit": LIMIT, "never": [5]}
    together = sample(model, source, lengths, **given)
    for row, length, found in zip(source, LENGTHS, together, strict=True):
        (alone,) = sample(model, row[None, :length], **given)
        assert [one.ids for one in found] == [one.ids for one in alone]
        for one in found:
            scores = [log_probabilities(model, row[:length], one.ids[:i]) for i in range(len(one.ids) + one.ended)]
            ids = [*one.ids, END][: len(scores)]
            own = [float(each[token]) for each, token in zip(scores, ids, strict=True)]
            assert one.log_probabilities == pytest.approx(own, abs=1e-4)
            assert all(token in each.topk(9).indices for each, token in zip(scores, ids, strict=True))
            assert 5 not in one.ids
    assert any(first.ids != second.ids for first, second in together)
    assert sample(model, source[:0], **given) == []
