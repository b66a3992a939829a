"""A team of several ranks: the model shared out among them, and what they tell each other at each step."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from signal import SIGINT, SIGTERM, Signals
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.experts import Mixture
from qkv.train.objectives.loss import Objective
from qkv.train.optimizers.orthogonal import Muon
from qkv.train.optimizers.signs import Lion
from qkv.train.parallel.context import InStretches, SharedRows, check_context
from qkv.train.parallel.experts import divide_experts, expert_mesh, share_balance
from qkv.train.parallel.fsdp import shard, twin_of
from qkv.train.parallel.layout import Layout
from qkv.train.parallel.norm import clip_gradients, total_norm
from qkv.train.parallel.team import Team
from qkv.train.parallel.tensor import divide_tensors
from qkv.train.parallel.whole import whole_tensors
from qkv.train.parallel.world import Meshes, World
from qkv.train.settings import TrainSettings
from qkv.weights.save import tensors_of

Answer = TypeVar("Answer")


class Ranks(Team):
    """Shares the model out as it is made; whoever builds an optimizer does so afterwards."""

    def __init__(self, world: World, model: nn.Module, objective: Objective, settings: TrainSettings) -> None:
        super().__init__(world)
        self.layout = Layout.parse(settings.parallel).fitted(world.size)
        self._check(objective, settings)
        self.meshes = Meshes(world, self.layout, settings.torch_device())
        self.stream = self.meshes.rows.get_local_rank("data") * self.layout.context
        self.stream += self.meshes.rows.get_local_rank("context")
        self._told: tuple[float, Signals | None] = (0.0, None)
        self._counts = self.meshes.rows.get_local_rank("tensor") == 0  # tensor ranks have the same tokens
        self._began_with = super().fingerprint(model)
        world.check_same(self._began_with, "the weights they begin with")
        self._twin = twin_of(model)
        self._rows: SharedRows | None = None
        if self.meshes.context is not None:
            check_context(model, objective)
            self._rows = SharedRows(self.meshes.context)
        if self.layout.expert > 1:
            divide_experts(model, expert_mesh(self.meshes.rows, self.layout.expert))
        if self.meshes.tensor is not None:
            divide_tensors(model, self.meshes.tensor)
        self._balance = share_balance(model, self.meshes.counted)
        self._has_experts = any(isinstance(module, Mixture) for module in model.modules())
        self._sharded = shard(model, self.meshes.sharded)

    def _check(self, objective: Objective, settings: TrainSettings) -> None:
        if settings.gradient_norms:
            raise QkvError("What each layer does is recorded in one process only: leave out --gradient-norms.")
        if self.layout.data > 1 and getattr(objective, "compares_rows", False):
            raise QkvError(
                f"{type(objective).__name__} compares all rows of a batch, which {self.layout.data} ranks would share "
                "out: train it in one process."
            )

    def __str__(self) -> str:
        return str(self.layout)

    def fingerprint(self, model: nn.Module) -> str:
        return self._began_with

    def inside(self, work: Callable[[], Answer]) -> Answer:
        answer: Answer = self._sharded(work)
        return answer

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        fitting: list[type[torch.optim.Optimizer]] = [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, Lion]
        if self.layout.tensor == 1:
            fitting.append(Muon)  # which takes whole matrices
        if not isinstance(optimizer, tuple(fitting)):
            names = ", ".join(kind.__name__ for kind in fitting)
            raise QkvError(
                f"{type(optimizer).__name__} needs what ranks of {self.layout} hold in parts only: take one of {names}."
            )

    def objective(self, objective: Objective) -> Objective:
        return objective if self._rows is None else InStretches(objective, self._rows)

    def part(self, batch: Any) -> Any:
        return batch if self._rows is None else self._rows.part(batch)

    def silent(self, idle: bool) -> None:
        self._balance.silent = idle

    def share(self, batches: Any) -> None:
        if not hasattr(batches, "share"):
            raise QkvError(f"{type(batches).__name__} cannot be shared out among ranks: train in one process.")
        batches.share(self.meshes.data_rank, self.layout.data)

    def tell(self, seconds: float, received: Signals | None) -> None:
        self._told = (seconds, received)

    def counted(self, count: int, flops: float) -> tuple[int, float]:
        seconds, received = self._told
        own = (float(received == SIGINT), float(received == SIGTERM))
        mine = [count, flops] if self._counts else [0, 0.0]
        counts, operations, self.seconds, interrupts, terminations = self.world.agree(
            [*mine, seconds if self.world.first else 0.0, *own]
        )
        self.signal = SIGINT if interrupts else SIGTERM if terminations else None
        return int(counts), operations

    def total(self, sums: Tensor) -> Tensor:
        return self.meshes.total(sums)

    def summed(self, counts: Sequence[int]) -> list[int]:
        return [int(count) for count in self.world.agree([count if self._counts else 0 for count in counts])]

    def measured_here(self, batches: Iterable[Answer]) -> Iterator[tuple[Answer, bool]]:
        """Each group of ranks with rows of its own takes turns; one without a batch measures the last once more.

        The balance of experts is that of all tokens of a pass, and of one batch as in one process: so there all
        measure all.
        """
        all_of_them, turns = list(batches), 1 if self._has_experts else self.layout.data
        own = self.meshes.data_rank if turns > 1 else 0
        counts = self.stream == own * self.layout.context  # ranks that share rows measure the same
        for first in range(0, len(all_of_them), turns):
            mine = first + own
            yield all_of_them[min(mine, len(all_of_them) - 1)], counts and mine < len(all_of_them)

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        return total_norm(gradients)

    def clip(self, parameters: Sequence[Tensor], most: float, norm: Tensor) -> None:
        clip_gradients(parameters, most, norm)

    def figures(self, measured: Mapping[str, float]) -> dict[str, float]:
        told = json.dumps(dict(measured)).encode() if self.world.first else None  # with NaN, which Python reads back
        figures: dict[str, float] = json.loads(self.world.from_first(told))
        return figures

    @contextmanager
    def whole(self, model: nn.Module) -> Iterator[nn.Module | None]:
        self._fill(model)
        yield self._twin if self.world.first else None
        self.world.wait()

    def finished(self, model: nn.Module) -> nn.Module:
        self._fill(model)
        for tensor in tensors_of(self._twin).values():
            dist.broadcast(tensor, 0, group=self.world.host)
        return self._twin.to(self.meshes.device)

    @torch.no_grad()
    def _fill(self, model: nn.Module) -> None:
        """The first rank's twin gets all that the ranks hold, a tensor at a time."""
        places = tensors_of(self._twin)
        for name, tensor in whole_tensors(model, self.world):
            if tensor is not None:
                places[name].copy_(tensor)
