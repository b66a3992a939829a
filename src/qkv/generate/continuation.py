"""What decoding needs of a model: rows of tokens that can be carried on, whatever stands before them.

Shapes: m sources or prompts, r rows (several may belong to one source), s slots, t new tokens, d width, v vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.models.sequence_to_sequence import EncoderDecoder, Memory, SequenceToSequence
from qkv.models.text_model import TextModel
from qkv.parts.attention.cache import Cache, FilledInLine, PreallocatedCache
from qkv.parts.attention.in_line import InLine
from qkv.parts.attention.visibility import Tokens
from qkv.parts.embed import check_ids
from qkv.parts.position import positions_in_documents

FILLED_UP = 0.9  # share of real slots up to which prompts are not padded


class Continuation(ABC):
    """Rows that are carried on token by token. `begin` once, then `advance` and `select` in any order."""

    model: nn.Module
    vocabulary: int  # of what is written
    device: torch.device

    @abstractmethod
    def begin(self) -> Tensor:
        """Read what stands before; the logits of each row's first token. [m v]"""

    @abstractmethod
    def advance(self, tokens: Tensor) -> Tensor:
        """Append tokens [r t]; the logits of the token after the last of them. [r v]"""

    @abstractmethod
    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keep these rows, in this order (a row may occur twice).

        What several rows share, such as the memory of a source, is kept as it is, or for these `sources` if given.
        """

    def standpoint(self) -> Standpoint | None:
        """What has been read, for those who would go on from there in their own way; None: nobody can."""
        return None

    def only_text(self) -> list[int] | None:
        """All that stands before, where that is one text and has not been read yet; None: else."""
        return None

    def close(self) -> None:  # noqa: B027 (most hold nothing that others wait for)
        """Nothing more is asked of these rows."""


@dataclass(frozen=True)
class Standpoint:
    """Where rows stand between two steps."""

    model: TextModel | EncoderDecoder
    cache: PreallocatedCache
    lengths: Tensor | None  # [r] real tokens of each row; None: as many as the cache has slots
    memory: Memory | None = None

    @staticmethod
    def of(model: nn.Module, cache: Cache, lengths: Tensor | None, memory: Memory | None = None) -> Standpoint | None:
        """None where what is kept are not keys and values alone."""
        if not isinstance(model, TextModel | EncoderDecoder) or not isinstance(cache, PreallocatedCache):
            return None
        return Standpoint(model, cache, lengths, memory) if cache.keeps_slots_only else None


class FromSource(Continuation):
    """Outputs of a model that reads a source [m s] first. The rows of one source share its memory."""

    model: SequenceToSequence

    def __init__(
        self, model: SequenceToSequence, source: Tensor, source_lengths: Tensor | None, *, start: int, most: int
    ) -> None:
        """Each row begins with the token `start` and gets at most `most` tokens."""
        check_evaluation(model)
        self.model, self.source, self.source_lengths, self.start = model, source, source_lengths, start
        self.vocabulary, self.device = model.target_vocabulary, source.device
        self._cache, self._memory = model.new_cache(most), None

    _cache: Cache
    _memory: Memory | None

    def begin(self) -> Tensor:
        self._memory = self.model.encode(self.source, self.source_lengths)
        return self.advance(torch.full((len(self.source), 1), self.start, device=self.device))

    def advance(self, tokens: Tensor) -> Tensor:
        assert self._memory is not None
        return self.model.decode(tokens, self._memory, self._cache)[:, -1]

    def standpoint(self) -> Standpoint | None:
        return Standpoint.of(self.model, self._cache, None, self._memory)

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        assert self._memory is not None
        self._cache.select(rows, sources)
        if sources is not None:
            self._memory = self._memory.select(sources)


@dataclass(frozen=True)
class Slide:
    """What to do where a text grows past a model's window: forget all but its last `keep` tokens.

    As soon as a text has one token more than the window holds, its last `keep` tokens are read anew, as if the text
    began with them, and it grows on from there until the window is full again. A prompt that is too long is cut the
    same way. `keep` is half of the window by default: a larger one remembers more and reads anew more often.
    """

    keep: int | None = None

    def cut(self, text: list[int], window: int) -> list[int]:
        keep = self.keep or max(1, window // 2)
        if not 1 <= keep <= window:
            raise QkvError(f"A window of {window} tokens can keep 1 to {window} of them, not {keep}.")
        return text[-keep:] if len(text) > window else text


class FromPrompts(Continuation):
    """Texts that a language model carries on from prompts of any lengths, padded on the left so that they end together.

    A text past the model's window is an error from the start, unless `slide` says what to do.
    """

    model: TextModel

    def __init__(
        self,
        model: TextModel,
        prompts: Sequence[Sequence[int]],
        *,
        most: int,
        slide: Slide | None = None,
        unread: int = 1,
    ) -> None:
        """Each row gets at most `most` tokens after its prompt, of which the last `unread` are never read."""
        check_evaluation(model)
        if model.head_choice.kind != "language":
            raise QkvError(f"Only a language head writes text, and this model has a {model.head_choice.kind} head.")
        if not all(len(prompt) for prompt in prompts):
            raise QkvError("An empty prompt has nothing to carry on: begin it with a start token.")
        self.model, self.slide = model, slide
        self.vocabulary, self.device = model.vocabulary, next(model.parameters()).device
        for prompt in prompts:
            check_ids(torch.tensor(list(prompt)), model.vocabulary)
        self._texts = [list(prompt) for prompt in prompts]
        self._capacity = max((len(text) for text in self._texts), default=0) + most
        if model.longest is not None:
            if slide is None and self._capacity - unread > model.longest:
                raise QkvError(
                    f"A prompt of {self._capacity - most} tokens and {most} new ones do not fit into this model's "
                    f"window of {model.longest}: shorten the prompt, ask for fewer tokens, or let the window slide."
                )
            if slide is not None:
                self._texts = [slide.cut(text, model.longest) for text in self._texts]
            self._capacity = min(self._capacity, model.longest)
        self._cache = model.new_cache(self._capacity)
        self._lengths = torch.zeros(0, dtype=torch.long)  # [r] real tokens of each row
        self._seen: Tensor | None = None  # [r s] all ids in the cache, kept where they may have to be read again
        self._padded = False

    def only_text(self) -> list[int] | None:
        alone = len(self._texts) == 1 and self.slide is None and self.length == 0
        return self._texts[0] if alone else None

    @property
    def length(self) -> int:
        """Slots read so far, padding included."""
        return self._cache.length

    def begin(self) -> Tensor:
        return self.logits(self.prompt_states()[0][:, -1:])[:, 0]

    def advance(self, tokens: Tensor) -> Tensor:
        return self.logits(self.states(tokens)[:, -1:])[:, 0]

    def prompt_states(self) -> tuple[Tensor, Tensor]:
        """Read the prompts; the stream, and which of its slots are real. [m s d] [m s]"""
        texts = self._texts
        lengths = torch.tensor([len(text) for text in texts])  # [m]
        slots = int(lengths.max())
        every = torch.tensor([token for text in texts for token in text], dtype=torch.long)  # [all of them]
        real = torch.arange(slots) >= slots - lengths[:, None]  # [m s]
        ids = torch.zeros(len(texts), slots, dtype=torch.long).masked_scatter_(real, every).to(self.device)
        real, self._lengths = real.to(self.device), lengths.to(self.device)
        self._padded = bool((lengths < slots).any())
        self._seen = ids if self.slide is not None else None
        if self._may_stand_in_line(lengths):
            return self._read_in_line(every), real
        documents = real.long() if self._padded else None
        return self._read(ids, documents, None if documents is None else positions_in_documents(documents)), real

    def states(self, tokens: Tensor) -> Tensor:
        """Append tokens [r t]; the stream of each. [r t d]"""
        new = tokens.shape[1]
        if self.slide is not None and self.model.longest is not None:
            assert self._seen is not None
            self._seen = torch.cat((self._seen, tokens), 1)
            if self.length + new > self.model.longest:
                return self._slid(self.slide, self.model.longest, new)[:, -new:]
        documents = torch.ones_like(tokens) if self._padded else None
        positions = self._lengths[:, None] + torch.arange(new, device=self.device) if self._padded else None
        self._lengths = self._lengths + new
        return self._read(tokens, documents, positions)

    def logits(self, states: Tensor) -> Tensor:
        """[r t d] → [r t v]"""
        logits: Tensor = self.model.head(states)
        return logits

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        self._cache.select(rows, None)
        self._lengths = self._lengths[rows]
        if self._seen is not None:
            self._seen = self._seen[rows]

    def standpoint(self) -> Standpoint | None:
        if self.slide is not None:
            return None  # what was forgotten is read anew
        return Standpoint.of(self.model, self._cache, self._lengths if self._padded else None)

    def truncate(self, length: int) -> None:
        """Go back to when `length` slots had been read."""
        if self.slide is not None:
            raise QkvError("A window that slides cannot go back: what it forgot is gone.")
        self._lengths = self._lengths - (self.length - length)
        self._cache.truncate(length)

    def _read(self, ids: Tensor, documents: Tensor | None, positions: Tensor | None) -> Tensor:
        tokens = Tokens(ids.shape[1], self._cache.length, documents)
        ctx = self.model.context(ids, tokens=tokens, positions=positions, cache=self._cache)
        return self.model.states(ids, ctx)

    def _may_stand_in_line(self, lengths: Tensor) -> bool:
        """Whether prompts [m] that would be filled up by a lot are read one behind the other, all of them at once."""
        cache, weight = self._cache, self.model.embed.tokens.weight
        at_once = weight.device.type == "cpu" or weight.dtype in (torch.float16, torch.bfloat16)
        filled_up = int(lengths.max()) * len(lengths) * FILLED_UP >= int(lengths.sum())
        return isinstance(cache, PreallocatedCache) and at_once and filled_up and self.model.in_line

    def _read_in_line(self, every: Tensor) -> Tensor:
        """The stream of all prompts, whose tokens follow each other in `every`, as if they had been padded. [m s d]"""
        assert isinstance(self._cache, PreallocatedCache)
        line = InLine.of([len(text) for text in self._texts], self.device)
        ids = every[None].to(self.device)
        cache = FilledInLine(self._cache, line)
        return cache.in_rows(self.model.states(ids, self.model.context(ids, tokens=line, cache=cache)))

    def _slid(self, slide: Slide, window: int, new: int) -> Tensor:
        """Read all rows anew, those that no longer fit from their last tokens on. [r s d]"""
        assert self._seen is not None
        lengths = (self._lengths + new).tolist()
        self._texts = [
            slide.cut(row[len(row) - length :], window)
            for row, length in zip(self._seen.tolist(), lengths, strict=True)
        ]
        self._cache = self.model.new_cache(self._capacity)
        return self.prompt_states()[0]


def check_evaluation(model: nn.Module) -> None:
    if model.training:
        raise QkvError("Decoding needs a model without dropout: call model.eval() first.")
