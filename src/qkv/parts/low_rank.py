"""Low-rank updates of linear maps: W stays as it is, and a narrow product B A is learned beside it. [hu2022 §4.1]

Shapes: i inputs of a map, o outputs, r rank.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.linear import JoinedLinear
from qkv.parts.spec import Depends


class LowRank(nn.Module):
    """scale · B A dropout(x). B is zero at the start, so that nothing is added until something was learned.

    The scale is α/r, so that another rank needs no other learning rate. [hu2022 §4.1]
    """

    depends_on = Depends("scale", "dropout", "a", "b")

    def __init__(self, of: Tensor, rank: int, scale: float, dropout: float = 0.0) -> None:
        """An update of the matrix `of` [o i], of its kind of number and on its device."""
        super().__init__()
        outputs, inputs = of.shape
        self.scale, self.dropout = scale, nn.Dropout(dropout)
        self.a = nn.Parameter(of.new_empty(rank, inputs).normal_(std=inputs**-0.5))  # [r i]
        self.b = nn.Parameter(of.new_zeros(outputs, rank))  # [o r]

    @property
    def rank(self) -> int:
        return len(self.a)

    def forward(self, x: Tensor) -> Tensor:
        """[… i] → [… o]; through r numbers a token, so that no matrix [o i] is ever made."""
        return F.linear(F.linear(self.dropout(x), self.a), self.b) * self.scale

    @torch.no_grad()
    def fold_into(self, weight: Tensor) -> None:
        """weight [o i] += scale · B A, rounded once (on the CPU: not every device has float64)."""
        a, b = self.a.cpu().double(), self.b.cpu().double()
        weight.copy_(weight.cpu().double() + self.scale * (b @ a))

    def extra_repr(self) -> str:
        return f"{self.a.shape[1]} → {self.rank} → {len(self.b)}, times {self.scale:g}"


class AdaptedLinear(nn.Linear):
    """A linear map with an update beside it. Its own tensors keep their names."""

    depends_on = Depends("weight", "lora", bias=None, unread=("in_features", "out_features", "_base"))

    def __init__(self, base: nn.Linear, lora: LowRank) -> None:
        super().__init__(base.in_features, base.out_features, base.bias is not None, device="meta")
        self._base = (base,)  # not registered: both have the same tensors
        self.weight, self.bias, self.lora = base.weight, base.bias, lora

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.lora(x)

    def updates(self) -> dict[str, tuple[LowRank, Tensor]]:
        """The one update, and the matrix it belongs to. Its name is empty: the map has no parts."""
        return {"": (self.lora, self.weight.detach())}

    def without(self) -> nn.Linear:
        """The map as it was before, with the tensors it has now."""
        (base,) = self._base
        base.weight, base.bias = self.weight, self.bias
        return base


class AdaptedJoinedLinear(JoinedLinear):
    """Joined maps, some with an update beside them. Their own tensors keep their names."""

    depends_on = JoinedLinear.depends_on.also("lora", unread=("_base",))

    def __init__(self, base: JoinedLinear, lora: Mapping[str, LowRank]) -> None:
        with torch.device("meta"):
            super().__init__(base.width, base.outputs, tuple(base.biases))
        self._base = (base,)
        self.weight, self.bias, self.lora = base.weight, base.bias, nn.ModuleDict(lora)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        parts = super().together(x).split(list(self.outputs.values()), -1)
        return tuple(
            part + self.lora[name](x) if name in self.lora else part
            for name, part in zip(self.outputs, parts, strict=True)
        )

    def together(self, x: Tensor) -> Tensor:
        return torch.cat(self(x), -1)

    def with_last_of(self, x: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        inputs = [x] * (len(self.outputs) - 1) + [other]
        return tuple(
            part + self.lora[name](given) if name in self.lora else part
            for name, part, given in zip(self.outputs, super().with_last_of(x, other), inputs, strict=True)
        )

    def updates(self) -> dict[str, tuple[LowRank, Tensor]]:
        """By the part's name: its update, and its rows of the matrix."""
        rows = dict(zip(self.outputs, self.parts(self.weight), strict=True))
        found = {}
        for name, lora in self.lora.items():
            assert isinstance(lora, LowRank)
            found[name] = (lora, rows[name])
        return found

    def without(self) -> JoinedLinear:
        (base,) = self._base
        base.weight, base.bias = self.weight, self.bias
        return base


def refuse_updates(model: nn.Module) -> None:
    """For those who would see the weights alone and take them for the model."""
    if any(isinstance(module, AdaptedLinear | AdaptedJoinedLinear) for module in model.modules()):
        raise QkvError(
            "The model has low-rank updates beside its weights: merge them first, or save them alone with save_adapter."
        )
