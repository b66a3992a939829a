"""Context parallel: several ranks read every row together, each its own stretches of it. [liu2023 §3]

All but attention looks at one token at a time, so a rank needs nothing of the others there: embeddings, norms,
feed-forwards, the head and the loss are those of its own slots. Attention gets the keys and values of the whole row,
gathered in one piece [grattafiori2024 §3.3.2], through the seam at which a decoder gets those of earlier steps. A model
knows nothing of it.

Gradients of parameters are those of a rank's own slots: their sum over the ranks is that of the batch.

DIFFERS [liu2023]: keys and values do not go round in a ring; every rank holds those of whole rows.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from qkv.data.rows import TensorBatch
from qkv.errors import QkvError
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention, MultiHead
from qkv.parts.attention.stretches import Stretches
from qkv.parts.context import Context
from qkv.parts.routing import Router
from qkv.parts.stack import Stack
from qkv.train.objectives.expert_losses import WithExpertLosses
from qkv.train.objectives.language import LanguageLoss
from qkv.train.objectives.loss import Loss
from qkv.train.objectives.masked import MaskedLoss
from qkv.train.parallel.gathered_keys import GatheredKeys
from qkv.train.parallel.share_of_row import ShareOfRow
from qkv.train.parallel.stretch_batches import LanguageStretch, MaskedStretch, batch_for


class SharedRows:
    """The ranks of a mesh of one dimension, as those that read every row together."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh, self.share = mesh, ShareOfRow(mesh.get_local_rank(), mesh.size())

    def part(self, batch: Any) -> TensorBatch:
        """What this rank reads of a batch, which is on the host still."""
        return batch_for(batch, self.share.rank, self.share.ranks)

    @contextmanager
    def reading(self, model: TextModel) -> Iterator[None]:
        """Inside, the model is given ids of whole rows and gives the stream of this rank's slots. [b n] → [b s d]"""
        cut = _Cut(self)
        hooks = [model.embed.register_forward_pre_hook(cut.ids), model.stack.register_forward_pre_hook(cut.stream)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def cut(self, ctx: Context, device: Any) -> tuple[Context, Tensor]:
        """What stands beside this rank's slots, and which these are; filling repeats the last of the row. [s]"""
        row = ctx.tokens
        slots = self.share.slots(row.size, device)
        within = slots.clamp(max=row.size - 1)
        documents = row.documents
        if documents is not None:
            documents = documents[:, within] * (slots < row.size)
        elif 2 * self.share.ranks * self.share.each(row.size) > row.size:
            documents = (slots < row.size).long()[None]  # so that filling is known as such
        return replace(
            ctx,
            tokens=Stretches.of(self.share.starts(row.size), self.share.each(row.size), row.size, documents),
            positions=ctx.position_ids(device)[..., within],
            segments=None if ctx.segments is None else ctx.segments[:, within],
            cache=GatheredKeys(row, self.share, self.mesh),
            masks=[],
        ), within


class _Cut:
    """Takes this rank's slots where ids enter the embeddings; what stands beside them follows at the stack."""

    def __init__(self, rows: SharedRows) -> None:
        self.rows = rows
        self.pair: tuple[Context, Context] | None = None  # of the whole row, and of this rank's slots

    def ids(self, embed: nn.Module, given: tuple[Any, ...]) -> tuple[Tensor, Context]:
        ids, whole = given
        if whole.cache is not None:
            raise QkvError("Ranks that share a row read it at once: give no cache.")
        mine, slots = self.rows.cut(whole, ids.device)
        self.pair = whole, mine
        return ids[:, slots], mine

    def stream(self, stack: nn.Module, given: tuple[Any, ...]) -> tuple[Tensor, Context]:
        x, whole = given
        assert self.pair is not None
        assert self.pair[0] is whole
        return x, self.pair[1]


@dataclass(frozen=True)
class InStretches:
    """An objective of which every rank computes its share; summed over the ranks, loss and counts are the batch's."""

    objective: Any
    rows: SharedRows

    @property
    def counts(self) -> str:
        """What the objective counts."""
        return getattr(self.objective, "counts", "tokens")

    def __call__(self, model: TextModel, batch: Any) -> Loss:
        _must_be_stretch(batch)
        with self.rows.reading(model):
            loss: Loss = self.objective(model, batch)
        return loss

    def measure(self, model: TextModel, batch: Any) -> Mapping[str, Loss]:
        _must_be_stretch(batch)
        with self.rows.reading(model):
            measured: Mapping[str, Loss] = self.objective.measure(model, batch)
        return measured


def _must_be_stretch(batch: Any) -> None:
    if not isinstance(batch, LanguageStretch | MaskedStretch):
        raise QkvError(
            f"Ranks that share rows need their part of a {type(batch).__name__}: take it with SharedRows.part first."
        )


def check_context(model: nn.Module, objective: Any) -> None:
    """Refuse what cannot be computed from a stretch of each row and the keys and values of the whole."""
    task = objective.task if isinstance(objective, WithExpertLosses) else objective
    if type(task) not in (LanguageLoss, MaskedLoss):
        raise QkvError(
            f"Context ranks hold a part of each row, from which {type(task).__name__} cannot be computed: train "
            "language models or masked language models, or leave context out of the layout."
        )
    if not isinstance(model, TextModel) or type(model.stack) is not Stack:
        made = type(model.stack if isinstance(model, TextModel) else model).__name__
        raise QkvError(
            f"Context ranks share rows of one text in a plain stack of blocks, and this is a {made}: leave context out "
            "of the layout."
        )
    if model.stack.bias is not None:
        raise QkvError(
            "This model adds a bias to the scores of all its layers, made for whole rows: leave context out of the "
            "layout."
        )
    for attention in (module for module in model.modules() if isinstance(module, MultiHead)):
        if type(attention) is not Attention or isinstance(attention.kernel, nn.Module):
            name = type(attention if type(attention) is not Attention else attention.kernel).__name__
            raise QkvError(
                f"{name} needs a row as a whole, and context ranks hold a part of each: choose a model with ordinary "
                "attention, such as gpt2 or llama, or leave context out of the layout."
            )
    if any(isinstance(module, Router) and module.capacity is not None for module in model.modules()):
        raise QkvError(
            "Experts with a capacity count the tokens of whole texts, and context ranks hold a part of each: build the "
            "model without a capacity, or leave context out of the layout."
        )
