"""Reading a batch of texts with a model."""

from torch import Tensor

from qkv.data.text_rows import TextBatch
from qkv.models.text_model import TextModel
from qkv.parts.context import Context, Ledger


def read(model: TextModel, batch: TextBatch, ledger: Ledger | None = None) -> tuple[Tensor, Context]:
    """The stream over all tokens, and what stands beside it. [b s d]"""
    ctx = model.context(batch.ids, lengths=batch.lengths, segments=batch.segments, ledger=ledger)
    return model.states(batch.ids, ctx), ctx


def answer(model: TextModel, batch: TextBatch, ledger: Ledger | None = None) -> Tensor:
    """What the head makes of the texts."""
    states, ctx = read(model, batch, ledger)
    result: Tensor = model.head(states, ctx)
    return result
