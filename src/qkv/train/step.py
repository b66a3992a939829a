"""One update of the weights: micro-batches forward and back, gradients averaged, clipped, applied or skipped."""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from qkv.train.by_layer import LayerWatch
from qkv.train.evaluation import Evaluate
from qkv.train.objectives.loss import Batch, Loss, Objective
from qkv.train.parallel.team import Team
from qkv.train.prefetch import Prefetch
from qkv.train.recordable import why_plain
from qkv.train.recorded import RecordedSteps
from qkv.train.settings import TrainSettings

# Floating-point operations of a batch; a plain number means operations for each counted token.
FlopCount = float | Callable[[Batch], float]


@dataclass(frozen=True)
class Update:
    """What one update did. The tensors stay on the device: reading them is the meter's business."""

    total: Tensor  # [] the summed loss
    count: int  # tokens it was summed over
    norm: Tensor  # [] of the gradient of the mean loss, before clipping; not finite means the update was skipped
    flops: float
    beside: Mapping[str, Tensor] = field(default_factory=dict)  # [] what the objective tells of its last batch


class Stepper:
    """Applies updates without ever waiting for the device (with a fused optimizer).

    On a GPU steps whose shapes come again are recorded and replayed, as the settings have it. `adjusted`: somebody
    changes numbers of the model between updates, other than its weights and which of them learn.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        settings: TrainSettings,
        flops_per_token: FlopCount = 0.0,
        say: Callable[[str], None] = print,
        team: Team | None = None,
        *,
        adjusted: bool = False,
    ) -> None:
        self.model = model
        self.objective = objective
        self.optimizer = optimizer
        self.settings = settings
        self.flops_per_token = flops_per_token
        self.say = say
        self.team = team or Team()
        self.recorded: RecordedSteps | None = None
        self.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        if settings.record is not False:
            self._record_if_possible(adjusted)

    def set_rate(self, multiplier: float) -> float:
        """Each group's own rate times the schedule's multiplier; returns the first group's rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * multiplier
        rate: float = self.optimizer.param_groups[0]["lr"]
        return rate

    def record(self, *, asked: bool = True) -> None:
        """From here on, steps whose shapes come again are recorded and replayed, where they can be.

        Where somebody `asked` for it, it is said why others are not.
        """
        device, this = self.settings.torch_device(), weakref.proxy(self)  # or both would outlive their use
        self.recorded = RecordedSteps(
            self.model, self.objective, lambda batch: this._loss(batch, device), device, self.say, asked=asked
        )

    def _record_if_possible(self, adjusted: bool) -> None:
        device, ranks = self.settings.torch_device(), self.team.world.size
        why_not = why_plain(self.model, self.objective, self.settings, device, ranks, adjusted)
        if why_not is None:
            self.record(asked=bool(self.settings.record))
        elif self.settings.record:
            self.say(f"Steps are not recorded where {why_not}: all are trained on plainly.")

    def forget_records(self) -> None:
        """Make none any more, and give their memory back."""
        if self.recorded is not None:
            self.recorded.forget()

    def with_room(self, evaluate: Evaluate) -> Evaluate:
        """The same figures; where the device has no memory for them beside the records, these are given up first."""

        def roomy(model: nn.Module) -> Mapping[str, float]:
            if self.recorded is not None and self.recorded.steps_aside:
                self.recorded.drop()
            try:
                return evaluate(model)
            except torch.OutOfMemoryError:
                if self.recorded is None or not self.recorded.holds_memory:
                    raise
            # Out of the handler, whose error holds on to all that the evaluation had made.
            self.say("The device ran out of memory: from here on records are made anew after each evaluation.")
            self.recorded.steps_aside = True
            self.recorded.drop()
            return evaluate(model)

        return roomy

    def update(self, batches: Prefetch, watch: LayerWatch | None = None) -> Update:
        losses, (first, all_flops), flops = self._fitting(batches)
        count = first
        if len(losses) > 1:
            count, all_flops = self.team.counted(sum(loss.count for loss in losses), flops)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if len(losses) > 1:
            # The mean over the tokens of all micro-batches, not the mean of their means.
            torch._foreach_mul_(gradients, max(1, first) / max(1, count))
        total = self.team.total(torch.stack([loss.total for loss in losses]).sum())
        norm = self.team.norm(gradients)
        if watch is not None:
            watch.gradients()
        if self.settings.clip is not None:
            self.team.clip(self.parameters, self.settings.clip, norm)
        self._apply(torch.isfinite(norm) & torch.isfinite(total))
        if watch is not None:
            watch.updates()
        self.optimizer.zero_grad(set_to_none=True)
        told = torch.where(torch.isfinite(total), norm, torch.nan)
        return Update(total, count, told, all_flops, losses[-1].beside)

    def _fitting(self, batches: Prefetch) -> tuple[list[Loss], tuple[int, float], float]:
        """Losses and gradients of the next batches, in ever smaller parts where the device has no memory for them."""
        began = batches.position
        while True:
            try:
                return self._pass(batches)
            except torch.OutOfMemoryError:
                if self.team.world.size > 1:
                    raise  # others are in the middle of the same pass
                self.optimizer.zero_grad(set_to_none=True)
                # Records hold memory that plain steps could do with: first without them.
                again = self.recorded is not None and self.recorded.forget()
                if not again and getattr(self.objective, "compares_rows", False):
                    raise
                parts = None if again else batches.divide(began)
                if parts is None and not again:
                    raise
            # Out of the handler, whose error holds on to all that the pass had made.
            if batches.device.type == "cuda":
                torch.cuda.empty_cache()
            if parts is None:
                batches.rewind(began)
                self.say("The device ran out of memory: from here on steps are not recorded, which takes less.")
                continue
            began = batches.position
            self.say(
                f"The device ran out of memory: from here on each batch is taken in {parts} parts, whose gradients "
                "are added up. Updates stay as large as they were."
            )

    def _pass(self, batches: Prefetch) -> tuple[list[Loss], tuple[int, float], float]:
        """The loss of each micro-batch, tokens and operations of all ranks in the first, and this rank's operations."""
        losses: list[Loss] = []
        first, flops = (0, 0.0), 0.0
        for _ in range(self.settings.accumulate):
            while True:
                batch = batches.take()
                loss = self._by_record(batch, batches, first[0] if losses else None)
                replayed = loss is not None
                if loss is None:
                    loss = self._loss(batch, batches.device, batches.idle)
                losses.append(replace(loss, total=loss.total.detach()))
                flops += self._flops(batch, loss.count)
                if len(losses) == 1:
                    first = self.team.counted(loss.count, flops)
                # Divided by the first count for now, which keeps gradients at their usual size and is already the
                # right mean when there is one micro-batch.
                if not replayed:
                    (loss.total / max(1, first[0])).backward()
                del loss  # with which a record would find nodes of a plain pass, that belong to another stream
                whole = batches.behind_whole
                batches.fetch()
                if whole:
                    break
        return losses, first, flops

    def _by_record(self, batch: Batch, batches: Prefetch, divisor: int | None) -> Loss | None:
        if self.recorded is None or batches.idle or batches.device.type != self.recorded.device.type:
            return None
        return self.recorded(batch, divisor)

    def _loss(self, batch: Batch, device: torch.device, idle: bool = False) -> Loss:
        """The objective's answer; one that stands in for no rows counts for nothing, but ranks compute it together."""
        found: list[Loss] = []

        def work() -> Tensor:
            found.append(self.objective(self.model, batch))
            return found[0].total

        self.team.silent(idle)
        with self.settings.autocast(device):
            total = self.team.inside(work)
        return replace(found[0], total=total * 0, count=0) if idle else replace(found[0], total=total)

    def _apply(self, finite: Tensor) -> None:
        """Step only if loss and gradient were finite; weights, moments and their counter stay as they were if not."""
        if getattr(self.optimizer, "_step_supports_amp_scaling", False):
            # A fused optimizer reads the flag on the device, the way GradScaler hands it over.
            self.optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
            self.optimizer.step()
            del self.optimizer.found_inf  # type: ignore[attr-defined]
        elif bool(finite):
            self.optimizer.step()

    def _flops(self, batch: Batch, count: int) -> float:
        if callable(self.flops_per_token):
            return self.flops_per_token(batch)
        return self.flops_per_token * count
