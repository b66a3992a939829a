"""The weights of old folders, which are pickles: each is rewritten by a process of its own, and only then read."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from torch import Tensor

from qkv.errors import QkvError
from qkv.files import read_json, read_tensors
from qkv.weights.unpickle import REFUSED

PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
SECONDS, BYTES_A_SECOND = 120, 10 * 2**20  # the time limit: to start torch, and for the file
# All that the process is told of a person's environment, in which secrets may stand: where libraries of the system are,
# and where passing files go.
HANDED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "TEMP", "TMP")


def pickles_in(folder: Path) -> list[Path]:
    """The files of weights that an old folder names, in order; none where it has no pickles."""
    if (folder / PICKLE).exists():
        return [folder / PICKLE]
    if not (folder / PICKLE_INDEX).exists():
        return []
    index = read_json(folder / PICKLE_INDEX)
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(_is_plain(name) for name in places.values()):
        raise QkvError(f'{folder / PICKLE_INDEX} must hold "weight_map", which names a file beside it for each tensor.')
    return [folder / name for name in sorted(set(places.values()))]


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name and name.endswith(".bin")


def read_pickles(files: list[Path]) -> dict[str, Tensor]:
    """All tensors of these files by their names."""
    tensors: dict[str, Tensor] = {}
    with tempfile.TemporaryDirectory() as passing:
        for file in files:
            new = Path(passing) / "model.safetensors"
            rewrite(file, new)
            held = read_tensors(new)
            if twice := held.keys() & tensors.keys():
                raise QkvError(f"{file} holds {min(twice)}, which another file of the folder holds too.")
            tensors |= {name: tensor.clone() for name, tensor in held.items()}
    return tensors


def rewrite(file: Path, new: Path) -> None:
    """One pickle as safetensors, by a process that has a limit of time and of memory."""
    if not file.is_file():
        raise QkvError(f"The file {file} is missing.")
    seconds = SECONDS + file.stat().st_size // BYTES_A_SECOND
    old = os.path.abspath(file)
    try:
        with tempfile.TemporaryDirectory() as empty:
            done = subprocess.run(
                [*_alone("from qkv.weights.unpickle import main; sys.exit(main(*sys.argv[1:]))"), old, str(new)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                timeout=seconds,
                check=False,
                cwd=empty,
                env={name: os.environ[name] for name in HANDED_ON if name in os.environ} | {"OMP_NUM_THREADS": "1"},
            )
    except subprocess.TimeoutExpired as error:
        raise QkvError(f"{file} is refused: opening it took more than {seconds} seconds.") from error
    if done.returncode == REFUSED and done.stdout.strip():
        raise QkvError(done.stdout.strip().splitlines()[-1].replace(old, str(file)))
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:200]
        raise QkvError(f"{file} could not be opened; the process that tried ended with {done.returncode}: {last}.")


def _alone(program: str) -> list[str]:
    """A command that runs a program with the libraries that this process has, and with nothing of where it stands.

    `-I`: no current folder, no folder of the person's own, no variables that name others. Where qkv and torch lie is
    handed over, since they may be found by such a variable alone.
    """
    here, own = Path.cwd(), str(Path(__file__).parents[2])
    folders = [folder for folder in sys.path if folder == own or (os.path.isabs(folder) and Path(folder) != here)]
    folders = folders if own in folders else [own, *folders]
    return [sys.executable, "-I", "-X", "utf8", "-c", f"import sys; sys.path[:] = {folders!r}; {program}"]
