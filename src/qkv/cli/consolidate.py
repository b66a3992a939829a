"""`qkv consolidate`: a checkpoint as the model of its run."""

from pathlib import Path
from typing import Annotated

import typer


def consolidate(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    step: Annotated[int | None, typer.Option(help="Step of a checkpoint; by default the newest whole one.")] = None,
) -> None:
    """Write a checkpoint, of one process or of many ranks, as the model in its run folder.

    A run does so when it ends or is stopped; this is for one that was killed, or for an earlier step.

    \b
    Example (after one that trained a model):
      qkv consolidate runs/few
    """
    from qkv.api.consolidating import consolidate as write
    from qkv.train.reporter import Reporter

    typer.echo(write(run, step, Reporter().say))
