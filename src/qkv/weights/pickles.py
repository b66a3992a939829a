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
    command = [sys.executable, "-m", "qkv.weights.unpickle", str(file), str(new)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired as error:
        raise QkvError(f"{file} is refused: opening it took more than {seconds} seconds.") from error
    if done.returncode == REFUSED and done.stdout.strip():
        raise QkvError(done.stdout.strip().splitlines()[-1])
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:200]
        raise QkvError(f"{file} could not be opened; the process that tried ended with {done.returncode}: {last}.")
