"""Linear maps whose weights are held in fewer bits than the stream they map, for answers on a CPU.

Where a processor multiplies no bfloat16, weights are all that is held in it: they are half as much to read. All else is
in single precision, of which such processors do many times more.

Shapes: i inputs of a map, o its outputs.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts import cpu_steps
from qkv.parts.context import Context
from qkv.parts.cpu_maps import PackedJoined, PackedModule
from qkv.parts.heads import LogitHead, TiedHead
from qkv.parts.linear import JoinedLinear
from qkv.parts.programs import is_itself
from qkv.parts.spec import Depends

SMALL = 2**14  # a matrix of fewer numbers stays as it is: it takes no time, and often it decides between few classes
PIECE = 2**20  # numbers of a matrix that are widened at a time: they stay near, and pieces are few

Model = TypeVar("Model", bound=nn.Module)


class NarrowLinear(PackedModule):
    """(scale · x) Wᵀ + b: by our own program where that is had, which has W in the order in which it reads it."""

    # The matrix and its scales lie in the order in which a program reads them.
    depends_on = Depends(scale=1.0, unread=("outputs", "width", "map", "_bias"))

    kind: ClassVar[torch.dtype]  # of W
    called: ClassVar[str]

    def __init__(self, weight: Tensor, bias: Tensor | None, scale: float = 1.0) -> None:
        super().__init__()
        self.outputs, self.width = weight.shape
        self.scale = scale
        added = torch.zeros(self.outputs) if bias is None else bias.detach().float()
        self.hold(weight.detach().float(), added)

    def hold(self, weight: Tensor, bias: Tensor) -> None:
        """Keeps what the way here needs. [o i] [o]"""
        raise NotImplementedError

    def otherwise(self, x: Tensor) -> Tensor:
        """The map without our own program. [… i] → [… o]"""
        raise NotImplementedError

    def way(self) -> str:
        """Who multiplies, as a person is told."""
        assert self.map is not None
        return f"by our own program for {cpu_steps.instructions()}"

    def dequantised(self) -> Tensor:
        """The weights as they are computed with. [o i]"""
        raise NotImplementedError

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        """[… i] → [… o]"""
        if self.map is not None:
            known = x if x.dtype in cpu_steps.KINDS else x.float()
            return cpu_steps.map_rows(self.map, known, self.scale).to(x.dtype)
        return self.otherwise(x if self.scale == 1.0 else x * self.scale).to(x.dtype)

    def train(self, mode: bool = True) -> Self:
        if mode:
            raise QkvError(
                f"A model in {self.called} only answers: train it in single precision, then load it in {self.called}."
            )
        return super().train(mode)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        raise QkvError(f"A model in {self.called} is not saved: keep the folder that it was loaded from.")

    def __deepcopy__(self, _: dict[int, Any]) -> NarrowLinear:
        return self  # nothing changes it

    def extra_repr(self) -> str:
        return f"{self.width} → {self.outputs}, {self.called}"


class BFloat16Linear(NarrowLinear):
    """With W in bfloat16."""

    depends_on = NarrowLinear.depends_on.also(unread=("_weight",))
    kind, called = torch.bfloat16, "bfloat16"

    def hold(self, weight: Tensor, bias: Tensor) -> None:
        narrow = weight.bfloat16()
        if cpu_steps.fits(narrow, narrow.dtype):
            self.map = cpu_steps.PackedMap(narrow, bias)
        else:
            self._weight, self._bias = narrow, bias

    def otherwise(self, x: Tensor) -> Tensor:
        return by_pieces(x, self._weight) + self._bias

    def way(self) -> str:
        return super().way() if self.map is not None else "widened piece by piece for torch's products"

    def dequantised(self) -> Tensor:
        return self._weight.float() if self.map is None else self.map.dequantised()


class NarrowJoinedLinear(PackedJoined):
    """Several maps of one input, held so."""

    depends_on = Depends("together", "sizes")

    def __init__(self, joined: JoinedLinear, narrow: type[NarrowLinear]) -> None:
        super().__init__()
        self.together: NarrowLinear = narrow(joined.matrix(), joined.whole_bias())
        self.sizes = list(joined.outputs.values())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.together(x).split(self.sizes, -1)

    def with_last_of(self, x: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        """All maps of x but the last, which is of another input."""
        return (*self(x)[:-1], self(other)[-1])


def by_pieces(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ in single precision, with a piece of W after the other. [… i] [o i] → [… o]"""
    x = x.float()
    outputs, width = weight.shape
    y = x.new_empty(*x.shape[:-1], outputs)
    rows = max(1, PIECE // width)
    for first in range(0, outputs, rows):
        y[..., first : first + rows] = F.linear(x, weight[first : first + rows].float())
    return y


def with_narrow_maps(model: Model, narrow: type[NarrowLinear]) -> Model:
    """The model itself, in evaluation mode and in single precision, with its large linear maps and its logits held so.

    All else is in single precision: embeddings, norms, attention, and experts; where one call of our own program does
    all of an attention (`short_cpu.attention_step`), queries, keys, values and weights are in bfloat16.
    """
    model = model.float().eval()
    for name, module in list(model.named_modules()):
        if (held := _held(module, narrow)) is not None:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, held)
    return model.requires_grad_(False).eval()


def _held(module: nn.Module, narrow: type[NarrowLinear]) -> nn.Module | None:
    """What takes the place of a module, where anything does; a descendant of these may compute something else, and one
    that someone watches or changed is left as it is."""
    if not is_itself(module):
        return None
    if type(module) is JoinedLinear and module.weight.numel() >= SMALL:
        return NarrowJoinedLinear(module, narrow)
    if isinstance(module, TiedHead | LogitHead) and module.weight.numel() >= SMALL:
        return narrow(module.weight, module.bias, module.scale)
    if type(module) is nn.Linear and module.weight.numel() >= SMALL:
        return narrow(module.weight, module.bias)
    return None
