"""The next token, given those before it in its document. [radford2019 §2]

Shapes: b rows, n tokens that the model reads, d width, v vocabulary.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from qkv.data.packing import LanguageBatch
from qkv.models.text_model import TextModel
from qkv.parts.attention.visibility import SameDocument, Tokens
from qkv.parts.context import Ledger
from qkv.parts.position import positions_in_documents
from qkv.train.objectives.cross_entropy import check_smoothing, cross_entropy_of_states
from qkv.train.objectives.loss import Loss, Predictions


@dataclass(frozen=True, kw_only=True)
class LanguageLoss:
    """Cross-entropy of every token that goes on with a document; tokens see their own document only."""

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing)

    def __call__(self, model: TextModel, batch: LanguageBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: TextModel, batch: LanguageBatch, ledger: Ledger | None = None) -> dict[str, Loss]:
        """The loss, the likelihood that perplexity is made of, and the bits for each byte of the texts."""
        states = read_documents(model, batch, ledger)  # [b n d]
        wanted, real = batch.wanted  # [b n] each
        loss, likelihood = cross_entropy_of_states(
            model.head, states.flatten(0, 1), wanted.flatten(), real.flatten(), self.smoothing, model.vocabulary
        )
        return {
            "loss": Loss(loss, batch.predicted),
            "nll": Loss(likelihood, batch.predicted),
            "bits_per_byte": Loss(likelihood / math.log(2), batch.bytes),
        }

    def predictions(self, model: TextModel, batch: LanguageBatch, ledger: Ledger | None = None) -> Predictions:
        logits = model.head(read_documents(model, batch, ledger))  # [b n v]
        return Predictions(logits, *batch.wanted, batch.predicted)


def read_documents(model: TextModel, batch: LanguageBatch, ledger: Ledger | None = None) -> Tensor:
    """The stream over all tokens but the last. [b n d]"""
    ids = batch.ids[:, :-1]
    if not batch.packed:
        # One document a row: nobody sees the padding behind it, and positions are slots, which is fastest.
        return model.states(ids, model.context(ids, ledger=ledger))
    documents = batch.documents[:, :-1]
    ctx = model.context(
        ids,
        tokens=Tokens(ids.shape[1], documents=documents),
        positions=positions_in_documents(documents),
        visibility=SameDocument(),
        ledger=ledger,
    )
    return model.states(ids, ctx)
