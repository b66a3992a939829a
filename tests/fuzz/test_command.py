"""Damaged folders and files through the command itself: the answer, or exit code 2 and one line; never a traceback."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.cli.command import Outcome, qkv, train, write_words
from tests.cli.text_models import save_reader, save_writer
from tests.fuzz.folders import Place, Seed, changes_of, seed_of

Does = Callable[[Path], Outcome]


def told(outcome: Outcome) -> None:
    """Not more than a person can read, and nothing that steers a terminal."""
    assert outcome.code in (0, 2), outcome.err
    assert "Traceback" not in outcome.err
    if outcome.code == 2:
        assert outcome.complaint.startswith("qkv: ")
        assert len(outcome.complaint) < 2500
        assert outcome.complaint.isprintable()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Seed, Does]]:
    """What is damaged, and the command that reads it."""
    home = tmp_path_factory.mktemp("valid")
    words = write_words(home / "words.tsv")
    assert train(words, home / "run").code == 0
    (home / "table").mkdir()
    (home / "table" / "words.tsv").write_bytes(words.read_bytes())
    (home / "config").mkdir()
    (home / "config" / "train.toml").write_bytes((home / "run" / "train.toml").read_bytes())
    out = home / "out"

    def trains(folder: Path) -> Outcome:
        return train(folder / "words.tsv", out, "--overwrite")

    def from_file(folder: Path) -> Outcome:
        more = ("--data", words, "--out", out, "--overwrite", "--steps", "1", "--device", "cpu")
        return qkv("train", "text-to-text", "--config", folder / "train.toml", *more)

    def goes_on(folder: Path) -> Outcome:
        return train(words, folder, "--resume")

    return {
        "writer": (seed_of(save_writer(home / "writer"), "writer"), lambda folder: _run(folder, "--max-new", "2")),
        "reader": (seed_of(save_reader(home / "reader", "classifier"), "reader"), _run),
        "translator": (seed_of(home / "run", "run", lambda name: "checkpoints" not in name), _run),
        "runs": (seed_of(home / "run", "run"), lambda folder: qkv("runs", folder)),
        "table": (seed_of(home / "table", "table"), trains),
        "configuration": (seed_of(home / "config", "config"), from_file),
        "resumed": (seed_of(home / "run", "run"), goes_on),
    }


def _run(folder: Path, *more: str) -> Outcome:
    return qkv("run", folder, "cat", "--device", "cpu", *more)


KINDS = ("writer", "reader", "translator", "runs", "table", "configuration", "resumed")


def damaged(kind: str, numbers: range, folders: dict[str, tuple[Seed, Does]], root: Path) -> None:
    seed, does = folders[kind]
    for number in numbers:
        place = Place(root / str(number))
        folder = place.folder(kind, seed)
        changes = changes_of(seed, Random(number), endless=kind not in ("table", "configuration"))
        place.damage(folder, seed, changes)
        told(does(folder))


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_of_each(kind: str, folders: dict[str, tuple[Seed, Does]], tmp_path: Path) -> None:
    damaged(kind, range(3), folders, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_of_each(kind: str, folders: dict[str, tuple[Seed, Does]], tmp_path: Path) -> None:
    damaged(kind, range(3, 60), folders, tmp_path)
