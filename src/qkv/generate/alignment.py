"""When each token was said: a path through the cross-attention of heads that follow the speaker.

Such heads look at the frames of the word they write. Their weights, made comparable and smoothed, are a map of tokens
and frames, and the cheapest way through it from the first of both to the last says when each token begins.

Shapes: h heads, l tokens, k slots of the encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.models.sequence_to_sequence import EncoderDecoder, Memory
from qkv.parts.attention.visibility import NotPadding, Tokens
from qkv.parts.context import Ledger

MEDIAN = 7  # slots over which weights are smoothed


class ChosenHeads(Ledger):
    """A ledger that keeps the weights of some heads of cross-attention alone: all of them would fill the memory."""

    def __init__(self, model: EncoderDecoder, heads: Sequence[tuple[int, int]]) -> None:
        super().__init__(model, {"weights"})
        self.kept: list[Tensor] = []  # [l k] each
        blocks = list(model.decoder.get_submodule("blocks").children())
        self._wanted: dict[int, list[int]] = {}
        for layer, head in sorted(heads):
            if layer >= len(blocks):
                raise QkvError(
                    f"The model has {len(blocks)} layers that write, and no layer {layer} to align words by."
                )
            mixer = blocks[layer].get_submodule("cross.mixer")
            writer = getattr(mixer, "whole", mixer)  # of a part that goes straight, the one that can be looked into
            self._wanted.setdefault(id(writer), []).append(head)

    def write(self, module: nn.Module, kind: str, value: Tensor) -> None:
        for head in self._wanted.get(id(module), ()):
            if head >= value.shape[1]:
                raise QkvError(f"The model has {value.shape[1]} heads a layer, and no head {head} to align words by.")
            self.kept.append(value[0, head].float().cpu())


def default_heads(model: EncoderDecoder) -> list[tuple[int, int]]:
    """All heads of the upper half of the decoder, for models of which nobody has said which follow the speaker."""
    layers, heads = model.sizes.decoder_layers, model.sizes.decoder_heads
    return [(layer, head) for layer in range(layers // 2, layers) for head in range(heads)]


@dataclass(frozen=True)
class Aligned:
    """Where each of some tokens begins, in slots, and how probable the model found it."""

    begins: list[int]
    probabilities: list[float]


@torch.inference_mode()
def align(
    model: EncoderDecoder,
    memory: Memory,
    opening: Sequence[int],
    text: Sequence[int],
    end: int,
    slots: int,
    heads: Sequence[tuple[int, int]],
) -> Aligned:
    """Where each token of a text, and the end after it, begins in the first `slots` slots of one memory row.

    DIFFERS [radford2023]: transformers counts a token from where the model looks once it has written it, which is where
    the next one is said. Here, as in the code that was published with the paper, from where it looks while writing it.
    """
    device = memory.states.device
    ids = torch.tensor([[*opening, *text, end]], device=device)
    ledger = ChosenHeads(model, heads)
    states = model.decode_states(ids, memory, Tokens(ids.shape[1]), NotPadding(), ledger=ledger)
    before = slice(len(opening) - 1, len(opening) - 1 + len(text))
    logs: Tensor = model.head(states[0, before]).float().log_softmax(-1)  # [l v]
    said = torch.tensor(list(text), device=device)
    probabilities = logs.gather(1, said[:, None])[:, 0].exp().tolist() if text else []
    weights = torch.stack(ledger.kept)[..., :slots]  # [h l k]
    tokens, places = cheapest_path(-alignment(weights)[len(opening) - 1 : -1].numpy())
    first = np.flatnonzero(np.diff(tokens, prepend=-1))
    return Aligned(places[first].tolist(), probabilities)


def alignment(weights: Tensor) -> Tensor:
    """Weights of several heads as one map. [h l k] → [l k]"""
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-20)  # as if there were no slots but these
    deviation, mean = torch.std_mean(weights, -2, keepdim=True, unbiased=False)
    return median_filter((weights - mean) / deviation.clamp(min=1e-20), MEDIAN).mean(0)


def median_filter(values: Tensor, width: int) -> Tensor:
    """Each value replaced by the middle one of the `width` around it; beyond the ends the values come back. [… k]"""
    half = width // 2
    if values.shape[-1] <= half:
        return values
    padded = torch.cat((values[..., 1 : half + 1].flip(-1), values, values[..., -half - 1 : -1].flip(-1)), -1)
    return padded.unfold(-1, width, 1).median(-1).values


def cheapest_path(cost: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Dynamic time warping: the cheapest path over a table [l k] from one corner to the other, one step right, down or
    both at a time. The rows and the columns of its places.
    """
    rows, columns = cost.shape
    best = np.full((rows + 1, columns + 1), np.inf, dtype=np.float32)
    came = np.zeros((rows + 1, columns + 1), dtype=np.int8)  # 0: from both, 1: from above, 2: from the left
    best[0, 0] = 0
    for diagonal in range(2, rows + columns + 1):  # all places of a diagonal depend on the two before it alone
        row = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        column = diagonal - row
        both, above, left = best[row - 1, column - 1], best[row - 1, column], best[row, column - 1]
        way = np.where((both < above) & (both < left), 0, np.where((above < both) & (above < left), 1, 2))
        best[row, column] = cost[row - 1, column - 1] + np.choose(way, (both, above, left))
        came[row, column] = way
    came[0, :], came[:, 0] = 2, 1
    row_at, column_at, path = rows, columns, []
    while row_at > 0 or column_at > 0:
        path.append((row_at - 1, column_at - 1))
        way_back = came[row_at, column_at]
        row_at, column_at = row_at - int(way_back != 2), column_at - int(way_back != 1)
    found = np.array(path[::-1], dtype=np.int64)
    return found[:, 0], found[:, 1]
