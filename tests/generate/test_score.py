import math

import pytest

from qkv.errors import QkvError
from qkv.generate.language import Options
from qkv.generate.score import ScoredIds, score_rows
from tests.generate.language_models import logits_after
from tests.generate.test_language import WRITER, made


def plain_score(writer, text):
    ids = [writer.tokenizer.start, *writer.tokenizer.encode([text])[0]]
    return [float(logits_after(writer.model, ids[:i]).log_softmax(-1)[ids[i]]) for i in range(1, len(ids))]


def test_scores_are_those_of_each_token_after_the_ones_before():
    texts = ["The quick brown fox", "a", "Żółć is a word; so is fox. " * 3]
    for text, found in zip(texts, WRITER.score(texts), strict=True):
        expected = plain_score(WRITER, text)
        assert found.log_probabilities == pytest.approx(expected, abs=1e-4)
        assert found.ids == WRITER.tokenizer.encode([text])[0]
        assert found.perplexity == pytest.approx(math.exp(-sum(expected) / len(expected)), rel=1e-4)
        assert found.bits_per_byte == pytest.approx(-sum(expected) / math.log(2) / len(text.encode()), rel=1e-4)


def test_what_greedy_decoding_writes_is_greedy():
    (written,) = WRITER.run([[5, 6, 7]], Options(most=6))
    found = score_rows(WRITER.model, [ScoredIds([5, 6, 7], written.ids, 1), ScoredIds([5, 6, 7], [9, 9], 1)])
    assert [one.greedy for one in found] == [True, False]
    assert found[0].log_probabilities == pytest.approx(written.log_probabilities[:6], abs=1e-4)


@pytest.mark.parametrize("stride", [1, 3, 8])
def test_a_long_text_is_scored_window_by_window(stride):
    writer = made(positions=8)
    text = "The quick brown fox jumps"
    ids = [1, *writer.tokenizer.encode([text])[0]]
    expected = []
    for place in range(1, len(ids)):
        start = 0 if place <= 8 else math.ceil((place - 8) / stride) * stride
        expected.append(float(logits_after(writer.model, ids[start:place]).log_softmax(-1)[ids[place]]))
    (found,) = writer.score([text], stride=stride)
    assert len(ids) > 12
    assert found.log_probabilities == pytest.approx(expected, abs=1e-4)
    with pytest.raises(QkvError, match="give a stride"):
        writer.score([text])
    with pytest.raises(QkvError, match="not by 9"):
        writer.score([text], stride=9)
