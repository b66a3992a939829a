"""From a model and one text, or one pair of token ids, to its attention maps.

h heads, q queries (rows), k keys (columns).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.decode import Hypothesis, greedy
from qkv.generate.use import at_rest
from qkv.look.maps import AttentionMap, AttentionRecord, Kind
from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.models.text_model import TextModel
from qkv.parts.context import Ledger


def record_text(
    model: SequenceToSequence,
    text: str,
    source_tokenizer: TextTokenizer,
    target_tokenizer: TextTokenizer,
    hypothesis: Hypothesis | None = None,
) -> AttentionRecord:
    """What `model` looks at when it reads `text` and writes `hypothesis`; without one, what it writes greedily."""
    source = [*source_tokenizer.encode([text])[0], source_tokenizer.end]
    if hypothesis is None:
        with at_rest(model):
            ids = torch.tensor([source], device=next(model.parameters()).device)
            spare = range(target_tokenizer.size, model.target_vocabulary)  # rows that stand for no token
            start, end = target_tokenizer.start, target_tokenizer.end
            (hypothesis,) = greedy(model, ids, start=start, end=end, never=spare)
    target = [*hypothesis.ids, target_tokenizer.end] if hypothesis.ended else hypothesis.ids
    return replace(record_attention(model, source, target, source_tokenizer, target_tokenizer), source=text)


def record_attention(
    model: SequenceToSequence,
    source: Sequence[int],
    target: Sequence[int],
    source_tokenizer: TextTokenizer,
    target_tokenizer: TextTokenizer,
) -> AttentionRecord:
    """Run `model` once over one pair of token ids and keep every attention map.

    `source` is what the encoder reads, with its closing `</s>`. `target` is what the decoder wrote, from its first
    token to its `</s>` if it wrote one; a leading `<s>` may be there or not.
    """
    read = [int(token) for token in source]
    written = [int(token) for token in target]
    if written[:1] == [target_tokenizer.start]:
        written = written[1:]
    if not read or not written:
        raise QkvError(f"There is nothing to look at: the {'output' if read else 'input'} has no tokens.")
    fed = [target_tokenizer.start, *written[:-1]]

    # Self- and cross-attention of the decoder are told apart by how many keys they have. Where input and output are of
    # equal length the input gets one token of padding, which no query sees and which is cut off again.
    padded = read + [source_tokenizer.pad] * (len(read) == len(fed))
    encoder_ledger, decoder_ledger = Ledger(model, keep={"weights"}), Ledger(model, keep={"weights"})
    device = next(model.parameters()).device
    with at_rest(model):
        lengths = torch.tensor([len(read)], device=device)
        memory = model.encode(torch.tensor([padded], device=device), lengths, ledger=encoder_ledger)
        model.decode(torch.tensor([fed], device=device), memory, ledger=decoder_ledger)

    read_labels = tuple(source_tokenizer.tokens(read))
    fed_labels = tuple(target_tokenizer.tokens(fed))
    written_labels = tuple(target_tokenizer.tokens(written))
    maps = [
        AttentionMap(name, Kind.ENCODER, weights[:, : len(read), : len(read)], read_labels, read_labels)
        for name, weights in _uses(encoder_ledger, len(padded))
    ]
    for name, weights in _uses(decoder_ledger, len(fed)):
        if weights.shape[2] == len(fed):
            maps.append(AttentionMap(name, Kind.DECODER, weights, written_labels, fed_labels))
        elif weights.shape[2] != len(padded):
            raise QkvError(
                f"{name} looks at {weights.shape[2]} tokens, which is neither the input ({len(padded)}) "
                f"nor the output ({len(fed)}); such a map cannot be labelled."
            )
        else:
            maps.append(AttentionMap(name, Kind.CROSS, weights[:, :, : len(read)], written_labels, read_labels))
    if not maps:
        raise QkvError("This model wrote no attention weights, so there is nothing to look at.")
    return AttentionRecord(source_tokenizer.decode(read), target_tokenizer.decode(written), tuple(maps))


def record_reading(model: TextModel, text: str, tokenizer: TextTokenizer, second: str | None = None) -> AttentionRecord:
    """Run a model with one stack over a text, or over a pair of texts, and keep every attention map."""
    if second is None:
        (encoding,) = tokenizer.encodings([text])
    else:
        (encoding,) = tokenizer.encode_pairs([text], [second])
    if not encoding.ids:
        raise QkvError("There is nothing to look at: the text has no tokens.")
    ledger = Ledger(model, keep={"weights"})
    device = next(model.parameters()).device
    segments = None
    if model.embed.tells_segments:
        segments = torch.tensor([encoding.segments], device=device)
    with at_rest(model):
        model(torch.tensor([encoding.ids], device=device), segments=segments, ledger=ledger)
    labels = tuple(tokenizer.tokens(encoding.ids))
    maps = [AttentionMap(name, Kind.TEXT, weights, labels, labels) for name, weights in _uses(ledger, len(labels))]
    if not maps:
        raise QkvError("This model wrote no attention weights, so there is nothing to look at.")
    return AttentionRecord(text if second is None else f"{text} | {second}", "", tuple(maps))


def _uses(ledger: Ledger, queries: int) -> list[tuple[str, np.ndarray]]:
    """Each use of each attention module with its weights [h q k], in order of first use.

    A recurrent decoder writes one row at a time: rows that add up to the whole are one use. A module that several
    layers share writes the whole each time: its later uses are numbered.
    """
    uses: list[tuple[str, np.ndarray]] = []
    for entry, written in ledger.entries.items():
        name = entry.removesuffix("/weights")
        whole = [_array(torch.cat(written, dim=2))] if written[0].shape[2] < queries else [_array(w) for w in written]
        uses += [(name if use == 0 else f"{name} (use {use + 1})", weights) for use, weights in enumerate(whole)]
    return uses


def _array(weights: Tensor) -> np.ndarray:
    """The weights of the only row of a batch. [1 h q k] -> [h q k]"""
    return weights[0].float().cpu().numpy()
