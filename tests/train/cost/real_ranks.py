"""What ranks really hold and really say to each other in a step: what plans for ranks are held against."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.api.cost import new_model, typical_step
from qkv.parts.block import Block
from qkv.train.cost.ranks_links import EXCHANGE, GATHER, SCATTER, SUM
from qkv.train.cost.step import AlwaysThis
from qkv.train.objectives.expert_losses import with_expert_losses
from qkv.train.optimizers import adamw
from qkv.train.parallel.team import team_of
from qkv.train.parallel.world import current_world
from qkv.train.settings import TrainSettings
from qkv.train.step import Stepper

LENGTH = 32
Said = dict[tuple[str, int], int]  # (how, ranks of the group) -> bytes of a step


@dataclass
class Held:
    """Bytes on one rank."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    said: Said


@dataclass(frozen=True)
class Case:
    """A training, and how ranks share it; `rows` are those of a rank."""

    parallel: str = ""
    family: str = "gpt2"
    sizes: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 3
    precision: str = "float32"
    recompute: bool = False
    accumulate: int = 1


def steps_of_rank(cases: list[Case]) -> list[Held]:
    return [step_of_rank(case) for case in cases]


def step_of_rank(case: Case) -> Held:
    """A second step of a training, on rows of this rank."""
    world = current_world()
    torch.manual_seed(1)
    model = new_model(case.family, case.sizes, None, None, LENGTH)
    objective, batch = typical_step(model, case.rows, LENGTH, None)
    objective = with_expert_losses(model, objective)
    settings = TrainSettings(
        steps=1,
        device="cpu",
        parallel=case.parallel,
        precision=case.precision,  # type: ignore[arg-type]
        recompute=case.recompute,
        accumulate=case.accumulate,
    )
    team = team_of(world, model, objective, settings)
    optimizer = adamw(model, weight_decay=0.1)
    stepper = Stepper(model, team.objective(objective), optimizer, settings, team=team)
    batches: Any = AlwaysThis(team.part(batch), torch.device("cpu"))
    gradients: list[int] = []
    optimizer.register_step_pre_hook(
        lambda *_: gradients.append(storages(parameter.grad for parameter in model.parameters()))
    )
    with recomputing(model, case.recompute):
        stepper.update(batches)
        saved = Saved(model)
        listening = Listening(world.host)
        with listening, saved.watching():
            stepper.update(batches)
    kept = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return Held(
        storages(model.parameters()),
        gradients[-1],
        sum(own.numel() * own.element_size() for own in map(local, kept)),
        saved.most,
        dict(listening.said),
    )


@contextmanager
def recomputing(model: nn.Module, recompute: bool) -> Iterator[None]:
    if not recompute:
        yield
        return
    from qkv.train.parallel.recompute import recompute_blocks

    with recompute_blocks(model):
        yield


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def storages(tensors: Any) -> int:
    """Bytes of memory behind tensors, each counted once."""
    found = {}
    for tensor in map(local, (tensor for tensor in tensors if tensor is not None)):
        storage = tensor.untyped_storage()
        found[storage.data_ptr() or id(storage)] = storage.nbytes()
    return sum(found.values())


class Saved:
    """Bytes that autograd keeps for the way back at most, parameters left out."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.now, self.most = model, 0, 0
        self.known: set[int] = set()
        self.whole: set[int] = set()  # memory of gathered parameters

    @contextmanager
    def watching(self) -> Iterator[None]:
        parts = [module for module in self.model.modules() if not isinstance(module, Block)]
        hooks = [module.register_forward_pre_hook(self._met) for module in parts]
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
            yield
        for hook in hooks:
            hook.remove()

    def _met(self, module: nn.Module, _: object) -> None:
        self.whole |= {local(each).untyped_storage()._cdata for each in module.parameters(recurse=False)}

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = local(tensor).untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        if address not in self.known and address not in self.whole:
            self.known.add(address)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._gone, address, size)
        return tensor

    def _gone(self, address: int, size: int) -> None:
        self.known.discard(address)
        self.now -= size


class Listening(TorchDispatchMode):
    """Bytes of all that ranks say to each other while it is on, but for what hosts say."""

    def __init__(self, hosts: Any) -> None:
        super().__init__()
        self.hosts = hosts.group_name
        self.said: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, operator: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        if any(kind is DTensor for kind in types):
            return NotImplemented
        made = operator(*given, **(named or {}))
        name = operator.overloadpacket.__name__
        if operator.namespace in ("c10d", "_c10d_functional") and name in WAYS:
            how, which = WAYS[name]
            group = next(filter(None, map(_group, given)))
            tensor = made if which is None else given[which]
            tensor = tensor[0] if isinstance(tensor, list) else tensor
            if group.group_name != self.hosts and group.size() > 1:
                self.said[how, group.size()] += tensor.numel() * tensor.element_size()
        return made


# How each operator says what, and which of its arguments is the whole; None: what it makes.
WAYS: dict[str, tuple[str, int | None]] = {
    "_allgather_base_": (GATHER, 0),
    "_reduce_scatter_base_": (SCATTER, 1),
    "allreduce_": (SUM, 0),
    "alltoall_base_": (EXCHANGE, 1),
    "all_gather_into_tensor": (GATHER, None),
    "reduce_scatter_tensor": (SCATTER, 0),
    "all_reduce": (SUM, 0),
    "all_to_all_single": (EXCHANGE, 0),
}


def _group(value: Any) -> dist.ProcessGroup | None:
    """The group that an argument names, or is."""
    if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
        return dist.ProcessGroup.unbox(value)
    if isinstance(value, str) and value not in ("sum", "avg", "max", "min"):
        return _resolve_process_group(value)
    return None
