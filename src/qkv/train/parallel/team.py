"""What the training loop asks of the processes that train with it: nothing where there is one, an answer where many."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from signal import Signals
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from qkv.errors import QkvError
from qkv.train.objectives.loss import Objective
from qkv.train.parallel.world import World
from qkv.train.provenance import fingerprint_of_weights
from qkv.train.settings import TrainSettings

Answer = TypeVar("Answer")


class Team:
    """A process that trains alone."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World()
        self.stream = 0  # of random numbers: ranks that see different tokens drop different units
        self.seconds = 0.0  # of training, as rank 0 counted them when it last told
        self.signal: Signals | None = None  # that any rank had received then

    def __str__(self) -> str:
        """How ranks share the work; nothing to say of one."""
        return ""

    def fingerprint(self, model: nn.Module) -> str:
        """A short name for the weights that the model began with."""
        return fingerprint_of_weights(model)

    def inside(self, work: Callable[[], Answer]) -> Answer:
        """Do work that uses the model's parameters."""
        return work()

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse one that cannot work on parts of parameters, where they are held in parts."""

    def objective(self, objective: Objective) -> Objective:
        """The same objective, of which this rank computes its part."""
        return objective

    def part(self, batch: Any) -> Any:
        """What this rank reads of a batch, where others read the rest of its rows; on the host still."""
        return batch

    def silent(self, idle: bool) -> None:
        """Whether the batch at hand stands in for none, so that figures of all ranks leave it out."""

    def share(self, batches: Any) -> None:
        """Have a stream of batches give this rank's rows alone."""

    def tell(self, seconds: float, received: Signals | None) -> None:
        """What the others should know when counts are next exchanged: the time spent, and a signal to stop."""
        self.seconds, self.signal = seconds, received

    def counted(self, count: int, flops: float) -> tuple[int, float]:
        """The tokens and the operations of all ranks, given those of this one."""
        return count, flops

    def total(self, sums: Tensor) -> Tensor:
        """The sum over all ranks' tokens, of each number. […]"""
        return sums

    def summed(self, counts: Sequence[int]) -> list[int]:
        """The sum over all ranks' tokens of numbers that hosts know."""
        return list(counts)

    def measured_here(self, batches: Iterable[Answer]) -> Iterator[tuple[Answer, bool]]:
        """Which of some batches this rank measures, and whether its figures count; ranks take as many turns each."""
        return ((batch, True) for batch in batches)

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Of all gradients as one vector, whoever holds them. []"""
        return get_total_norm(gradients)

    def clip(self, parameters: Sequence[Tensor], most: float, norm: Tensor) -> None:
        """Shorten the gradients to a norm of `most` where theirs is larger."""
        clip_grads_with_norm_(parameters, most, norm)

    def figures(self, measured: Mapping[str, float]) -> dict[str, float]:
        """What was measured, the same on all ranks to the last bit."""
        return dict(measured)

    @contextmanager
    def whole(self, model: nn.Module) -> Iterator[nn.Module | None]:
        """The model as one process has it, to be written by the rank that gets it; None on the others."""
        yield model

    def finished(self, model: nn.Module) -> nn.Module:
        """An ordinary model with the weights that this one has now, on every rank."""
        return model


def team_of(world: World, model: nn.Module, objective: Objective, settings: TrainSettings) -> Team:
    """The ranks this process was started with; they share the model out, so an optimizer is made afterwards."""
    if world.size == 1:
        if settings.parallel:
            raise QkvError(
                f"To share work as {settings.parallel} takes several ranks: start them with "
                "torchrun --nproc-per-node N -m qkv, in place of qkv."
            )
        return Team(world)
    from qkv.train.parallel.ranks import Ranks  # whose imports a single process need not wait for

    return Ranks(world, model, objective, settings)
