"""What is verified on a GPU: parts of a few minutes each, and the steps they are made of.

A step is what is done, or done again, as a whole: a file of tests, a lesson, a piece of work of a benchmark. It is
asked for again when the hash over what it depends on is another.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from qkv.cli.main import main
from qkv.cli.run import run
from qkv.cli.train import train
from qkv.models.catalogue import FAMILIES
from tools.gpu_verify.compare import likeness
from tools.gpu_verify.depends import ROOT, hash_of
from tools.gpu_verify.lessons import Lesson, lessons
from tools.gpu_verify.made import MAKERS, make
from tools.gpu_verify.materials import write_materials

TESTS, TRAININGS, BENCHMARKS = "tests", "trainings", "benchmarks"
CONFTEST = ROOT / "tests" / "conftest.py"
DEPTH = 2  # folders of a room of tests that are told apart
NO_ROWS = {"measure_device_gpu"}  # benchmarks without rows: what they measure is the machine


@dataclass(frozen=True)
class Step:
    name: str
    roots: tuple[Path, ...]
    beside: str = ""  # what else decides what is done

    @cached_property
    def hash(self) -> str:
        return hash_of(self.roots, self.beside)


@dataclass(frozen=True)
class Part:
    name: str
    group: str
    says: str
    steps: tuple[Step, ...]

    def key(self, step: Step) -> str:
        return f"{self.name}: {step.name}"


@cache
def parts() -> tuple[Part, ...]:
    return (*of_tests(), *of_trainings(), *of_benchmarks())


def of_tests() -> Iterator[Part]:
    """Every file with a test marked gpu, by its room."""
    rooms: dict[tuple[str, ...], list[Path]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if "mark.gpu" in file.read_text(encoding="utf-8") and "gpu_verify" not in file.parts:
            rooms.setdefault(file.relative_to(ROOT / "tests").parts[:-1][:DEPTH], []).append(file)
    for room, files in rooms.items():
        steps = (Step(file.relative_to(ROOT).as_posix(), (*with_families(file), CONFTEST)) for file in files)
        yield Part("-".join(["tests", *room]), TESTS, f"tests of {'/'.join(room)} that need a GPU", tuple(steps))


def of_trainings() -> Iterator[Part]:
    groups: dict[str, list[Lesson]] = {}
    for lesson in lessons():
        groups.setdefault(lesson.group, []).append(lesson)
    for group, several in groups.items():
        steps = tuple(Step(lesson.name, tuple(roots_of(lesson)), repr(lesson)) for lesson in several)
        yield Part(f"train-{group.replace(' ', '-')}", TRAININGS, SAYS[group], steps)


SAYS = {
    "text to text": "families that turn one text into another: trained, and their outputs beside a CPU's",
    "language": "language models: trained, and how they go on beside a CPU's",
    "hidden words": "masked models: trained, and what they fill in beside a CPU's",
    "pictures": "families of pictures: trained from files, and their answers beside a CPU's",
    "sounds": "families of sound: trained from files, and their answers beside a CPU's",
    "fine-tuning": "every task that a model is fine-tuned for, and its answers beside a CPU's",
    "readers": "untrained models of what no command trains: their answers beside a CPU's",
    "vit base": "ViT-B/16 on 224 × 224 pictures from files, 256 a batch",
    "endings": "twenty trainings of GPT-2 124M, each of which must end with exit code 0",
}


def roots_of(lesson: Lesson) -> Iterator[Path]:
    """The files of its commands, and what these open by a name that nobody finds by walking imports."""
    functions: list[Any] = [run, main, write_materials, likeness, FAMILIES[lesson.family].build]
    functions += [command_called(lesson.train[0])] if lesson.train else [MAKERS[lesson.reader], make]
    functions += [file_of_reader(lesson.reader)] if lesson.reader else []
    for each in functions:
        yield each if isinstance(each, Path) else Path(str(sys.modules[each.__module__].__file__))


@cache
def file_of_reader(name: str) -> Path:
    folder = ROOT / "src" / "qkv" / "generate"
    return next(
        file
        for file in folder.glob("*.py")
        if f"class {name}(" in (text := file.read_text(encoding="utf-8")) or f"class {name}:" in text
    )


def with_families(file: Path) -> tuple[Path, ...]:
    """And all families, of what asks the catalogue for some of them."""
    if "qkv.models.catalogue" not in file.read_text(encoding="utf-8"):
        return (file,)
    return file, *sorted({Path(str(sys.modules[each.build.__module__].__file__)) for each in FAMILIES.values()})


def command_called(name: str) -> Callable[..., object]:
    """The function of `qkv train NAME`."""
    found = next(each.callback for each in train.registered_commands if each.name == name)
    assert found is not None
    return found


def of_benchmarks() -> Iterator[Part]:
    """Scripts that measure rows, and each piece of work of those that know several."""
    for file in sorted((ROOT / "bench").glob("*_gpu.py")):
        source = file.read_text(encoding="utf-8")
        if "\nif __name__" in source and file.stem not in NO_ROWS:
            steps = tuple(Step(work, with_families(file)) for work in works_in(source) or ["all"])
            says = (ast.get_docstring(ast.parse(source)) or "").splitlines()[0].rstrip(".")
            yield Part(f"bench-{file.stem.removesuffix('_gpu').replace('_', '-')}", BENCHMARKS, says, steps)


def works_in(source: str) -> list[str]:
    """The names that a script knows behind --only."""
    for node in ast.parse(source).body:
        named = isinstance(node, ast.Assign | ast.AnnAssign) and "WORKS" in ast.unparse(
            node.targets[0] if isinstance(node, ast.Assign) else node.target
        )
        if named and isinstance(node.value, ast.Dict) and "from peers import" in source:
            return [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
    return []


def script_of(part: Part) -> Path:
    return part.steps[0].roots[0]
