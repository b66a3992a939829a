"""Every family, every command and every reader has its lesson, and lessons are what would be typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from qkv.cli.run import KINDS
from qkv.cli.train import train
from qkv.models.catalogue import FAMILIES
from qkv.models.family import Family
from tools.gpu_verify.lessons import TIMES, WITHOUT_COMMAND, Lesson, lesson_called, lessons, of_family
from tools.gpu_verify.materials import write_materials

LESSONS = lessons()
COMMANDS = {each.name for each in train.registered_commands}
WORK = Path("work")


def test_every_family_is_trained_or_cannot_be() -> None:
    trained = {lesson.family for lesson in LESSONS if lesson.train}
    assert trained | WITHOUT_COMMAND.keys() == set(FAMILIES)
    assert not trained & WITHOUT_COMMAND.keys()


def test_a_family_that_nobody_knows_how_to_train_is_an_error() -> None:
    strange = Family("strange", "", object, object, {}, ("states",), "sound")
    with pytest.raises(LookupError, match="the family strange"):
        of_family("strange", strange)
    new = Family("bert", "", object, object, {}, ("language", "states"))  # whatever it is called: by its heads
    assert of_family("bert", new).train[0] == "lm"


def test_every_command_trains_something() -> None:
    assert {lesson.train[0] for lesson in LESSONS if lesson.train} == COMMANDS


def test_every_reader_is_asked() -> None:
    assert {lesson.reader for lesson in LESSONS if lesson.ask} == KINDS.keys()
    assert {lesson.name for lesson in LESSONS if lesson.reader and not lesson.ask} == set()


def test_names_are_its_own_and_what_comes_after_is_there() -> None:
    names = [lesson.name for lesson in LESSONS]
    assert len(names) == len(set(names))
    assert {lesson.after for lesson in LESSONS if lesson.after} <= set(names)
    assert sum(lesson.group == "endings" for lesson in LESSONS) == TIMES == 20


def test_commands_are_those_of_a_person_with_a_gpu() -> None:
    """ViT-B from files at 256 rows is what once ended with an illegal memory access."""
    training, there, here = lesson_called("vit-base").commands(["python3"], WORK, "cuda")
    assert " ".join(training) == (
        f"python3 -m qkv train images --family vit --data {WORK / 'data'}/pictures --size base-16 --side 224 "
        f"--batch-rows 256 --device cuda --precision bfloat16 --steps 30 --out {WORK / 'vit-base'} --overwrite"
    )
    assert there[-4:] == ["--device", "cuda", "--precision", "bfloat16"]
    assert here[-4:] == ["--device", "cpu", "--precision", "float32"]
    assert there[:-4] == here[:-4]
    for lesson in LESSONS:
        training, *_ = lesson.commands(["python3"], WORK, "cuda")
        assert "dropout" not in " ".join(training)  # the family's own
        if lesson.train:
            assert "--precision bfloat16 --steps 30" in " ".join(training)


def test_materials_are_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_materials(tmp_path / name, pictures=6, side=16)
    files = [file.relative_to(tmp_path / "one") for file in (tmp_path / "one").rglob("*") if file.is_file()]
    assert len(files) > 60
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file
    named = [each.format(data=tmp_path / "one") for lesson in LESSONS for each in (*lesson.train, *lesson.ask)
             if each.startswith("{data}")]  # fmt: skip
    assert [each for each in named if not Path(each).exists()] == []


def test_a_lesson_says_what_it_asks() -> None:
    lesson = Lesson("name", "group", "gpt2", "TextWriter", ("lm",), ("a text",), ("--large",), ("--small",))
    assert "--large" in lesson.commands([], WORK, "cuda")[0]
    small = lesson.commands([], WORK, "cpu")[0]
    assert "--small" in small
    assert small[small.index("--steps") + 1] == "2"
