"""A checkpoint that was found whole, and what is put back from it: to each rank the slices that it holds."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.divided import is_divided
from qkv.train.checkpoint_folder import FILE
from qkv.train.parallel.pieces import (
    Piece,
    in_place_of,
    parameter_owners,
    pieces_of,
    pieces_of_state,
    shard_again,
)
from qkv.train.parallel.stored_pieces import StoredTensors
from qkv.train.random_state import seed_everything, set_random_state


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back and found whole. Its tensors are read when they are asked for."""

    folder: Path
    step: int
    model: StoredTensors
    optimizer: StoredTensors
    average: StoredTensors | None
    random: dict[str, Any] | None  # this rank's; None: other ranks than these wrote it
    state: dict[str, Any]  # what the loop saved: counters, position in the data, best score, budget used

    def restore_model(self, model: nn.Module) -> None:
        self.model.fill(pieces_of(model))

    def restore_average(self, model: nn.Module, average: Mapping[str, Tensor]) -> None:
        """Into the tensors of a moving average of this model."""
        if self.average is None:
            raise QkvError(f"{self.folder} holds no moving average: it was saved without one.")
        self.average.fill(in_place_of(pieces_of(model), average))

    def restore_optimizer(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """State goes to parameters by name, so their order and grouping may differ."""
        shard_again(model)
        owners = parameter_owners(model)
        packed = optimizer.state_dict()
        state: dict[int, dict[str, Tensor]] = {}
        pieces: list[Piece] = []
        unused = dict.fromkeys(self.optimizer)
        by_parameter: dict[str, list[str]] = {}
        for entry in self.optimizer:
            by_parameter.setdefault(entry.rpartition("/")[0], []).append(entry)
        for group, packed_group in zip(optimizer.param_groups, packed["param_groups"], strict=True):
            for parameter, index in zip(group["params"], packed_group["params"], strict=True):
                for entry in by_parameter.get(owners[parameter][0], []):
                    key = entry.rpartition("/")[2]
                    value = self._room(entry, parameter)
                    pieces += pieces_of_state(owners[parameter], parameter, key, value)
                    state.setdefault(index, {})[key] = value
                    unused.pop(entry)
        if unused:
            origin = self.optimizer.origin
            raise QkvError(f"{origin} holds {min(unused)}, which belongs to no parameter of this optimizer.")
        self.optimizer.read_into(pieces)
        optimizer.load_state_dict({"state": state, "param_groups": packed["param_groups"]})

    def _room(self, entry: str, parameter: Tensor) -> Tensor:
        """Memory for an entry of a parameter's state, on the ranks that hold the parameter."""
        shape, dtype = self.optimizer.shape(entry), self.optimizer.dtype(entry)
        if is_divided(parameter) and shape == tuple(parameter.shape):
            return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        return torch.empty(shape, dtype=dtype)

    def restore_random(self, seed: int, stream: int = 0) -> None:
        """Every generator as it was. Where other ranks go on than wrote this, none has a state to take up: each stream
        of random numbers then begins anew, from the seed, the step and its number."""
        if self.random is not None:
            set_random_state(self.random)
            return
        digest = hashlib.sha256(f"{seed} {self.step} {stream}".encode()).digest()
        seed_everything(int.from_bytes(digest[:7], "big"))


def files_of(folder: Path, names: Iterable[str], kind: str) -> list[Path]:
    """Those of some files that hold one kind of thing: `model.safetensors`, or one for each rank."""
    found = [(FILE.fullmatch(name), folder / name) for name in sorted(names)]
    return [path for match, path in found if match is not None and match["kind"] == kind]
