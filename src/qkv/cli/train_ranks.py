"""How a training uses its devices, many or one: options, and commands that `torchrun` starts again."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """The devices of a training."""

    parallel: Annotated[
        str, typer.Option(help="How ranks of torchrun share the work: tensor:2,context:2; the rest hold shards.")
    ] = ""
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Compute the inside of blocks twice in place of keeping it in memory.")
    ] = False
    record: Annotated[
        bool | None,
        typer.Option(
            "--record/--no-record",
            help="On a GPU launch a step whose shapes came before as one recorded graph; where it is safe if not said.",
        ),
    ] = None
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile each block: the first step waits, the others are quicker.")
    ] = False
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="On a GPU take only kernels whose answers repeat bit for bit.")
    ] = False


def rank() -> int:
    """The number that `torchrun` gave this process; 0 where it stands alone."""
    return int(os.environ.get("RANK", "0"))


def hush() -> None:
    """Leave standard output to the first rank: results are told once."""
    if rank() > 0:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (as long as the process lives)


def going_on(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a command that `torchrun` started again after a rank was lost: it goes on, if it had begun."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" or "resume" not in options:
        return options
    from qkv.train.parallel.world import current_world

    world = current_world()  # the first rank looks, for soon it writes there itself
    begun = b"1" if world.first and (Path(options["out"]) / "run.json").is_file() else b"0"
    return {**options, "resume": world.from_first(begun if world.first else None) == b"1", "overwrite": False}


def started(command: list[str]) -> list[str]:
    """A command as it is given for as many ranks as this one was."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return command
    return ["torchrun", "--nproc-per-node", os.environ.get("LOCAL_WORLD_SIZE", "1"), "-m", *command]
