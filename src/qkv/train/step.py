"""One update of the weights: micro-batches forward and back, gradients averaged, clipped, applied or skipped."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from qkv.train.by_layer import LayerWatch
from qkv.train.objectives.loss import Batch, Objective
from qkv.train.prefetch import Prefetch
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
    """Applies updates without ever waiting for the device (with a fused optimizer)."""

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        settings: TrainSettings,
        flops_per_token: FlopCount = 0.0,
    ) -> None:
        self.model = model
        self.objective = objective
        self.optimizer = optimizer
        self.settings = settings
        self.flops_per_token = flops_per_token
        self.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])

    def set_rate(self, multiplier: float) -> float:
        """Each group's own rate times the schedule's multiplier; returns the first group's rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * multiplier
        rate: float = self.optimizer.param_groups[0]["lr"]
        return rate

    def update(self, batches: Prefetch, watch: LayerWatch | None = None) -> Update:
        totals: list[Tensor] = []
        counts: list[int] = []
        flops = 0.0
        for _ in range(self.settings.accumulate):
            batch = batches.take()
            with self.settings.autocast(batches.device):
                loss = self.objective(self.model, batch)
            totals.append(loss.total.detach())
            counts.append(loss.count)
            flops += self._flops(batch, loss.count)
            # Divided by the first count for now, which keeps gradients at their usual size and is already the right
            # mean when there is one micro-batch.
            (loss.total / max(1, counts[0])).backward()
            batches.fetch()
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if len(counts) > 1:
            # The mean over the tokens of all micro-batches, not the mean of their means.
            torch._foreach_mul_(gradients, max(1, counts[0]) / max(1, sum(counts)))
        total = torch.stack(totals).sum()
        norm = get_total_norm(gradients)
        if watch is not None:
            watch.gradients()
        if self.settings.clip is not None:
            clip_grads_with_norm_(self.parameters, self.settings.clip, norm)
        self._apply(torch.isfinite(norm) & torch.isfinite(total))
        if watch is not None:
            watch.updates()
        self.optimizer.zero_grad(set_to_none=True)
        return Update(total, sum(counts), torch.where(torch.isfinite(total), norm, torch.nan), flops, loss.beside)

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
