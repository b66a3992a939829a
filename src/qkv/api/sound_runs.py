"""What trainings of models of samples have in common."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from qkv.api.choices import DESK, Sizes, named_sizes
from qkv.api.how import Training
from qkv.api.runs import MakeOptimizer, parameters_of, run_training, typical_batch
from qkv.data.batches import Batches, ordered_batches
from qkv.data.rows import Rows
from qkv.errors import QkvError
from qkv.models.catalogue import build, find_family
from qkv.models.head_choice import HeadChoice
from qkv.models.sound_model import SoundModel
from qkv.train.adjust import Adjust, HeadFirst
from qkv.train.evaluation import Measure, ValidationLoss
from qkv.train.flops import flops_per_counted_token
from qkv.train.objectives.ctc import CTCLoss
from qkv.train.objectives.loss import Loss, Objective
from qkv.train.reporter import Reporter
from qkv.train.step import FlopCount

FAMILY = "wav2vec2"
VALIDATION_SECONDS = 120  # of a validation batch
FOLLOWING = ("vocabulary",)  # sizes that follow from the texts


def run_on_sounds(
    use: Any,
    objective: Objective,
    how: Training,
    folder: Path,
    *,
    optimizer: MakeOptimizer,
    rows: Callable[[int], Rows[Any]],
    held: Rows[Any] | None,
    measure: Measure,
    samples: int,
    found: str,
    data: Mapping[str, Any],
    fingerprint: str,
    adjust: Adjust | None,
    leave: Callable[[Path], None],
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None,
) -> Any:
    """Train `use.model` on rows of sound and leave it in the folder with its history.

    `held` rows are measured by `measure`, `samples` at a time; `found` says what there is to learn from.
    """
    network: SoundModel = use.model
    batches = Batches(rows, how.batching, seed=how.settings.seed)
    (how.reporter or Reporter()).say(
        f"{found}; {network.family}, {parameters_of(network):,} parameters. Batches in an epoch: {len(batches):,}."
    )
    return run_training(
        use,
        objective,
        batches,
        how.settings,
        folder,
        about={
            "family": network.family,
            "sizes": asdict(network.sizes),
            "head": network.head_choice.config(),
            "features": repr(use.features),
            "data": {**data, "batching": repr(how.batching)},
        },
        fingerprint=fingerprint,
        optimizer=optimizer,
        schedule=how.schedule,
        evaluate=_validation(measure, held, samples, evaluate),
        flops_per_token=_flops(network, objective, typical_batch(rows(0), how.batching), adjust),
        adjust=adjust,
        leave=leave,
        reporter=how.reporter,
        resume=how.resume,
        overwrite=how.overwrite,
    )


def _validation(
    measure: Measure,
    held: Rows[Any] | None,
    samples: int,
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None,
) -> Callable[[nn.Module], dict[str, float]] | None:
    if held is None and evaluate is None:
        return None
    losses = None
    if held is not None:
        longest = int(held.sizes[0].max())
        losses = ValidationLoss(measure, [batch for _, batch in ordered_batches(held, max(samples, longest))])

    def figures(model: nn.Module) -> dict[str, float]:
        measured = losses(model) if losses is not None else {}
        return {**measured, **(evaluate(model) if evaluate is not None else {})}

    return figures


@dataclass(frozen=True)
class _BySample:
    """An objective, counted in samples, padding included, since it is computed like anything else."""

    objective: Any

    def __call__(self, model: SoundModel, batch: Any) -> Loss:
        if isinstance(self.objective, CTCLoss):  # whose own arithmetic is little, and unseen where there are no numbers
            return Loss(self.objective.logits(model, batch).sum(), batch.waves.numel())
        return Loss(self.objective(model, batch).total, batch.waves.numel())


def _flops(network: SoundModel, objective: Any, batch: Any, adjust: Adjust | None) -> FlopCount:
    """Operations of a batch, by its samples; fewer while the head learns alone."""
    network.train()
    whole = flops_per_counted_token(network, _BySample(objective), batch)
    alone = whole
    if isinstance(adjust, HeadFirst):
        adjust(network, 1, 0.0)
        alone = flops_per_counted_token(network, _BySample(objective), batch)
        adjust(network, adjust.updates + 1, 0.0)  # the optimizer must see all that will ever learn

    def count(some: Any) -> float:
        learning = next(network.stack.parameters()).requires_grad
        return (whole if learning else alone) * float(some.waves.numel())

    return count


def new_sound_model(sizes: Sizes, head: HeadChoice, **following: Any) -> SoundModel:
    """A new wav2vec 2.0 of a named size, or of changes to the desk size."""
    family = find_family(FAMILY)
    changes: Mapping[str, Any] = {} if isinstance(sizes, str) else sizes
    if given := sorted(set(FOLLOWING) & changes.keys()):
        raise QkvError(f"The size {given[0]} follows from the texts: leave it out.")
    values = {**named_sizes(family, sizes if isinstance(sizes, str) else DESK), **changes, **following}
    model: SoundModel = build(FAMILY, family.sizes(values), head)
    return model


def duration_of(items: Sequence[tuple[Tensor, str]], rate: int) -> str:
    """As a person says it."""
    minutes = sum(len(wave) for wave, _ in items) / rate / 60
    return f"{minutes / 60:.1f} hours" if minutes >= 90 else f"{minutes:.1f} minutes"


def fingerprint_of_waves(waves: Sequence[Tensor], names: Sequence[str]) -> str:
    """A short name for these very sounds and texts in this very order."""
    digest = hashlib.sha256(repr(list(names)).encode())
    for wave in waves:
        digest.update(repr(len(wave)).encode() + wave.numpy().tobytes())
    return digest.hexdigest()[:16]
