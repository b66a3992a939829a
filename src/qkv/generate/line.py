"""One output as it grows: its tokens, what the model thought of them, its text, and what ends it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Literal, NamedTuple

from qkv.data.text_stream import TextStream
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.choose import DAMAGED, NOTHING_LEFT

Ending = Literal["end", "stop", "limit"]  # an end token, a stop text, the most tokens allowed
LOOKED_BACK = 8  # tokens of a prompt: the text of the next one depends on these at most


class Alternative(NamedTuple):
    """A token that could have been chosen, and its log-probability."""

    token: int
    log_probability: float


class StoppedText:
    """Text that comes in pieces and stops before any of the texts `stops`, which may come in pieces themselves.

    A piece that could begin a stop is held back until it is known whether it does. Where there are no stops, tokens are
    not spelled before somebody asks for the text, or they end: of many rows that takes longer than writing them.
    """

    def __init__(self, tokenizer: TextTokenizer, prompt: Sequence[int] = (), stops: Sequence[str] = ()) -> None:
        if not all(stops):
            raise QkvError("An empty stop text would end every output at once: leave it out.")
        self.stopped = False
        self.stops, self._text, self._held, self._taken = tuple(stops), "", "", 0
        self._unspelled: list[int] = []
        self._stream = TextStream(tokenizer)
        for token in prompt[-LOOKED_BACK:]:  # a space before the first new word belongs to the output
            self._stream.add(token)

    @property
    def text(self) -> str:
        """All that came and is not held back."""
        self._spell()
        return self._text

    def add(self, token: int) -> None:
        self._unspelled.append(token)
        if self.stops:
            self._spell()

    def end(self) -> None:
        """No more tokens come: nothing is held back any longer."""
        self._spell()
        self._receive(self._stream.end(), last=True)

    def take(self) -> str:
        """What is new since the last call."""
        text = self.text
        piece, self._taken = text[self._taken :], len(text)
        return piece

    def _spell(self) -> None:
        if self._unspelled:
            self._receive(self._stream.add(*self._unspelled), last=False)
            self._unspelled = []

    def _receive(self, piece: str, *, last: bool) -> None:
        if self.stopped:
            return
        held = self._held + piece
        found = [place for place in (held.find(stop) for stop in self.stops) if place >= 0]
        if found:
            self._text, self._held, self.stopped = self._text + held[: min(found)], "", True
            return
        kept = 0 if last else max((_begun(held, stop) for stop in self.stops), default=0)
        free = len(held) - kept
        self._text, self._held = self._text + held[:free], held[free:]


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of the text begin the stop."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


class Line:
    """One output being written. A strategy adds tokens to it until it is no longer `live`."""

    def __init__(
        self,
        prompt: Sequence[int],
        limit: int,
        ends: frozenset[int],
        *,
        chance: Random | None = None,
        text: StoppedText | None = None,
    ) -> None:
        if limit < 1:
            raise QkvError(f"A limit of {limit} output tokens leaves no room to decode: allow 1 at least.")
        self.prompt, self.limit, self.ends, self.text = list(prompt), limit, ends, text
        self.chance = chance or Random(0)
        self.ids: list[int] = []  # without the end token
        self.log_probabilities: list[float] = []  # of the ids, and of the end token where it was reached
        self.alternatives: list[list[Alternative]] = []  # beside each of those, where they were asked for
        self.ended: Ending | None = None
        self.score: float | None = None  # what outputs are ranked by, where they are

    @property
    def live(self) -> bool:
        return self.ended is None

    @property
    def left(self) -> int:
        """How many tokens may still come."""
        return self.limit - len(self.ids)

    @property
    def log_probability(self) -> float:
        return sum(self.log_probabilities)

    def add(self, token: int, log_probability: float, alternatives: Sequence[Alternative] = ()) -> bool:
        """Take in the next token. False: the line has ended."""
        if math.isnan(log_probability):
            raise QkvError(DAMAGED)
        if log_probability == -math.inf:
            raise QkvError(NOTHING_LEFT)
        self.log_probabilities.append(log_probability)
        if alternatives:
            self.alternatives.append(list(alternatives))
        if token in self.ends:
            self._end("end")
            return False
        self.ids.append(token)
        if self.text is not None:
            self.text.add(token)
            if self.text.stopped:
                self._end("stop")
                return False
        if len(self.ids) == self.limit:
            self._end("limit")
        return self.live

    def _end(self, ending: Ending) -> None:
        self.ended = ending
        if self.text is not None:
            self.text.end()
            if self.text.stopped:  # the last characters were held back until now
                self.ended = "stop"
