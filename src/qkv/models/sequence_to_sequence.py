"""What every model that reads one sequence and writes another offers to training and decoding, whatever its family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from qkv.models.described import DESCRIBED
from qkv.parts.attention.cache import Cache, PreallocatedCache
from qkv.parts.attention.visibility import NotPadding, Rule, Tokens
from qkv.parts.context import Context, Ledger
from qkv.parts.embed import Embed
from qkv.parts.frames import FrameStem
from qkv.parts.spec import Depends


@dataclass(frozen=True, eq=False)
class Memory:
    """What an encoder made of its source rows: states [m s d], and which of the slots are real."""

    states: Tensor
    tokens: Tokens

    def select(self, rows: Tensor) -> Memory:
        return Memory(self.states.index_select(0, rows), self.tokens.select(rows))


class SequenceToSequence(nn.Module, ABC):
    """encode the source once, decode the target step by step or all at once.

    A memory row may serve n target rows (beams); these stand next to each other.
    """

    source_vocabulary: int | None  # None: the source is no text but frames [m features t]
    target_vocabulary: int
    family: str  # what the model was built from, as `models.catalogue.build` notes it
    sizes: Any

    @abstractmethod
    def encode(self, source: Tensor, source_lengths: Tensor | None = None, ledger: Ledger | None = None) -> Memory:
        """source [m s], right-padded; no lengths: no padding. A source of frames is [m features t]."""

    @abstractmethod
    def decode(
        self, target: Tensor, memory: Memory, cache: Cache | None = None, ledger: Ledger | None = None
    ) -> Tensor:
        """Logits of the token after each target token. target [m·n t] → [m·n t v]

        With a cache, target holds only the tokens since the last call. Right padding needs no mark here: no real token
        sees it.
        """

    @abstractmethod
    def new_cache(self, capacity: int) -> Cache:
        """An empty cache for at most `capacity` decoding steps."""

    def forward(self, source: Tensor, source_lengths: Tensor | None, target: Tensor) -> Tensor:
        """Logits for a whole target at once (teacher forcing)."""
        return self.decode(target, self.encode(source, source_lengths))


class EncoderDecoder(SequenceToSequence):
    """Two stacks: one reads the source, the other the target so far and, by cross-attention, what the first made.

    What makes a stream of the source is a module `(source, ctx) -> x [m s d]` that knows where its tokens stand.
    """

    depends_on = Depends("source", "encoder", "target", "decoder", "head", unread=DESCRIBED)

    def __init__(
        self, source: Embed | FrameStem, encoder: nn.Module, target: Embed, decoder: nn.Module, head: nn.Module
    ) -> None:
        super().__init__()
        self.source, self.encoder, self.target, self.decoder, self.head = source, encoder, target, decoder, head
        self.source_vocabulary = source.vocabulary
        self.target_vocabulary = target.vocabulary

    def encode(self, source: Tensor, source_lengths: Tensor | None = None, ledger: Ledger | None = None) -> Memory:
        return self.encode_tokens(source, self.source.slots(source, source_lengths), NotPadding(), ledger=ledger)

    def encode_tokens(
        self,
        source: Tensor,
        tokens: Tokens,
        visibility: Rule,
        positions: Tensor | None = None,
        ledger: Ledger | None = None,
    ) -> Memory:
        """encode for rows padded on any side or packed with several documents, as tokens and positions say."""
        ctx = Context(tokens=tokens, visibility=visibility, positions=positions, ledger=ledger)
        return Memory(self.encoder(self.source(source, ctx), ctx), tokens)

    def decode(
        self, target: Tensor, memory: Memory, cache: Cache | None = None, ledger: Ledger | None = None
    ) -> Tensor:
        start = 0 if cache is None else cache.length
        tokens = Tokens(target.shape[1], start)
        return self.decode_tokens(target, memory, tokens, NotPadding(), cache=cache, ledger=ledger)

    def decode_tokens(
        self,
        target: Tensor,
        memory: Memory,
        tokens: Tokens,
        visibility: Rule,
        positions: Tensor | None = None,
        cache: Cache | None = None,
        ledger: Ledger | None = None,
    ) -> Tensor:
        """decode for rows padded on any side or packed with several documents."""
        return self.head(self.decode_states(target, memory, tokens, visibility, positions, cache, ledger))  # [b t v]

    def decode_states(
        self,
        target: Tensor,
        memory: Memory,
        tokens: Tokens,
        visibility: Rule,
        positions: Tensor | None = None,
        cache: Cache | None = None,
        ledger: Ledger | None = None,
    ) -> Tensor:
        """The stream that the head makes logits of, for those who need only some of them. [b t d]"""
        ctx = Context(
            tokens=tokens,
            visibility=visibility,
            positions=positions,
            memory=memory.states,
            memory_tokens=memory.tokens,
            cache=cache,
            ledger=ledger,
        )
        x: Tensor = self.decoder(self.target(target, ctx), ctx)
        if cache is not None:
            cache.advance(tokens)
        return x

    def new_cache(self, capacity: int) -> Cache:
        return PreallocatedCache(capacity)
