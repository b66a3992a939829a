"""A checkpoint, of however many ranks, as the model of its run: of one that did not end, or of an earlier step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from qkv.api.runs import no_model
from qkv.errors import QkvError
from qkv.files import read_json
from qkv.models.attention_choice import AttentionChoice
from qkv.models.catalogue import build, find_family
from qkv.models.head_choice import HeadChoice
from qkv.models.unfilled import Unfilled
from qkv.train.parallel.pieces import pieces_of
from qkv.train.run_folder import RunFolder
from qkv.weights.save import save_model


def consolidate(folder: Path | str, step: int | None = None, say: Callable[[str], None] = print) -> str:
    """Write the weights of a checkpoint, the newest whole one or that of a step, as the model in its run folder.

    Where there is a moving average, that is what is written. No rank is needed, and no GPU. Says what was written.
    """
    run = RunFolder(folder, save_model=no_model, resume=True)
    settings = read_json(run.folder / "run.json").get("settings")
    model = _described(settings, run.folder)
    checkpoint = run.checkpoints.read_newest(say) if step is None else _of_step(run, step)
    if checkpoint is None:
        raise QkvError(f"The run in {run.folder} has no checkpoint yet.")
    stored = checkpoint.average if checkpoint.average is not None else checkpoint.model
    stored.check(pieces_of(model))
    save_model(model, run.folder, dict(stored))
    kind = "weights" if checkpoint.average is None else "moving average"
    return f"{run.folder} holds the {kind} of step {checkpoint.step:,}."


def _of_step(run: RunFolder, step: int) -> Any:
    steps = run.checkpoints.steps()
    if step not in steps:
        there = ", ".join(f"{each:,}" for each in steps) or "none"
        raise QkvError(f"The run in {run.folder} has no checkpoint of step {step:,}; there are: {there}.")
    return run.checkpoints.read(step)


def _described(settings: Any, folder: Path) -> Any:
    """The model that a run says it trains, without its numbers."""
    if not isinstance(settings, dict) or not isinstance(settings.get("sizes"), dict) or "family" not in settings:
        raise QkvError(f"The file {folder / 'run.json'} does not say what model the run trains.")
    if settings.get("low_rank_updates"):
        raise QkvError(
            f"The run in {folder} trains low-rank updates of a model, which are folded into it when the run ends: "
            "resume it."
        )
    family = find_family(settings["family"])
    head = HeadChoice.from_config(settings["head"]) if "head" in settings else None
    attention = AttentionChoice.from_config(settings["attention"]) if "attention" in settings else None
    with torch.device("meta"), Unfilled():
        return build(family.name, family.sizes(settings["sizes"]), head, attention)
