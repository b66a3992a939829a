"""One window of sound at a time: what was said in it, heard again where that cannot be right. [radford2023 §4.5]"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.beam import search_beams
from qkv.generate.choose import Drawn, TheLikeliest, chance_of
from qkv.generate.history import Forbidden, NotBefore, Shaper
from qkv.generate.length_penalty import PowerPenalty
from qkv.generate.line import Line
from qkv.generate.prompted import FromMemory
from qkv.generate.speech_tokens import SpeechTokens
from qkv.generate.timestamps import TimestampRules
from qkv.generate.write import write
from qkv.models.sequence_to_sequence import EncoderDecoder, Memory


@dataclass(frozen=True, kw_only=True)
class Hearing:
    """How speech is written down. The thresholds are the paper's. [radford2023 §4.5]"""

    language: str | None = None  # None: the one that is heard at the beginning
    task: str = "transcribe"  # or translate, into English
    timestamps: bool = True
    words: bool = False  # whether the time of each word is told
    beams: int = 1  # side by side at temperature 0
    samples: int = 1  # drawn at other temperatures, of which the likeliest is taken
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # the next is tried where one fails
    most_compression: float | None = 2.4  # a text that can be packed tighter repeats itself, and has failed
    least_log_probability: float | None = -1.0  # the mean of its tokens, below which a text has failed
    most_silence: float | None = 0.6  # probability of no speech, above which a text that failed is taken for none
    remembers: bool = True  # whether what was said before a window helps to understand it
    prompt: str = ""  # a text to begin with, such as names that will be said
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperatures or not all(0 <= each < math.inf for each in self.temperatures):
            raise QkvError("Temperatures for speech are one or more numbers of 0 or above, such as 0.0 and 0.4.")
        if self.beams < 1 or self.samples < 1:
            raise QkvError(f"Beams and samples are 1 at least, not {self.beams} and {self.samples}.")


@dataclass(frozen=True)
class Heard:
    """What was written down of one window."""

    ids: list[int]  # times included
    text: str
    mean_log_probability: float
    silence: float  # the probability of no speech
    compression: float
    temperature: float

    def failed(self, hearing: Hearing) -> bool:
        """Whether it repeats itself or is improbable. What is no speech has not failed: it is not said."""
        loops = hearing.most_compression is not None and self.compression > hearing.most_compression
        return (loops or self._improbable(hearing)) and not self.silent(hearing)

    def silent(self, hearing: Hearing) -> bool:
        sure = hearing.most_silence is not None and self.silence > hearing.most_silence
        return sure and (hearing.least_log_probability is None or self._improbable(hearing))

    def _improbable(self, hearing: Hearing) -> bool:
        least = hearing.least_log_probability
        return least is not None and self.mean_log_probability < least


class DrawnAt(Drawn):
    """A token drawn at a temperature, which changes no probability that is noted."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def distribution(self, scores: Tensor) -> Tensor:
        return super().distribution(scores / self.temperature)


def compression(text: str) -> float:
    """How many times smaller a text becomes when it is packed. [radford2023 §4.5]"""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw)) if raw else 0.0


@dataclass(frozen=True, eq=False)
class Hearer:
    """A model with its tokens, ready to hear windows."""

    model: EncoderDecoder
    tokenizer: TextTokenizer
    tokens: SpeechTokens

    @torch.inference_mode()
    def language_of(self, memory: Memory) -> list[dict[str, float]]:
        """The probability of each language the model knows, for each window, likeliest first. [radford2023 §2.3]"""
        rows = len(memory.states)
        logits = FromMemory(self.model, memory, [[self.tokens.start]] * rows, most=1).begin()  # [m v]
        names = list(self.tokens.languages)
        known = torch.tensor([self.tokens.languages[name] for name in names], device=logits.device)
        shares = logits.float().index_select(1, known).softmax(-1).tolist()
        return [dict(sorted(zip(names, row, strict=True), key=lambda each: -each[1])) for row in shares]

    def hear(
        self,
        memory: Memory,
        openings: Sequence[Sequence[int]],
        befores: Sequence[Sequence[int]],
        places: Sequence[int],
        hearing: Hearing,
    ) -> list[Heard]:
        """What is said in each window; `befores` are the tokens of what was said before it, `places` where it is."""
        prompts = [self._prompt(list(o), list(b)) for o, b in zip(openings, befores, strict=True)]
        found: dict[int, Heard] = {}
        left = list(range(len(prompts)))
        for temperature in hearing.temperatures:
            rows = torch.tensor(left, device=memory.states.device)
            some = [prompts[row] for row in left]
            opening = len(openings[0])
            heard = self._attempt(memory.select(rows), some, opening, [places[r] for r in left], temperature, hearing)
            found |= dict(zip(left, heard, strict=True))
            left = [row for row in left if found[row].failed(hearing)]
            if not left:
                break
        return [found[row] for row in range(len(prompts))]

    def _prompt(self, opening: list[int], before: list[int]) -> list[int]:
        """What was said before, cut to half of what the model reads, and the opening."""
        keep = self.model.sizes.target_positions // 2 - 1
        if not before or self.tokens.previous is None or keep < 1:
            return opening
        return [self.tokens.previous, *before[-keep:], *opening]

    @torch.inference_mode()
    def _attempt(
        self,
        memory: Memory,
        prompts: Sequence[Sequence[int]],
        opening: int,
        places: Sequence[int],
        temperature: float,
        hearing: Hearing,
    ) -> list[Heard]:
        positions: int = self.model.sizes.target_positions
        most = min(positions // 2, positions + 1 - max(map(len, prompts)))
        continuation = FromMemory(self.model, memory, prompts, most=most)
        shapers, ends = self._shapers(hearing), frozenset([self.tokens.end])
        if temperature == 0 and hearing.beams > 1:
            lines = [Line(prompt, most, ends) for prompt in prompts]
            best = search_beams(
                continuation, lines, beams=hearing.beams, best=1, penalty=PowerPenalty(1.0), shapers=shapers
            )
            written = [(one[0].ids, one[0].log_probability) for one in best]
        else:
            count = hearing.samples if temperature > 0 else 1
            lines = [
                Line(prompt, most, ends, chance=chance_of(hearing.seed, [place, *prompt], number))
                for prompt, place in zip(prompts, places, strict=True)
                for number in range(count)
            ]
            chooser = DrawnAt(temperature) if temperature > 0 else TheLikeliest()
            for _ in write(continuation, lines, chooser, shapers, note_shaped=True):
                pass
            groups = [lines[first : first + count] for first in range(0, len(lines), count)]
            likeliest = [max(group, key=lambda line: _mean(line.ids, line.log_probability)) for group in groups]
            written = [(line.ids, line.log_probability) for line in likeliest]
        silence = self._silence(continuation, opening, len(prompts))
        return [
            self._heard(ids, total, quiet, temperature) for (ids, total), quiet in zip(written, silence, strict=True)
        ]

    def _silence(self, continuation: FromMemory, opening: int, rows: int) -> list[float]:
        """The probability of no speech, which the model tells in place of a language. [radford2023 §2.3]"""
        if self.tokens.no_speech is None:
            return [0.0] * rows
        logits = continuation.prompt_logits(opening)  # after the start token, the first of the opening
        shares: list[float] = logits.float().softmax(-1)[:, self.tokens.no_speech].tolist()
        return shares

    def _heard(self, ids: list[int], total: float, silence: float, temperature: float) -> Heard:
        text = self.text(ids)
        return Heard(ids, text, _mean(ids, total), silence, compression(text), temperature)

    def text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode([token for token in ids if token < self.tokens.end], whole=True).strip()

    def _shapers(self, hearing: Hearing) -> list[Shaper]:
        tokens = self.tokens
        specials = {tokens.start, tokens.previous, tokens.no_speech, *tokens.tasks.values()} - {None}
        forbidden = tuple(sorted({*tokens.suppressed, *(each for each in specials if each is not None)}))
        shapers: list[Shaper] = [Forbidden(forbidden)]
        if tokens.suppressed_first:
            shapers.insert(0, NotBefore(1, tokens.suppressed_first))
        if hearing.timestamps:
            shapers.append(TimestampRules(tokens))
        return shapers


def _mean(ids: Sequence[int], total: float) -> float:
    """The mean log-probability of a token, the end counted."""
    return total / (len(ids) + 1)
