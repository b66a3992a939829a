"""What every training has in common: a run folder, the loop, and figures of held-out rows."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import nn

from qkv.data.batches import BatchStream, ordered_batches
from qkv.data.plan import Batching
from qkv.data.rows import Rows
from qkv.errors import QkvError
from qkv.train.adapt.lora import adaptations, merge, merged
from qkv.train.adjust import Adjust
from qkv.train.cost.prediction import Cost
from qkv.train.evaluation import Measure, ValidationLoss
from qkv.train.find_rate import FindRate, RateFound
from qkv.train.loop import train
from qkv.train.objectives.expert_losses import with_expert_losses
from qkv.train.objectives.loss import Objective
from qkv.train.parallel.followed_run import FollowedRun
from qkv.train.parallel.team import Team, team_of
from qkv.train.parallel.world import current_world, others_may_be_lost
from qkv.train.reporter import Reporter
from qkv.train.run_folder import RunFolder
from qkv.train.schedules import Schedule
from qkv.train.settings import TrainSettings
from qkv.train.step import FlopCount

VALIDATION_TOKENS = 8192  # of a validation batch

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


class Use(Protocol):
    """A model with all that it takes to use it, which a folder can hold."""

    model: Any

    def save(self, folder: Path | str) -> None: ...


Used = TypeVar("Used", bound=Use)
EvaluateUse = Callable[[Used], Mapping[str, float]]


def check_folder(folder: Path, resume: bool, overwrite: bool) -> None:
    """A folder in the way is told before anyone waits; by the first rank, which is the one that writes there."""
    if not overwrite and current_world().first:
        RunFolder(folder, save_model=no_model, resume=resume)


def no_model(model: nn.Module, folder: Path) -> None:
    """For a run folder that is only looked into."""
    raise QkvError(f"{folder} was opened to be read, so no model can be saved there.")


def run_training(
    use: Used,
    objective: Objective,
    batches: BatchStream[Any, Any],
    settings: TrainSettings,
    folder: Path,
    *,
    about: Mapping[str, Any],
    fingerprint: str,
    optimizer: MakeOptimizer,
    schedule: Schedule,
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None,
    flops_per_token: FlopCount = 0.0,
    foretold: Cost | None = None,
    adjust: Adjust | None = None,
    leave: Callable[[Path], None] | None = None,
    reporter: Reporter | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> Used:
    """Train `use.model` and leave it, saved by `use`, in the folder with its history.

    `about` and `fingerprint` say what the run was made from: a resumed run must agree with them. `leave` writes what
    must be there before the first checkpoint is worth anything, such as tokenizers. With `FindRate` for an optimizer
    nothing is trained or written: `RateFound` is raised.
    """
    world, whole = current_world(), with_expert_losses(use.model, objective)
    if isinstance(optimizer, FindRate):
        if world.size > 1:
            raise QkvError("A learning rate is looked for in one process: start the command without torchrun.")
        raise RateFound(optimizer.search(use.model, whole, batches, settings, adjust))
    with others_may_be_lost(world.rank, world.size):
        world.check_same(fingerprint, "the data to train on")
        described = {**about, **_what_learns(use.model)}
        if world.size == 1:  # of a model that ranks share out each device gets its part alone
            use.model.to(settings.torch_device())
        team = team_of(world, use.model, whole, settings)
        run = (RunFolder if world.first else FollowedRun)(
            folder,
            save_model=partial(_save_whole, use, team),
            settings=described,
            data_fingerprint=fingerprint,
            resume=resume,
            overwrite=overwrite,
        )
        if leave is not None and not resume and world.first:
            _leave_in(folder, leave)
        train(
            use.model,
            team.objective(whole),
            batches,
            settings,
            run,
            optimizer=optimizer(use.model),
            schedule=schedule,
            evaluate=evaluate,
            flops_per_token=flops_per_token,
            foretold=foretold,
            adjust=adjust,
            reporter=reporter,
            team=team,
        )
        use.model = team.finished(use.model)
    if adaptations(use.model):
        merge(use.model)
    return use


def _leave_in(folder: Path, leave: Callable[[Path], None]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        leave(folder)
    except OSError as error:
        raise QkvError(f"The run folder {folder} cannot be written ({error.strerror}): name another.") from error


def _what_learns(model: nn.Module) -> dict[str, Any]:
    """How much of a model a run changes, where that is not all of it: some is frozen, or low-rank updates learn."""
    every = [parameter.numel() for parameter in model.parameters()]
    learned = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    if len(every) == len(learned):
        return {}
    return {"learned_parameters": sum(learned), "low_rank_updates": len(adaptations(model))}


def _save_whole(use: Use, team: Team, model: nn.Module, folder: Path) -> None:
    """A folder holds an ordinary model: gathered from the ranks, low-rank updates folded in while it is written."""
    with team.whole(model) as whole:
        if whole is None:
            return
        use.model = whole
        try:
            with merged(whole) if adaptations(whole) else nullcontext():
                use.save(folder)
        finally:
            use.model = model


def validation(
    use: Used, objective: Measure, rows: Rows[Any] | None, evaluate: EvaluateUse[Used] | None
) -> Callable[[nn.Module], dict[str, float]] | None:
    """All that the objective measures on held-out rows, and what the caller's own evaluation says."""
    if rows is None and evaluate is None:
        return None
    losses = None
    if rows is not None:
        longest = int(max(sizes.max() for sizes in rows.sizes))
        batches = [batch for _, batch in ordered_batches(rows, max(VALIDATION_TOKENS, longest))]
        losses = ValidationLoss(with_expert_losses(use.model, objective), batches)

    def figures(model: nn.Module) -> dict[str, float]:
        measured = dict(losses(model)) if losses is not None else {}
        measured.pop("nll", None)  # the same as perplexity
        return {**measured, **(evaluate(use) if evaluate is not None else {})}

    return figures


def typical_batch(rows: Rows[Any], batching: Batching) -> Any:
    """The batch in the middle when those of an epoch are ordered by how wide they are."""
    plan = batching.plan(*rows.sizes, np.random.default_rng(0))
    plan.sort(key=lambda planned: planned.source_width + planned.target_width)
    return rows.batch(plan[len(plan) // 2])


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def divided(
    items: Sequence[Any], share: float, key: Callable[[Any], str], kind: Callable[[Any], str] | None = None
) -> tuple[list[Any], list[Any]]:
    """(to train on, held out): by the texts alone and not by their order; equal texts stay together.

    With `kind`, about the share of every kind that has two different texts, so that none is missed by chance.
    """
    from qkv.api.pairs import hold_out

    keyed = [(key(item), str(number)) for number, item in enumerate(items)]
    groups = [keyed]
    if kind is not None:
        kinds: dict[str, str] = {}  # of each text: the first by alphabet of those that it has
        for text, name in sorted((text, kind(items[int(number)])) for text, number in keyed):
            kinds.setdefault(text, name)
        by_kind: dict[str, list[tuple[str, str]]] = {}
        for text, number in keyed:
            by_kind.setdefault(kinds[text], []).append((text, number))
        groups = [group for group in by_kind.values() if len({text for text, _ in group}) > 1] or [keyed]
    held = {number for group in groups for _, number in hold_out(group, share)[1]}
    parts: tuple[list[Any], list[Any]] = [], []
    for (_, number), item in zip(keyed, items, strict=True):
        parts[number in held].append(item)
    return parts
