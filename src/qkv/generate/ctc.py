"""From what is heard in each frame to what was said: the likeliest path, or the likeliest text. [graves2006 §3.2]

A path has one token a frame; its text is what is left when repeats are joined and blanks taken out. Many paths have one
text: greedy decoding takes the text of the best path, and a beam search the best text, with a language model if wanted.

Shapes: n frames, v tokens, l letters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.data.letters import Letters
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.score import ScoredIds, score_rows
from qkv.generate.spoken_words import Word
from qkv.models.text_model import TextModel

Floats = NDArray[np.float64]
# The log-probability of a word after the words before it, both as text.
Language = Callable[[str, str], float]


@dataclass(frozen=True)
class Letter:
    """A letter and the frames in which it is heard, `end` not included."""

    token: int
    start: int
    end: int
    probability: float = 1.0  # of the token in these frames, their geometric mean


@dataclass(frozen=True)
class Reading:
    """A text that may have been said."""

    letters: tuple[Letter, ...]
    log_probability: float  # of the path, or with a beam search of all paths that have this text
    score: float  # the same with what a language model thinks of it

    @property
    def ids(self) -> list[int]:
        return [letter.token for letter in self.letters]


@dataclass(frozen=True, kw_only=True)
class Beam:
    """How to look for the likeliest text."""

    width: int = 32  # texts that are kept from frame to frame
    least: float = -6.0  # tokens less likely than this in a frame are not tried, as a log-probability
    behind: float = 12.0  # texts so much worse than the best, as a log-probability, are given up
    language: Language | None = None
    weight: float = 0.5  # of the language model's log-probabilities
    bonus: float = 0.0  # for each word, against the language model's liking for few

    def __post_init__(self) -> None:
        if self.width < 1 or self.least >= 0 or self.weight < 0 or self.behind <= 0:
            raise QkvError("A beam keeps 1 text at least, tries tokens below log-probability 0, and weighs from 0 on.")


def read_greedily(logits: Tensor, blank: int) -> Reading:
    """The text of the likeliest path through [n v]."""
    log = _log(logits)
    path = log.argmax(-1)
    total = float(log.max(-1).sum())
    return Reading(_heard(joined(path.tolist(), blank), log), total, total)


def _log(logits: Tensor) -> Floats:
    found: Floats = logits.detach().float().log_softmax(-1).double().cpu().numpy()
    return found


def _heard(letters: Sequence[Letter], log: Floats) -> tuple[Letter, ...]:
    """The same letters with how surely they are heard in [n v]."""
    return tuple(
        replace(letter, probability=float(np.exp(log[letter.start : letter.end, letter.token].mean())))
        for letter in letters
    )


def joined(path: Sequence[int], blank: int) -> list[Letter]:
    """A path as its letters: runs of one token are one letter, and blanks are none. [graves2006 eq.1]"""
    letters: list[Letter] = []
    for frame, token in enumerate(path):
        if frame and token == path[frame - 1]:
            if token != blank:
                letters[-1] = Letter(token, letters[-1].start, frame + 1)
        elif token != blank:
            letters.append(Letter(token, frame, frame + 1))
    return letters


class _Text:
    """A text so far, as its last letter after the text before it: texts with one beginning share it."""

    __slots__ = ("__weakref__", "before", "language", "token")

    def __init__(self, before: _Text | None, token: int, language: float) -> None:
        self.before, self.token, self.language = before, token, language  # what a language model adds to whole words

    def ids(self) -> list[int]:
        found, text = [], self
        while text.before is not None:
            found.append(text.token)
            text = text.before
        return found[::-1]


class _Chance:
    """The log-probability of a text's paths that end with a blank, and of those that end with its last letter."""

    __slots__ = ("blank", "letter")

    def __init__(self, blank: float = -math.inf, letter: float = -math.inf) -> None:
        self.blank, self.letter = blank, letter

    @property
    def total(self) -> float:
        return _sum(self.blank, self.letter)


def read_beams(logits: Tensor, letters: Letters, beam: Beam = Beam(), best: int = 1) -> list[Reading]:  # noqa: B008
    """The likeliest texts of [n v], `best` of them at most, the likeliest first. [hannun2014 alg.1]"""
    log = _log(logits)
    words = _Words(letters, beam)
    beams: dict[_Text, _Chance] = {_Text(None, -1, 0.0): _Chance(blank=0.0)}
    for frame in log:
        beams = _step(beams, frame.tolist(), letters.blank, beam, words)  # plain numbers are faster one by one
    found = [
        (chance.total + text.language + words.last(text), chance.total, text.ids()) for text, chance in beams.items()
    ]
    found.sort(key=lambda each: (-each[0], each[2]))
    return [Reading(_heard(align(log, ids, letters.blank), log), total, score) for score, total, ids in found[:best]]


def _step(
    beams: dict[_Text, _Chance], heard: list[float], blank: int, beam: Beam, words: _Words
) -> dict[_Text, _Chance]:
    """All texts one frame on, of which the best are kept."""
    new: dict[_Text, _Chance] = {}
    tried = [token for token, log in enumerate(heard) if log > beam.least and token != blank]
    for text, chance in beams.items():
        total = chance.total
        same = new.get(text)
        if same is None:
            same = new[text] = _Chance()
        same.blank = _sum(same.blank, total + heard[blank])
        if text.before is not None:  # its last letter goes on
            same.letter = _sum(same.letter, chance.letter + heard[text.token])
        for token in tried:
            before = chance.blank if token == text.token else total  # the same letter twice needs a blank between
            if before == -math.inf:
                continue
            longer = words.longer(text, token)
            grown = new.get(longer)
            if grown is None:
                grown = new[longer] = _Chance()
            grown.letter = _sum(grown.letter, before + heard[token])
    scored = [(chance.total + text.language, text) for text, chance in new.items()]
    least = max(score for score, _ in scored) - beam.behind
    kept = sorted((each for each in scored if each[0] >= least), key=lambda each: -each[0])[: beam.width]
    return {text: new[text] for _, text in kept}


def _sum(one: float, other: float) -> float:
    """log(exp(one) + exp(other))"""
    larger, smaller = (one, other) if one > other else (other, one)
    return larger if smaller == -math.inf else larger + math.log1p(math.exp(smaller - larger))


class _Words:
    """Texts that grow, each once, and what the language model thinks of each word once it is whole."""

    def __init__(self, letters: Letters, beam: Beam) -> None:
        self.letters, self.beam = letters, beam
        # A text that is neither kept nor the beginning of one is forgotten. As long as one is here, so is what it
        # begins with, and no other object has its number.
        self._texts: WeakValueDictionary[tuple[int, int], _Text] = WeakValueDictionary()
        if beam.language is not None and letters.space is None:
            raise QkvError("A language model needs words, and these letters have nothing between words.")

    def longer(self, text: _Text, token: int) -> _Text:
        """The text with one token more; where that ends a word, with what is added for it."""
        found = self._texts.get((id(text), token))
        if found is None:
            added = self.last(text) if token == self.letters.space else 0.0
            found = self._texts[id(text), token] = _Text(text, token, text.language + added)
        return found

    def last(self, text: _Text) -> float:
        """What is added for the last word of a text, if it does not end with a space."""
        if self.beam.language is None or text.before is None or text.token == self.letters.space:
            return 0.0
        *before, word = self.letters.decode(text.ids()).split(self.letters.between)
        return self.beam.weight * self.beam.language(" ".join(filter(None, before)), word) + self.beam.bonus


def align(log: Floats, tokens: Sequence[int], blank: int) -> list[Letter]:
    """In which frames the tokens [l] are heard: the likeliest of all paths through [n v] that have this text."""
    spread = [blank, *(each for token in tokens for each in (token, blank))]  # [2l+1]
    needed = len(tokens) + sum(one == other for one, other in pairwise(tokens))
    if len(log) < needed:
        raise QkvError(f"{len(log)} frames cannot hold {len(tokens)} letters: it takes {needed} at least.")
    states = np.array(spread)
    # Past a blank only to another letter than the one before it.
    skips = np.array([at > 1 and spread[at] != blank and spread[at] != spread[at - 2] for at in range(len(spread))])
    score = np.full(len(spread), -np.inf)
    score[0] = 0.0  # before the first frame: at the first blank, from where the first letter is one step
    back = np.zeros((len(log), len(spread)), dtype=np.int8)
    for number, frame in enumerate(log):
        one = np.concatenate(([-np.inf], score[:-1]))
        two = np.where(skips, np.concatenate(([-np.inf, -np.inf], score))[: len(score)], -np.inf)
        ways = np.stack((score, one, two))  # [3 2l+1]
        back[number] = ways.argmax(0)
        score = ways.max(0) + frame[states]
    place = len(spread) - 1
    if len(spread) > 1 and score[-2] > score[-1]:
        place -= 1
    path = []
    for number in range(len(log) - 1, -1, -1):
        path.append(place)
        place -= int(back[number, place])
    path.reverse()
    return [
        Letter(token, path.index(2 * number + 1), len(path) - path[::-1].index(2 * number + 1))
        for number, token in enumerate(tokens)
    ]


def words_of(reading: Reading, letters: Letters, seconds_a_frame: float, first: int = 0) -> list[Word]:
    """The words of a reading with their times: from the first frame of a word's first letter to the end of its last.

    `first` is the number of the reading's first frame in the whole sound.
    """
    words: list[Word] = []
    run: list[Letter] = []
    for letter in (*reading.letters, None):
        if letter is not None and letter.token != letters.space:
            run.append(letter)
        elif run:
            text = letters.decode([each.token for each in run])
            probability = float(np.exp(np.mean([np.log(max(each.probability, 1e-300)) for each in run])))
            begin, end = ((first + frame) * seconds_a_frame for frame in (run[0].start, run[-1].end))
            words.append(Word(text, begin, end, probability))
            run = []
    return words


def language_of(model: TextModel, tokenizer: TextTokenizer, kept: int = 100_000) -> Language:
    """A language model as it judges words; `kept` judgements are remembered."""

    @lru_cache(kept)
    def judge(before: str, word: str) -> float:
        said = tokenizer.encode([before])[0] if before else []
        spelled = tokenizer.encode([f"{before} {word}" if before else word])[0]
        while said and spelled[: len(said)] != said:  # the last piece may be cut otherwise before another word
            said = said[:-1]
        if tokenizer.has("start"):
            said, spelled = [tokenizer.start, *said], [tokenizer.start, *spelled]
        if not said:  # nothing to judge the first piece by
            said = spelled[:1]
        wanted = spelled[len(said) :]
        if not wanted:
            return 0.0
        (score,) = score_rows(model, [ScoredIds(said, wanted, len(word))])
        return score.log_probability

    return judge


@torch.no_grad()
def ctc_log_probability(logits: Tensor, tokens: Sequence[int], blank: int) -> float:
    """Of a text, over all its paths through [n v]. [graves2006 eq.3]"""
    log = logits.float().log_softmax(-1)[:, None]  # [n 1 v]
    lengths = torch.tensor([len(log)]), torch.tensor([len(tokens)])
    loss = torch.nn.functional.ctc_loss(log, torch.tensor([list(tokens)]), *lengths, blank=blank, reduction="sum")
    return -float(loss)
