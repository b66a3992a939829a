"""From frames to text: against all paths written out, and against the reference's tokenizer."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Wav2Vec2CTCTokenizer

from qkv.data.letters import Letters, write_letters
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.ctc import (
    Beam,
    Letter,
    Reading,
    align,
    ctc_log_probability,
    joined,
    language_of,
    read_beams,
    read_greedily,
    words_of,
)
from qkv.models.catalogue import build
from tests.models.small_text import small_sizes

LETTERS = Letters(("<pad>", "|", "a", "b"), blank=0, space=1)


def all_texts(logits: Tensor, blank: int) -> dict[tuple[int, ...], float]:
    """The probability of every text, by writing out every path."""
    chances = logits.double().softmax(-1)
    found: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(logits.shape[1]), repeat=len(logits)):
        text = tuple(letter.token for letter in joined(path, blank))
        found[text] = found.get(text, 0.0) + math.prod(float(chances[n, token]) for n, token in enumerate(path))
    return found


def best_path(logits: Tensor, text: tuple[int, ...], blank: int) -> float:
    log = logits.double().log_softmax(-1)
    paths = itertools.product(range(logits.shape[1]), repeat=len(logits))
    return max(
        sum(float(log[n, token]) for n, token in enumerate(path))
        for path in paths
        if tuple(letter.token for letter in joined(path, blank)) == text
    )


def test_a_path_becomes_its_text() -> None:
    assert joined([0, 2, 2, 0, 2, 3, 3, 0], 0) == [Letter(2, 1, 3), Letter(2, 4, 5), Letter(3, 5, 7)]
    assert joined([], 0) == joined([0, 0], 0) == []


@pytest.mark.parametrize("seed", range(4))
def test_a_text_is_as_likely_as_all_its_paths(seed: int) -> None:
    torch.manual_seed(seed)
    logits = 2 * torch.randn(5, 4)
    texts = all_texts(logits, 0)
    assert sum(texts.values()) == pytest.approx(1)
    for text, chance in sorted(texts.items(), key=lambda each: -each[1])[:20]:
        assert ctc_log_probability(logits, text, 0) == pytest.approx(math.log(chance), abs=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_a_wide_beam_finds_the_likeliest_text(seed: int) -> None:
    torch.manual_seed(seed)
    logits = 2 * torch.randn(6, 4)
    texts = sorted(all_texts(logits, 0).items(), key=lambda each: -each[1])
    found = read_beams(logits, LETTERS, Beam(width=3000, least=-100, behind=1000), best=10_000)
    assert len(found) == len(texts)
    for reading, (text, chance) in zip(found[:30], texts, strict=False):
        assert tuple(reading.ids) == text
        assert reading.log_probability == reading.score == pytest.approx(math.log(chance), abs=1e-5)
    narrow = read_beams(logits, LETTERS, Beam(width=8), best=100)
    assert 1 < len(narrow) <= 8
    assert read_beams(logits, LETTERS, Beam(width=8)) == narrow[:1]
    assert narrow[0].log_probability <= found[0].log_probability + 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_letters_are_put_where_the_best_path_has_them(seed: int) -> None:
    torch.manual_seed(seed)
    logits = 2 * torch.randn(6, 4)
    log = logits.double().log_softmax(-1).numpy()
    for text in [(), (2,), (2, 3), (2, 2), (3, 3, 3), (2, 3, 2, 3)]:
        found = align(log, text, 0)
        assert [letter.token for letter in found] == list(text)
        frames = np.zeros(6, dtype=int)
        for letter in found:
            frames[letter.start : letter.end] = letter.token
        assert tuple(letter.token for letter in joined(frames.tolist(), 0)) == text
        assert log[np.arange(6), frames].sum() == pytest.approx(best_path(logits, text, 0))
    with pytest.raises(QkvError, match="takes 7 at least"):
        align(log, (2, 2, 2, 2), 0)


def test_greedy_decoding_is_that_of_the_reference(tmp_path: Path) -> None:
    letters = Letters(("<pad>", "<s>", "</s>", "<unk>", "|", "E", "T", "'"), blank=0, space=4, unknown=3)
    write_letters(tmp_path, letters)
    reference = Wav2Vec2CTCTokenizer.from_pretrained(tmp_path)
    torch.manual_seed(0)
    for frames in (1, 7, 40, 200):
        logits = torch.randn(frames, 8)
        reading = read_greedily(logits, letters.blank)
        expected = reference.decode(logits.argmax(-1), output_word_offsets=True, output_char_offsets=True)
        assert letters.decode(reading.ids) == expected.text
        offsets = [(each["start_offset"], each["end_offset"]) for each in expected.char_offsets]
        assert [(letter.start, letter.end) for letter in reading.letters] == offsets
        for letter in reading.letters:
            heard = logits.softmax(-1)[letter.start : letter.end, letter.token].log().mean().exp()
            assert letter.probability == pytest.approx(float(heard), rel=1e-4)
        found = [(word.text, word.start, word.end) for word in words_of(reading, letters, 1.0)]
        assert found == [(each["word"], each["start_offset"], each["end_offset"]) for each in expected.word_offsets]


def test_words_have_times_in_seconds() -> None:
    letters = (Letter(2, 3, 5, 0.9), Letter(3, 6, 7, 0.4), Letter(1, 8, 9), Letter(1, 11, 12), Letter(3, 20, 22))
    words = words_of(Reading(letters, 0.0, 0.0), LETTERS, 0.02, first=500)
    assert [(word.text, round(word.start, 2), round(word.end, 2)) for word in words] == [
        ("ab", 10.06, 10.14),
        ("b", 10.4, 10.44),
    ]
    assert words[0].probability == pytest.approx(0.6)
    assert words_of(Reading((), 0.0, 0.0), LETTERS, 0.02) == []


def test_a_language_model_decides_between_what_sounds_alike() -> None:
    logits = torch.full((5, 4), -5.0)
    for frame, token in enumerate((2, 0, 1, 0)):
        logits[frame, token] = 5.0
    logits[4, 2], logits[4, 3] = 5.0, 4.8  # "a a", or nearly as likely "a b"

    def language(before: str, word: str) -> float:
        judged.append((before, word))
        return math.log(0.9) if (before, word) in (("", "a"), ("a", "b")) else math.log(0.001)

    judged: list[tuple[str, str]] = []
    alone = read_beams(logits, LETTERS)
    assert LETTERS.decode(alone[0].ids) == "a a"
    helped = read_beams(logits, LETTERS, Beam(language=language))
    assert LETTERS.decode(helped[0].ids) == "a b"
    assert helped[0].score == pytest.approx(helped[0].log_probability + 0.5 * (2 * math.log(0.9)))
    assert ("a", "b") in judged
    some = read_beams(logits, LETTERS, Beam(language=language, weight=0.0, bonus=1.5))[0]
    assert some.score == pytest.approx(some.log_probability + 3.0)


def test_a_language_model_of_ours_judges_words() -> None:
    torch.manual_seed(0)
    tokenizer = TextTokenizer.train("word", ["the cat sat", "the dog ran"])
    model = build("gpt2", small_sizes("gpt2")).eval()
    judge = language_of(model, tokenizer)
    whole = judge("", "the") + judge("the", "cat") + judge("the cat", "sat")
    ids = [tokenizer.start, *tokenizer.encode(["the cat sat"])[0]]
    log = model(torch.tensor([ids]))[0].log_softmax(-1)
    expected = sum(float(log[place, token].detach()) for place, token in enumerate(ids[1:]))
    assert whole == pytest.approx(expected, abs=1e-4)


def test_what_cannot_be_searched_is_refused() -> None:
    for wrong in ({"width": 0}, {"least": 0.0}, {"weight": -1.0}, {"behind": 0.0}):
        with pytest.raises(QkvError, match="A beam keeps"):
            Beam(**wrong)
    with pytest.raises(QkvError, match="nothing between words"):
        read_beams(torch.zeros(2, 3), Letters(("-", "a", "b")), Beam(language=lambda before, word: 0.0))
