"""Sounds with a label or a text each, as people keep them: a folder a class, or a table of files."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from qkv.data.columns import label, one_of, text
from qkv.data.labelled import class_names
from qkv.data.records import STANDARD_INPUT
from qkv.data.sound import read_sound
from qkv.data.sound_features import WaveFeatures
from qkv.data.table import Problem, read_table
from qkv.data.token_rows import Ints
from qkv.errors import QkvError
from qkv.files import is_file

SUFFIXES = frozenset(
    {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".caf", ".w64"}
)


@dataclass(frozen=True)
class LabelledFiles:
    """Sounds that were found and not yet read, and the name of each one's class."""

    files: list[Path]
    labels: list[str]
    names: tuple[str, ...]  # of all classes, in the order of a model's logits
    problems: list[Problem] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.files)

    def numbers(self) -> Ints:
        """The labels as places in `names`. [n]"""
        place = {name: number for number, name in enumerate(self.names)}
        return np.array([place[name] for name in self.labels])


@dataclass(frozen=True)
class SpokenFiles:
    """Sounds that were found and not yet read, and what is said in each."""

    files: list[Path]
    texts: list[str]
    problems: list[Problem] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.files)


def read_sound_folder(folder: Path | str, classes: Sequence[str] | None = None) -> LabelledFiles:
    """A folder of folders: each is named as its class, and every sound file in it or below it belongs to the class.

    With `classes`, say of a trained model, a folder of another name is an error.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise QkvError(f"There is no folder {folder}: give the one that holds a folder for each class.")
    below = [each for each in sorted(folder.iterdir()) if each.is_dir() and not each.name.startswith(".")]
    found = {each.name: list(sound_files(each)) for each in below}
    if not any(found.values()):
        raise QkvError(f"{folder} should hold a folder for each class with sounds in it, and it holds none.")
    if empty := [name for name, files in found.items() if not files]:
        raise QkvError(
            f"The folder {folder / empty[0]} holds no sound: remove it, or put the sounds of its class there."
        )
    if classes is not None and (strange := sorted(set(found) - set(classes))):
        raise QkvError(f"The folder {folder / strange[0]} is named as none of the classes {', '.join(classes)}.")
    names = tuple(classes) if classes is not None else class_names(list(found))
    files = [file for each in found.values() for file in each]
    return LabelledFiles(files, [name for name, each in found.items() for _ in each], names)


def sound_files(folder: Path) -> Iterable[Path]:
    """Every file below a folder that is named as a sound, in the order of names."""
    return (
        file
        for file in sorted(Path(folder).rglob("*"))
        if file.suffix.lower() in SUFFIXES and file.is_file() and not file.name.startswith(".")
    )


def read_sound_table(
    path: Path | str,
    *,
    sound: str = "file",
    label_column: str = "label",
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    format: str | None = None,
) -> LabelledFiles:
    """Columns of a table as labelled sounds: names of files, taken from the table's own folder."""
    kinds = {sound: _file_beside(path), label_column: label if classes is None else one_of(classes)}
    table = read_table(path, [sound, label_column], kinds=kinds, names=names, format=format)
    labels: list[str] = table.column(label_column)
    found = tuple(classes) if classes is not None else class_names(labels)
    return LabelledFiles(table.column(sound), labels, found, table.problems)


def read_spoken_table(
    path: Path | str,
    *,
    sound: str = "file",
    text_column: str = "text",
    names: Sequence[str] | None = None,
    format: str | None = None,
) -> SpokenFiles:
    """Columns of a table as sounds and what is said in them: names of files, taken from the table's own folder."""
    kinds = {sound: _file_beside(path), text_column: text}
    table = read_table(path, [sound, text_column], kinds=kinds, names=names, format=format)
    return SpokenFiles(table.column(sound), table.column(text_column), table.problems)


def read_named_sounds(
    path: Path | str, *, sound: str = "file", names: Sequence[str] | None = None, format: str | None = None
) -> tuple[list[Path], list[Problem]]:
    """A column of a table as sounds alone: names of files, taken from the table's own folder; and what was wrong."""
    table = read_table(path, [sound], kinds={sound: _file_beside(path)}, names=names, format=format)
    return table.column(sound), table.problems


def _file_beside(path: Path | str) -> Callable[[Any], Path]:
    folder = Path() if str(path) == STANDARD_INPUT else Path(path)
    folder = folder if folder.is_dir() else folder.parent

    def kind(value: Any) -> Path:
        file = folder / text(value)
        if not is_file(file):
            raise ValueError(f"names {str(value)[:80]!r}, and there is no such file beside the table")
        return file

    return kind


def read_waves(
    files: Iterable[Path | str], rate: int, features: WaveFeatures | None = None, *, most_seconds: float = 60.0
) -> Iterator[Tensor]:
    """The samples [t] of each file at this rate; with `features`, of mean 0 and variance 1 as the model reads them.

    A file longer than `most_seconds` is an error: what is learned from is read whole.
    """
    for file in files:
        samples = read_sound(file, rate, most_seconds=most_seconds).samples
        yield samples if features is None else features(samples[None]).values[0]
