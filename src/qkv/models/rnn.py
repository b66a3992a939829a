"""The Transformer's predecessor, RNNsearch: two recurrent networks, and attention between them. [bahdanau2015]

DIFFERS [bahdanau2015]: the encoder's GRU is torch's (see `BidirectionalGRU`), and there may be dropout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qkv.models.described import DESCRIBED
from qkv.models.family import Family
from qkv.models.sequence_to_sequence import Memory, SequenceToSequence
from qkv.parts.attention.cache import Cache
from qkv.parts.attention.recurrent import AttentiveGRU, BidirectionalGRU, RecurrentCache, initialise_small
from qkv.parts.attention.visibility import NotPadding, Tokens
from qkv.parts.context import Context, Ledger
from qkv.parts.embed import TokenEmbedding
from qkv.parts.heads import LogitHead
from qkv.parts.spec import Depends


@dataclass(frozen=True, kw_only=True)
class RNNSizes:
    vocabulary: int  # of the target, and of the source too unless it has its own
    source_vocabulary: int | None = None  # None: one vocabulary and one matrix for both
    embedding: int  # m, width of a word vector
    width: int  # n, of the decoder's state and of each direction of the encoder
    alignment: int  # n', hidden units of the alignment model
    maxout: int  # l, hidden units of the output
    # DIFFERS [bahdanau2015]: none in the paper, whose data are plentiful. It falls on word vectors, annotations and
    # maxout units, never on what a state hands to the next.
    dropout: float = 0.0


# [bahdanau2015 app.A.2.3]; the vocabularies are those of §4.1: the 30,000 most frequent words of each language
SIZES = {
    "search": RNNSizes(
        vocabulary=30000, source_vocabulary=30000, embedding=620, width=1000, alignment=1000, maxout=500
    ),
}


class MaxoutReadout(nn.Module):
    """The larger of each pair of U_o s_{i-1} + V_o E y_{i-1} + C_o c_i. [bahdanau2015 app.A.2.2], [goodfellow2013]"""

    depends_on = Depends("state", "word", "context")

    def __init__(self, state_width: int, word_width: int, context_width: int, units: int) -> None:
        super().__init__()
        self.state = nn.Linear(state_width, 2 * units)  # U_o
        self.word = nn.Linear(word_width, 2 * units, bias=False)  # V_o
        self.context = nn.Linear(context_width, 2 * units, bias=False)  # C_o
        for linear in (self.state, self.word, self.context):
            initialise_small(linear.weight)
        nn.init.zeros_(self.state.bias)

    def forward(self, state: Tensor, word: Tensor, context: Tensor) -> Tensor:
        """[b t …] each → [b t l]"""
        pieces = self.state(state) + self.word(word) + self.context(context)  # [b t 2l]
        first, second = pieces.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.maximum(first, second)


class RNNSearch(SequenceToSequence):
    """A bidirectional encoder, a decoder that searches through the source as it writes, and a maxout readout."""

    depends_on = Depends("source", "encoder", "target", "decoder", "readout", "head", "dropout", unread=DESCRIBED)

    def __init__(
        self,
        source: TokenEmbedding,
        encoder: BidirectionalGRU,
        target: TokenEmbedding,
        decoder: AttentiveGRU,
        readout: MaxoutReadout,
        head: LogitHead,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.source, self.encoder, self.target = source, encoder, target
        self.decoder, self.readout, self.head = decoder, readout, head
        self.dropout = nn.Dropout(dropout)
        self.source_vocabulary, self.target_vocabulary = len(source.weight), len(target.weight)

    def encode(self, source: Tensor, source_lengths: Tensor | None = None, ledger: Ledger | None = None) -> Memory:
        slots = source.shape[1]
        tokens = Tokens(slots) if source_lengths is None else Tokens.padded(source_lengths, slots)
        annotations = self.dropout(self.encoder(self.dropout(self.source(source)), source_lengths))  # [m s 2n]
        return Memory(annotations, tokens)

    def decode(
        self, target: Tensor, memory: Memory, cache: Cache | None = None, ledger: Ledger | None = None
    ) -> Tensor:
        tokens = Tokens(target.shape[1], 0 if cache is None else cache.length)
        ctx = Context(
            tokens=tokens,
            visibility=NotPadding(),
            memory=memory.states,
            memory_tokens=memory.tokens,
            cache=cache,
            ledger=ledger,
        )
        words = self.dropout(self.target(target))  # [b t m]
        states, contexts = self.decoder(words, ctx)  # [b t n] [b t 2n]
        if cache is not None:
            cache.advance(tokens)
        return self.head(self.dropout(self.readout(states, words, contexts)))  # [b t v]

    def new_cache(self, capacity: int) -> Cache:
        """A state takes the same room after any number of steps, so there is room for every capacity."""
        return RecurrentCache()


def rnn(sizes: RNNSizes) -> RNNSearch:
    annotation = 2 * sizes.width
    target = TokenEmbedding(sizes.vocabulary, sizes.embedding)
    source = target
    if sizes.source_vocabulary is not None:
        source = TokenEmbedding(sizes.source_vocabulary, sizes.embedding)
    head = LogitHead(sizes.maxout, sizes.vocabulary, bias=True)
    for matrix in (source.weight, target.weight, head.weight):
        initialise_small(matrix)
    nn.init.zeros_(head.bias)
    return RNNSearch(
        source=source,
        encoder=BidirectionalGRU(sizes.embedding, sizes.width),
        target=target,
        decoder=AttentiveGRU(sizes.embedding, sizes.width, annotation, sizes.alignment),
        readout=MaxoutReadout(sizes.width, sizes.embedding, annotation, sizes.maxout),
        head=head,
        dropout=sizes.dropout,
    )


def initialise_wide(model: RNNSearch) -> None:
    """Start from larger noise than `rnn` does, in all but the recurrent matrices, which stay orthogonal.

    DIFFERS [bahdanau2015 app.B.1]: the paper's noise is made for its width of 1000 and for days of training; a narrow
    model spends hundreds of steps on growing out of it before its attention starts to learn.
    """
    attention, decoder = model.decoder.attention, model.decoder
    for embedding in (model.source, model.target):
        nn.init.normal_(embedding.weight, std=embedding.weight.shape[1] ** -0.5)
    nn.init.normal_(attention.score, std=len(attention.score) ** -0.5)
    matrices: list[Tensor] = [
        gru.all_weights[0][0] for gru in (model.encoder.left_to_right, model.encoder.right_to_left)
    ]
    matrices += [attention.query.weight, attention.key.weight, decoder.first.weight]
    matrices += [decoder.word.weight, decoder.context.weight]
    matrices += [model.readout.state.weight, model.readout.word.weight, model.readout.context.weight, model.head.weight]
    for matrix in matrices:
        nn.init.xavier_uniform_(matrix)


FAMILIES = (Family("rnn", "its predecessor: recurrent networks with additive attention", RNNSizes, rnn, SIZES),)
