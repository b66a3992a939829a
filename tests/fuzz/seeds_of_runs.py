"""A small training that really ran: its folder, its checkpoints and its configuration."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from qkv.errors import QkvError
from qkv.files import checksum_of_json
from tests.cli.command import train, write_words
from tests.fuzz.folders import Content, Seed, seed_of


def _run(folder: Path) -> Path:
    place = folder / "run"
    if not place.exists():
        outcome = train(write_words(folder / "words.tsv"), place, "--evaluate-every", "2")
        assert outcome.code == 0, outcome.err
    return place


def run_folders(folder: Path) -> Iterator[Seed]:
    """`qkv runs` reads the four files that tell of a run, and the header of its model."""
    told = ("run.json", "metrics.jsonl", "state.json", "train.toml", "model.safetensors")
    run = _run(folder)
    place = folder / "told"
    place.mkdir()
    for name in told:
        shutil.copy(run / name, place / name)
    yield seed_of(place, "run")


def checkpoints(folder: Path) -> Iterator[Seed]:
    run = _run(folder)
    for each in sorted((run / "checkpoints").iterdir()):
        seed = seed_of(each, each.name)
        files = {f"{each.name}/{name}": content for name, content in seed.files.items()}
        mend_checksums(files)  # of tensors whose order was settled
        yield Seed(each.name, files, tuple(files))


def mend_checksums(files: MutableMapping[str, Content]) -> None:
    """Let `state.json` agree with the files beside it, as one who edits them on purpose would."""
    for name, content in files.items():
        if not name.endswith("/state.json") or not isinstance(content, bytes):
            continue
        try:
            state = json.loads(content)
            folder = name.removesuffix("state.json")
            state.pop("checksum", None)
            for each in state["files"]:
                beside = files.get(folder + each)
                if isinstance(beside, bytes):
                    state["files"][each] = hashlib.sha256(beside).hexdigest()
            state["checksum"] = checksum_of_json(state)
            files[name] = json.dumps(state).encode("utf-8", "surrogatepass")
        except (QkvError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue


def configurations(folder: Path) -> Iterator[Seed]:
    run = _run(folder)
    place = folder / "configuration"
    place.mkdir()
    shutil.copy(run / "train.toml", place / "train.toml")
    yield seed_of(place, "text-to-text")
