"""Cross-entropy over target tokens, with label smoothing.

Shapes: b rows, t target positions, d width, v vocabulary.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from qkv.models.sequence_to_sequence import EncoderDecoder, SequenceToSequence
from qkv.parts.attention.visibility import NotPadding, Tokens
from qkv.parts.context import Ledger
from qkv.train.objectives.cross_entropy import check_smoothing, cross_entropy_of_states, smoothed_cross_entropy
from qkv.train.objectives.loss import Loss, Predictions


class Pairs(Protocol):
    """What this objective reads of a batch (`qkv.data.pairs.PairBatch`)."""

    source: Tensor  # [b s]
    padding: Tensor | None  # [b] lengths of the sources; None: all fill their rows
    target: Tensor  # [b t+1] <s> y1 ... yn </s>
    target_lengths: Tensor  # [b] with <s> and </s>
    target_tokens: int


@dataclass(frozen=True, kw_only=True)
class SequenceToSequenceLoss:
    """Label-smoothed cross-entropy of every target token given those before it [vaswani2017 §5.4]."""

    smoothing: float = 0.1  # ε of [szegedy2016 §7]; 0 gives the plain negative log-likelihood

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing)

    def __call__(self, model: nn.Module, batch: Pairs) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: Any, batch: Pairs, ledger: Ledger | None = None) -> dict[str, Loss]:
        """The smoothed loss, and the plain negative log-likelihood that perplexity is made of (without gradient)."""
        wanted, real = predicted(batch.target, batch.target_lengths)  # [b t] each
        if isinstance(model, EncoderDecoder):
            memory, tokens = model.encode(batch.source, batch.padding, ledger), Tokens(wanted.shape[1])
            states = model.decode_states(batch.target[:, :-1], memory, tokens, NotPadding(), ledger=ledger)  # [b t d]
            flat = states.flatten(0, 1), wanted.flatten(), real.flatten()
            loss, likelihood = cross_entropy_of_states(model.head, *flat, self.smoothing, model.target_vocabulary)
        else:
            if ledger is None:
                logits = model(batch.source, batch.padding, batch.target[:, :-1])  # [b t v]
            else:
                logits = self.predictions(model, batch, ledger).logits
            loss, likelihood = smoothed_cross_entropy(logits, wanted, real, self.smoothing)
        return {"loss": Loss(loss, batch.target_tokens), "nll": Loss(likelihood, batch.target_tokens)}

    def predictions(self, model: SequenceToSequence, batch: Pairs, ledger: Ledger | None = None) -> Predictions:
        memory = model.encode(batch.source, batch.padding, ledger)
        logits = model.decode(batch.target[:, :-1], memory, ledger=ledger)  # [b t v]
        wanted, real = predicted(batch.target, batch.target_lengths)
        return Predictions(logits, wanted, real, batch.target_tokens)


def predicted(target: Tensor, target_lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens to predict, all but <s>, and which of them are real. [b t+1] [b] → [b t] [b t]

    Lengths decide what counts: a pad id inside a sentence is a token like any other.
    """
    wanted = target[:, 1:]
    return wanted, torch.arange(wanted.shape[1], device=target.device) < target_lengths[:, None] - 1
