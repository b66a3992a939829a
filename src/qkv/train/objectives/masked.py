"""What a hidden token was, and whether two segments belong together. [devlin2019 §3.1]

Shapes: b rows, s slots, m hidden tokens of the batch, d width, v vocabulary.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from qkv.data.masking import MaskedBatch
from qkv.data.next_sentence import PretrainingBatch
from qkv.errors import QkvError
from qkv.models.text_model import TextModel
from qkv.parts.context import Ledger
from qkv.parts.heads import PretrainingHead
from qkv.parts.precision import widened
from qkv.train.objectives.cross_entropy import check_smoothing, cross_entropy_of_states
from qkv.train.objectives.loss import Loss, Predictions
from qkv.train.objectives.reading import read


@dataclass(frozen=True, kw_only=True)
class MaskedLoss:
    """Cross-entropy of the hidden tokens; the head sees no others."""

    counts: ClassVar[str] = "hidden tokens"

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing)

    def __call__(self, model: TextModel, batch: MaskedBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: TextModel, batch: MaskedBatch) -> dict[str, Loss]:
        """The loss, and the likelihood that perplexity is made of."""
        states, _ = read(model, batch)
        return masked_loss(model, states, batch, self.smoothing)

    def predictions(self, model: TextModel, batch: MaskedBatch, ledger: Ledger | None = None) -> Predictions:
        states, _ = read(model, batch, ledger)
        logits = masked_head(model)(hidden_states(states, batch)[None]).squeeze(0)  # [m v]
        return Predictions(logits, batch.wanted, batch.places >= 0, len(batch.places))


@dataclass(frozen=True, kw_only=True)
class PretrainingLoss:
    """Both of BERT's questions: the mean over hidden tokens plus the mean over pairs of segments. [devlin2019 §A.2]"""

    counts: ClassVar[str] = "hidden tokens"

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing)

    def __call__(self, model: TextModel, batch: PretrainingBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: TextModel, batch: PretrainingBatch) -> dict[str, Loss]:
        """The sum of both losses, each by itself, and how often the second question is answered right."""
        if not isinstance(model.head, PretrainingHead):
            raise QkvError("Pre-training on pairs of segments needs a model with the head 'pretraining'.")
        states, ctx = read(model, batch)
        masked = masked_loss(model, states, batch, self.smoothing)
        answers = widened(model.head.belonging(states, ctx))  # [b 2]
        second = F.cross_entropy(answers, batch.elsewhere, ignore_index=-1, reduction="sum")
        right = (answers.argmax(-1) == batch.elsewhere).sum()
        tokens, pairs = len(batch.places), batch.asked
        return {
            # Counted in tokens, so that the mean is the sum of both means.
            "loss": Loss(masked["loss"].total + second * (tokens / pairs), tokens),
            "nll": masked["nll"],
            "next_sentence": Loss(second, pairs),
            "next_sentence_accuracy": Loss(right, pairs),
        }

    def predictions(self, model: TextModel, batch: PretrainingBatch, ledger: Ledger | None = None) -> Predictions:
        """Of the hidden tokens alone."""
        return MaskedLoss().predictions(model, batch, ledger)


def masked_loss(model: TextModel, states: Tensor, batch: MaskedBatch, smoothing: float) -> dict[str, Loss]:
    hidden = hidden_states(states, batch)  # [m d]
    loss, likelihood = cross_entropy_of_states(
        masked_head(model), hidden, batch.wanted, batch.places >= 0, smoothing, model.vocabulary
    )
    return {"loss": Loss(loss, len(batch.places)), "nll": Loss(likelihood, len(batch.places))}


def hidden_states(states: Tensor, batch: MaskedBatch) -> Tensor:
    """The stream at the hidden tokens. [b s d] → [m d]"""
    return states.flatten(0, 1)[batch.places]


def masked_head(model: TextModel) -> nn.Module:
    """The part of a head that says what hidden tokens were."""
    return model.head.masked if isinstance(model.head, PretrainingHead) else model.head
