"""What learning classes has in common, of pictures and of sounds."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from qkv.api.how import Training
from qkv.api.runs import EvaluateUse, Used, parameters_of, run_training, typical_batch, validation
from qkv.data.batches import Batches
from qkv.data.classes import ClassRows, SomeRows, divided_rows
from qkv.data.rows import Rows
from qkv.errors import QkvError
from qkv.train.flops import flops_per_counted_token
from qkv.train.optimizers import adamw
from qkv.train.reporter import Reporter

JUDGED = "judged"  # in run.json
ADAMW = partial(adamw, learning_rate=1e-3)


@dataclass(frozen=True, kw_only=True)
class ClassTraining(Training):
    """How classes are learned."""

    smoothing: float = 0.0
    augment: Any = None  # how rows are changed while training
    mixing: Any = None  # how two rows are made one
    judged: Mapping[str, Any] | None = None  # what was found in the data that choices rest on, for the record


class LearnedRows(ClassRows, Rows[Any], Protocol):
    """Rows with classes that can be changed anew in every epoch."""

    def anew(self, seed: int, augment: Any, mixing: Any) -> Callable[[int], Rows[Any]]: ...


def held_out_rows(
    data: SomeRows, valid: SomeRows | None, how: ClassTraining, what: str
) -> tuple[SomeRows, SomeRows | None]:
    """What to train on and what to validate on: what is given for it, or a share of the data."""
    if valid is not None and valid.names != data.names:
        raise QkvError(f"The validation classes {', '.join(valid.names)} are not those of the training {what}.")
    if valid is None and how.hold_out:
        return divided_rows(data, how.hold_out)
    return data, valid


def learn_classes(
    use: Used,
    data: LearnedRows,
    folder: Path,
    how: ClassTraining,
    *,
    objective: Any,
    what: str,
    prepared: Any,
    fingerprint: str,
    leave: Callable[[Path], None],
    held: Rows[Any] | None,
    things_held: int | None = None,
    measure: Any,
    evaluate: EvaluateUse[Used] | None,
) -> Used:
    """Train `use.model` by `objective`; held-out rows are measured by `measure`, `things_held` where not one each.

    `what` says what the rows are, and `prepared` how they were prepared for the model, which `leave` writes down.
    """
    batches: Batches[Any] = Batches(
        data.anew(how.settings.seed, how.augment, how.mixing), how.batching, seed=how.settings.seed
    )
    if things_held is None:
        things_held = 0 if held is None else len(held.original)
    (how.reporter or Reporter()).say(
        f"{len(data):,} {what} to train on, {things_held:,} to validate on; "
        f"{use.model.family}, {parameters_of(use.model):,} parameters. Batches in an epoch: {len(batches):,}."
    )
    about: Mapping[str, Any] = {
        "family": use.model.family,
        "sizes": asdict(use.model.sizes),
        "head": use.model.head_choice.config(),
        "preprocessing": repr(prepared),
        "data": {"batching": repr(how.batching), "augment": repr(how.augment), "mixing": repr(how.mixing)},
        **({} if how.judged is None else {JUDGED: how.judged}),
    }
    return run_training(
        use,
        objective,
        batches,
        how.settings,
        folder,
        about=about,
        fingerprint=fingerprint,
        optimizer=how.optimizer or ADAMW,
        schedule=how.schedule,
        evaluate=validation(use, measure, held, evaluate),
        flops_per_token=flops_per_counted_token(use.model, objective, typical_batch(data, how.batching)),
        leave=leave,
        reporter=how.reporter,
        resume=how.resume,
        overwrite=how.overwrite,
    )
