"""Cases of rows that ranks share: models, batches, and what one process makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from qkv.data.masking import MaskedBatch
from qkv.data.packing import LanguageBatch
from qkv.models.attention_choice import AttentionChoice
from qkv.models.catalogue import build
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels.flash import flash
from qkv.train.objectives.language import LanguageLoss
from qkv.train.objectives.masked import MaskedLoss
from qkv.train.optimizers import adamw
from qkv.train.parallel.context import InStretches, SharedRows, check_context
from tests.models.small import perturb
from tests.models.small_text import small_sizes

POSITIONS = 64  # of every model, so that rows of 64 are the longest
ROWS = 3


@dataclass(frozen=True)
class Case:
    family: str
    length: int
    documents: int = 1  # of a row; 0: rows of one document and of several lengths
    attention: str | None = None
    dtype: torch.dtype = torch.float64

    def model(self) -> TextModel:
        torch.manual_seed(1)
        sizes = replace(small_sizes(self.family), positions=max(POSITIONS, self.length))
        dropouts = {name: 0.0 for name in vars(sizes) if "dropout" in name and getattr(sizes, name) is not None}
        kind = "masked" if self.family == "bert" else "language"
        model = build(
            self.family, replace(sizes, **dropouts), HeadChoice(kind), attention=AttentionChoice.of(self.attention)
        )
        perturb(model)
        return model.to(self.dtype)

    def objective(self) -> Any:
        return MaskedLoss() if self.family == "bert" else LanguageLoss(smoothing=0.1)

    def batch(self, seed: int = 0) -> Any:
        return masked_batch(self.length, seed) if self.family == "bert" else language_batch(self, seed)


def language_batch(case: Case, seed: int) -> LanguageBatch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 11, (ROWS, case.length + 1), generator=generator)
    documents = torch.ones_like(ids)
    if case.documents > 1:  # of lengths that differ from row to row, with padding behind the last
        for row in range(ROWS):
            ends = torch.randint(1, case.length + 1, (case.documents,), generator=generator).sort().values
            for end in ends.tolist():
                documents[row, end:] += 1
            documents[row, int(ends[-1]) :] *= int(row != 1)
    elif case.documents == 0:
        for row in range(ROWS):
            documents[row, case.length + 1 - row :] = 0
    real = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] > 0)
    return LanguageBatch(
        ids, documents, bool(documents.max() > 1), int(real.sum()), 3 * int(real.sum()) + int(real.any())
    )


def masked_batch(length: int, seed: int) -> MaskedBatch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 11, (ROWS, length), generator=generator)
    lengths = torch.tensor([length, max(1, length - 1), max(1, length // 2)])
    segments = (torch.arange(length) > length // 3).long().expand_as(ids)
    hidden = (torch.rand(ids.shape, generator=generator) < 0.3) & (torch.arange(length) < lengths[:, None])
    hidden[0, -1] = True
    places = hidden.flatten().nonzero().squeeze(1)
    return MaskedBatch(ids, lengths, segments, places, ids.flatten()[places])


@dataclass
class Found:
    """Sums and counts by name, gradients, and the parameters after an update, by name."""

    figures: dict[str, tuple[float, int]]
    gradients: dict[str, Tensor]
    updated: dict[str, Tensor]


def alone(case: Case) -> Found:
    model, batch = case.model(), case.batch()
    measured = case.objective().measure(model, batch)
    return _found(model, {name: (each.total, each.count) for name, each in measured.items()})


def together(case: Case, rows: SharedRows) -> Found:
    """The same by all ranks there are."""
    model, objective = case.model(), case.objective()
    check_context(model, objective)
    measured = InStretches(objective, rows).measure(model, rows.part(case.batch()))
    return _found(model, {name: (each.total, each.count) for name, each in measured.items()})


def kept(case: Case, rows: SharedRows | None = None) -> int:
    """Bytes that a pass keeps for the way back, besides the parameters.

    By the kernel that takes long rows on a GPU: others keep the table of a mask.
    """
    model, batch, objective = case.model(), case.batch(), case.objective()
    for module in model.modules():
        if isinstance(module, Attention):
            module.kernel = flash
    if rows is not None:
        batch, objective = rows.part(batch), InStretches(objective, rows)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = objective(model, batch)
    assert loss.total.requires_grad
    return sum(found.values())


def all_together(cases: list[Case], long: list[Case]) -> tuple[list[Found], list[int]]:
    """What this rank finds of cases, and what it keeps of long ones."""
    rows = SharedRows(init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("context",)))
    return [together(case, rows) for case in cases], [kept(case, rows) for case in long]


def _found(model: TextModel, measured: dict[str, tuple[Tensor, int]]) -> Found:
    figures = {
        name: (_sum(total.detach()), int(_sum(torch.tensor(count)))) for name, (total, count) in measured.items()
    }
    measured["loss"][0].backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = _summed(parameter.grad) / max(1, figures["loss"][1])
    optimizer = adamw(model, learning_rate=0.01)
    gradients = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    optimizer.step()
    return Found(figures, gradients, {name: each.detach() for name, each in model.named_parameters()})


def _sum(value: Tensor) -> float:
    return float(_summed(value))


def _summed(value: Tensor) -> Tensor:
    value = value.clone()
    if dist.is_initialized():
        dist.all_reduce(value)
    return value
