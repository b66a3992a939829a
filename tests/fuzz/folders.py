"""Valid folders, held in memory, and what becomes of one of their files: other bytes, or nothing that is a file."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from tests.fuzz.mutations import Change, change_bytes, change_json, change_json_lines, change_lines
from tests.fuzz.tensor_mutations import change_tensors, in_one_order


@dataclass(frozen=True)
class NoFile:
    """What stands where a file should: nothing, a folder, a link to elsewhere, or a pipe that nobody writes to."""

    kind: str
    target: str = ""


Content = bytes | NoFile
NO_FILES = (
    NoFile("nothing"), NoFile("folder"), NoFile("pipe"), NoFile("link", "config.json"), NoFile("link", "nowhere"),
    NoFile("link", "/dev/zero"), NoFile("link", "/dev/null"), NoFile("link", "."), NoFile("link", "/etc/hostname"),
)  # fmt: skip
ENDLESS = (NoFile("pipe"), NoFile("link", "/dev/zero"))  # which a person may name, who then waits as for any program
ODD_FILES = 0.01  # how often


@dataclass(frozen=True)
class Seed:
    """A folder that is as it should be; `changed` are the files that get damaged."""

    name: str
    files: Mapping[str, bytes] = field(repr=False)
    changed: tuple[str, ...]


def seed_of(folder: Path, name: str, changed: Callable[[str], bool] = lambda name: True) -> Seed:
    """A folder read into memory, its safetensors in an order that does not depend on chance."""
    files = {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}
    for each in files:
        if each.endswith(".safetensors"):
            files[each] = in_one_order(files[each])
    return Seed(name, files, tuple(each for each in files if changed(each)))


def written(seed: Seed, folder: Path) -> Path:
    """The folder of a seed, for one test alone."""
    for name, content in seed.files.items():
        put(folder / name, content)
    return folder


def keep_seeds(folder: Path, seeds: Iterable[Seed]) -> None:
    """Write seeds to a folder, which is there whole or not at all."""
    passing = folder.with_name(f".{folder.name}.{os.getpid()}")
    for number, seed in enumerate(seeds):
        place = passing / f"{number:03d}"
        for name, content in seed.files.items():
            put(place / "files" / name, content)
        put(place / "seed.json", json.dumps({"name": seed.name, "changed": seed.changed}).encode())
    passing.rename(folder)


def kept_seeds(folder: Path) -> Iterator[Seed]:
    for place in sorted(folder.iterdir()):
        described = json.loads((place / "seed.json").read_text())
        files = {
            str(file.relative_to(place / "files")): file.read_bytes()
            for file in sorted((place / "files").rglob("*"))
            if file.is_file()
        }
        yield Seed(described["name"], files, tuple(described["changed"]))


CHANGES: dict[str, Change] = {
    ".safetensors": change_tensors,
    ".json": change_json,
    ".jsonl": change_json_lines,
    ".toml": change_lines,
    ".txt": change_lines,
    ".jinja": change_lines,
    ".csv": change_lines,
    ".tsv": change_lines,
    ".conll": change_lines,
}
PACKED = {".gz": (gzip.decompress, gzip.compress), ".xz": (lzma.decompress, partial(lzma.compress, preset=0))}


def change_file(name: str, content: bytes, random: Random) -> bytes:
    """Damage of the kind that a file of this name suffers."""
    path = Path(name)
    if path.suffix in PACKED and random.random() < 0.5:
        unpack, pack = PACKED[path.suffix]
        return pack(change_file(path.stem, unpack(content), random))
    return CHANGES.get(path.suffix, change_bytes)(content, random)


def changes_of(seed: Seed, random: Random, endless: bool = True) -> dict[str, Content]:
    """What is damaged in a folder: mostly one file; with `endless` it may become one that never ends."""
    odd = [each for each in NO_FILES if endless or each not in ENDLESS]
    changes: dict[str, Content] = {}
    for _ in range(random.choice((1, 1, 1, 1, 1, 2))):
        name = random.choice(seed.changed)
        changes[name] = (
            random.choice(odd) if random.random() < ODD_FILES else change_file(name, seed.files[name], random)
        )
    return changes


class Place:
    """Where folders are written to be read: each seed once, its damaged files by turns.

    A folder is put in order again only when it is next damaged, and then mostly the same file is written anew.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folders: dict[tuple[str, str], Path] = {}
        self._damaged: dict[Path, set[str]] = {}

    def folder(self, target: str, seed: Seed) -> Path:
        """The folder of a seed, as it was left."""
        key = (target, seed.name)
        if key not in self._folders:
            self._folders[key] = folder = self.root / target.replace(" ", "-") / seed.name
            for name in seed.files:
                put(os.path.join(folder, name), seed.files[name])
        return self._folders[key]

    def damage(self, folder: Path, seed: Seed, changes: Mapping[str, Content]) -> None:
        """The folder of the seed with these changes and no others."""
        for name in self._damaged.get(folder, set()) - changes.keys():
            put(os.path.join(folder, name), seed.files[name])
        for name, content in changes.items():
            put(os.path.join(folder, name), content)
        self._damaged[folder] = set(changes)


def put(file: Path | str, content: Content) -> None:
    """Put at a place whatever stands there; never into a file that is mapped, always beside it."""
    file = os.fspath(file)
    clear(file)
    if isinstance(content, bytes):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            descriptor = os.open(file, flags, 0o644)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(file))
            descriptor = os.open(file, flags, 0o644)
        with open(descriptor, "wb", buffering=0) as stream:
            stream.write(content)
    elif content.kind == "folder":
        os.mkdir(file)
    elif content.kind == "link":
        os.symlink(content.target, file)
    elif content.kind == "pipe":
        os.mkfifo(file)


def clear(file: str) -> None:
    try:
        os.unlink(file)
    except FileNotFoundError:
        return
    except OSError:
        shutil.rmtree(file)
