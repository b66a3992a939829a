"""Text in, text out: a language model with its tokenizer.

Shapes: b rows, s slots, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

import torch

from qkv.data.encoding import is_text
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.generate.chat import Message, chat_marks, chat_prompt, knows_chat
from qkv.generate.continuation import Slide
from qkv.generate.history import Forbidden, NotBefore, Shaper
from qkv.generate.line import Alternative, Ending, Line, StoppedText
from qkv.generate.prepare import Ready
from qkv.generate.reader import TextReader
from qkv.generate.strategy import Greedy, Job, Strategy
from qkv.models.text_model import TextModel
from qkv.parts.device import at_once
from qkv.parts.embed import check_ids
from qkv.weights.save import CONFIG_FILE, GENERATION_FILE

if TYPE_CHECKING:
    from qkv.generate.constrain import Form, Vocabulary
    from qkv.generate.score import TextScore

Prompt = str | Sequence[int] | Sequence[Message]  # a text, token ids, or a conversation
END_KEY = "eos_token_id"  # as published folders spell it
ROWS = 16  # outputs that are written together
ROWS_ON_GPU = 64  # where a step of many takes hardly longer than one of a few


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to go on with a prompt. Shapers are applied in their order, after those that `least` and `form` ask for."""

    strategy: Strategy = Greedy()  # noqa: RUF009 (frozen)
    shapers: tuple[Shaper, ...] = ()
    most: int = 128  # new tokens
    least: int = 0  # tokens before an end may come
    stop_texts: tuple[str, ...] = ()  # the output ends before the first of them
    stop_tokens: tuple[int, ...] = ()  # that end an output, besides the tokenizer's end token
    form: Form | None = None  # JSON of a schema, or text of a pattern
    alternatives: int = 0  # likeliest tokens to tell with each token
    slide: Slide | None = None  # None: a text that would pass the model's window is an error

    def __post_init__(self) -> None:
        if self.most < 1 or not 0 <= self.least <= self.most:
            raise QkvError(f"An output has 1 new token at least, but {self.least} to {self.most} were asked for.")
        if self.alternatives < 0:
            raise QkvError(f"A token has 0 alternatives or more, not {self.alternatives}.")
        if not isinstance(self.stop_texts, tuple) or not all(text and is_text(text) for text in self.stop_texts):
            raise QkvError("Give stop texts as a tuple of valid texts that are not empty.")


DEFAULTS = Options()


@dataclass(frozen=True)
class Writing:
    """One output for one prompt."""

    text: str  # before a stop text, without special tokens
    ids: list[int]  # all that was written but the end token
    log_probabilities: list[float]  # the model's own, of each id and of the end token where it was reached
    ended: Ending  # "end": an end token, "stop": a stop text, "limit": cut off at the most tokens allowed
    score: float  # what outputs are ranked by: the sum of those, or what beam search makes of it
    alternatives: list[list[Alternative]]  # the likeliest tokens beside each of those, best first

    @property
    def log_probability(self) -> float:
        return sum(self.log_probabilities)


class TextWriter(TextReader):
    """A language model that goes on with texts."""

    kinds = ("language",)

    def __init__(self, model: TextModel, tokenizer: TextTokenizer, more_ends: Sequence[int] = ()) -> None:
        """`more_ends` are tokens that end an output too, where a publisher names others than the tokenizer's end."""
        super().__init__(model, tokenizer)
        check_ids(torch.tensor(more_ends, dtype=torch.long), model.vocabulary)
        self.more_ends = frozenset(more_ends)
        self._ready: Ready[TextModel] = Ready()
        self._vocabularies: dict[frozenset[int], Vocabulary] = {}

    def with_model(self, model: TextModel) -> Self:
        return type(self)(model, self.tokenizer, tuple(self.more_ends))

    def save(self, folder: Path | str) -> None:
        super().save(folder)
        if self.more_ends:
            write_json(Path(folder) / GENERATION_FILE, {END_KEY: sorted(self.ends())})

    def run(self, prompts: Sequence[Prompt], options: Options = DEFAULTS) -> list[Writing]:
        """One output for each prompt, in their order."""
        if options.strategy.outputs > 1:
            raise QkvError("run gives one output a prompt: use run_all where several are asked for.")
        return [found[0] for found in self.run_all(prompts, options)]

    def run_all(
        self,
        prompts: Sequence[Prompt],
        options: Options = DEFAULTS,
        rows: int | None = None,
    ) -> list[list[Writing]]:
        """All outputs for each prompt: samples in the order they are numbered, beams best first.

        About `rows` outputs are written together, of prompts of like length; what is written does not depend on it.
        None: as many as suit the device.
        """
        if isinstance(prompts, str) or not isinstance(prompts, Iterable):
            raise QkvError(f"Give a list of prompts, not {prompts!r:.60}: put a single one into brackets.")
        encoded = [self.encode(prompt) for prompt in prompts]
        if rows is None:
            rows = at_once(ROWS_ON_GPU, ROWS, next(self.model.parameters()).device)
        together = max(1, rows // options.strategy.outputs)
        results: list[list[Writing]] = [[] for _ in encoded]
        shapers = self._shapers(options)
        with self._ready.decoding(self.model) as model:
            for places in _together([len(ids) for ids in encoded], together, model.counts_slots):
                job = self._job(model, [encoded[place] for place in places], options, shapers)
                for _ in options.strategy.write(job):
                    pass
                outputs = options.strategy.outputs
                for number, place in enumerate(places):
                    lines = job.lines[number * outputs : (number + 1) * outputs]
                    results[place] = [_writing(line) for line in lines if not line.live]
        return results

    def stream(self, prompt: Prompt, options: Options = DEFAULTS) -> Iterator[str]:
        """One output, piece by piece as it is written. The pieces add up to the text that `run` gives."""
        if not options.strategy.streams or options.strategy.outputs > 1:
            raise QkvError("Only a single output that grows token by token can be streamed: no beams, no samples.")
        return self._stream(prompt, options)

    def _stream(self, prompt: Prompt, options: Options) -> Iterator[str]:
        with self._ready.decoding(self.model) as model:
            job = self._job(model, [self.encode(prompt)], options, self._shapers(options))
            text = job.lines[0].text
            assert text is not None
            for _ in options.strategy.write(job):
                if piece := text.take():
                    yield piece

    def score(self, texts: Sequence[str], *, stride: int | None = None) -> list[TextScore]:
        """How likely the model finds each text; see `score_texts`."""
        from qkv.generate.score import score_texts

        with self._ready.decoding(self.model) as model:
            return score_texts(model, self.tokenizer, texts, stride=stride)

    def _plain(self, text: str) -> list[int]:
        return self.tokenizer.encode([text])[0]

    def encode(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt. A text gets what the tokenizer puts before texts; an empty one is the start token."""
        parts = list(prompt) if isinstance(prompt, Iterable) and not isinstance(prompt, bytes) else [None]
        kinds = set(map(type, parts))  # few, where parts may be thousands
        if isinstance(prompt, str):
            ids = self._text_ids(prompt)
        elif parts and all(issubclass(kind, Message) for kind in kinds):
            ids = chat_prompt(self.tokenizer, [part for part in parts if isinstance(part, Message)])
        elif all(issubclass(kind, Integral) for kind in kinds):
            ids = list(map(int, cast("list[int]", parts)))
            check_ids(torch.tensor(ids, dtype=torch.long), self.model.vocabulary)
        else:
            raise QkvError(f"A prompt is a text, a list of token ids or one of messages, and {prompt!r:.60} is none.")
        if not ids:
            if not self.tokenizer.has("start"):
                raise QkvError("The prompt is empty and the tokenizer has no start token: give a prompt.")
            return [self.tokenizer.start]
        return ids

    def _text_ids(self, text: str) -> list[int]:
        marked, plain = self.tokenizer.encode([text], special=True)[0], self._plain(text)
        behind = len(marked) - len(plain)
        # What stands behind a whole text, such as an end token, does not stand behind the beginning of one.
        before = next((n for n in range(behind + 1) if marked[n : n + len(plain)] == plain), 0)
        return marked[: before + len(plain)]

    def _job(self, model: TextModel, prompts: Sequence[list[int]], options: Options, shapers: Sequence[Shaper]) -> Job:
        ends = self.ends().union(options.stop_tokens)
        lines = [
            Line(
                prompt,
                options.most,
                ends,
                chance=chance,
                text=StoppedText(self.tokenizer, prompt, options.stop_texts),
            )
            for prompt in prompts
            for chance in options.strategy.chances(prompt)
        ]
        return Job(model, prompts, lines, shapers, options.most, options.slide, options.alternatives)

    def ends(self) -> frozenset[int]:
        """The tokens that end an output: the tokenizer's end, and the end of a message in a conversation."""
        ends = set(self.more_ends)
        if self.tokenizer.has("end"):
            ends.add(self.tokenizer.end)
        if knows_chat(self.tokenizer):
            ends.add(chat_marks(self.tokenizer)[1])
        return frozenset(ends)

    def _shapers(self, options: Options) -> list[Shaper]:
        """What is demanded comes first: shapers such as top-k then choose among the tokens that are left."""
        check_ids(torch.tensor(options.stop_tokens, dtype=torch.long), self.model.vocabulary)
        ends = self.ends().union(options.stop_tokens)
        shapers: list[Shaper] = []
        if self.model.vocabulary > self.tokenizer.size:  # rows of the table that stand for nothing
            shapers.append(Forbidden(tuple(range(self.tokenizer.size, self.model.vocabulary))))
        if options.least:
            if not ends:
                raise QkvError("Outputs end at their limit only: without an end token, give no least number of tokens.")
            shapers.append(NotBefore(options.least, tuple(ends)))
        if options.form is not None:
            from qkv.generate.constrain import Constraint, Vocabulary

            if options.least:
                raise QkvError("An output of a given form ends when it has its form: give no least number of tokens.")
            if ends not in self._vocabularies:
                self._vocabularies[ends] = Vocabulary(self.tokenizer, ends)
            shapers.append(Constraint(options.form, self._vocabularies[ends]))
        return [*shapers, *options.shapers]


def _together(lengths: Sequence[int], most: int, equal: bool) -> Iterator[list[int]]:
    """Places of at most `most` prompts of like length; of `equal` length where padding before one would change it."""
    order = sorted(range(len(lengths)), key=lambda place: lengths[place])
    for _, alike in groupby(order, key=lambda place: lengths[place] if equal else 0):
        places = list(alike)
        yield from (places[first : first + most] for first in range(0, len(places), most))


def read_ends(folder: Path) -> tuple[int, ...]:
    """The tokens that end an output by what a folder says of writing, or else of the model; none where it says none."""
    for file in (folder / GENERATION_FILE, folder / CONFIG_FILE):
        config = read_json(file) if file.exists() else None
        told = config.get(END_KEY) if isinstance(config, dict) else None
        if told is None:
            continue
        ends = told if isinstance(told, list) else [told]
        if not all(type(end) is int and 0 <= end < 2**31 for end in ends):
            raise QkvError(f"In {file}, {END_KEY} must be the number of a token or a list of such, but is {told!r}.")
        return tuple(ends)
    return ()


def _writing(line: Line) -> Writing:
    assert line.text is not None
    assert line.ended is not None
    score = line.log_probability if line.score is None else line.score
    return Writing(line.text.text, line.ids, line.log_probabilities, line.ended, score, line.alternatives)
