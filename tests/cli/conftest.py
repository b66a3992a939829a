"""One tiny model, trained once for all tests of the command that only read it."""

from pathlib import Path

import pytest

from tests.cli.command import train, write_words


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words(tmp_path_factory.mktemp("data") / "words.tsv")


@pytest.fixture(scope="session")
def model(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "model"
    outcome = train(words, folder)
    assert outcome.code == 0, outcome.err
    return folder
