"""What a real step holds at most on a CPU, storage by storage: what predictions are held against."""

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qkv.train.cost.step import AlwaysThis
from qkv.train.objectives.loss import Batch, Objective
from qkv.train.optimizers import adamw
from qkv.train.settings import TrainSettings
from qkv.train.step import Stepper


class Watch(TorchDispatchMode):
    """Bytes of all storages that operators make while it is on, and of those it was told of."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = operator(*args, **(kwargs or {}))
        self.follow(made)
        return made

    def follow(self, values: Any) -> None:
        for value in tree_leaves(values):
            if not isinstance(value, Tensor) or not value.untyped_storage().nbytes():
                continue
            storage = value.untyped_storage()
            address, size = storage._cdata, storage.nbytes()
            if address not in self.known:
                self.known.add(address)
                self.now += size
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self._gone, address, size)

    def _gone(self, address: int, size: int) -> None:
        self.known.discard(address)
        self.now -= size


def real_peak(model: nn.Module, objective: Objective, batch: Batch, settings: TrainSettings) -> int:
    """The most that the second step of a training holds."""
    model.train()
    optimizer = adamw(model)
    stepper = Stepper(model, objective, optimizer, settings)
    batches = AlwaysThis(batch, torch.device("cpu"))
    stepper.update(batches)  # type: ignore[arg-type]
    watch = Watch()
    watch.follow([*model.parameters(), *model.buffers(), *vars(batch).values()])
    watch.follow([list(state.values()) for state in optimizer.state.values()])
    watch.most = watch.now
    with watch:
        stepper.update(batches)  # type: ignore[arg-type]
    return watch.most
