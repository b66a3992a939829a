"""Which versions are the oldest is read from pyproject.toml, and tests of them are asked for when it says others."""

import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tools import version_ranges
from tools.version_ranges import EXTRAS, ROOT, bounds, fingerprint, main, requirements_for, stale

PINS = "# runs\nalpha==3.1\n\n# tests\npytest==9.2.0\npytest-xdist==3.8.0\nhypothesis==6.170\n"


def project(*requirements: str, **more: Any) -> dict[str, Any]:
    extras = {**{name: [] for name in EXTRAS}, "bleu": ["beta[data]>=0.4.1"], "test": ["gamma>=7"]}
    return {
        "project": {"requires-python": ">=3.11", "dependencies": list(requirements), "optional-dependencies": extras}
    } | more


def test_the_oldest_are_the_lower_bounds_and_the_newest_are_free() -> None:
    pyproject = project("alpha>=2.11", "delta-e>=1")
    assert bounds(pyproject) == {"alpha": "2.11", "delta-e": "1", "beta": "0.4.1"}
    oldest = requirements_for("oldest", pyproject, PINS).splitlines()
    assert oldest[0] == "--editable .[bleu,parquet,datasets,constrained,sound,tensorboard]"
    assert oldest[1:4] == ["pytest==9.2.0", "pytest-xdist==3.8.0", "hypothesis==6.170"]
    assert oldest[4:] == ["alpha==2.11", "delta-e==1", "beta==0.4.1"]
    assert requirements_for("newest", pyproject, PINS).splitlines() == oldest[:4]


@pytest.mark.parametrize("spelled", ["alpha", "alpha~=2.0", "alpha>=2,<3", "alpha>=2; sys_platform == 'win32'"])
def test_a_requirement_whose_oldest_version_is_not_plain_is_refused(spelled: str) -> None:
    with pytest.raises(ValueError, match="alpha"):
        bounds(project(spelled))


def test_tests_are_asked_for_when_a_requirement_or_a_pin_is_another() -> None:
    before = fingerprint(project("alpha>=2.11"), PINS)
    assert fingerprint(project("alpha>=2.11", tool={"mypy": {}}), "# other words\n" + PINS) == before
    assert fingerprint(project("alpha>=2.12"), PINS) != before
    assert fingerprint(project("alpha>=2.11"), PINS.replace("3.1", "3.2")) != before
    assert stale({}, before) == ["oldest", "newest"]
    assert stale({"oldest": {"of": before}, "newest": {"of": "an earlier one"}}, before) == ["newest"]


def test_the_bounds_of_this_project_are_plain() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert "torch==" in requirements_for("oldest", pyproject, constraints)


def test_what_is_recorded_is_no_longer_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(version_ranges, "RECORD", tmp_path / "tested.json")
    monkeypatch.setattr(version_ranges, "version", lambda name: f"1.0 of {name}")
    left = []
    for target in ("oldest", "newest"):
        assert main(["record", target]) == 0
        assert main(["stale"]) == 0
        left.append(capsys.readouterr().out.split())
    assert left == [["test-newest"], []]
    assert json.loads((tmp_path / "tested.json").read_text(encoding="utf-8"))["oldest"]["versions"]["torch"]


@pytest.mark.skipif(os.name != "posix", reason="continuous integration runs a script of the shell")
@pytest.mark.parametrize(
    ("asked", "ran", "ended"),
    [
        ("echo", ["test"], 0),
        ("echo test-oldest test-newest", ["test", "test-oldest", "test-newest"], 0),
        ("echo test-broken test-newest", ["test", "test-broken"], 2),
        ("exit 3", ["test"], 3),
    ],
)
def test_continuous_integration_runs_the_targets_that_are_asked_for(
    asked: str, ran: list[str], ended: int, tmp_path: Path
) -> None:
    programs = {
        "bin/make": 'echo "$1" >> ran\ntest "$1" != test-broken || exit 2',
        ".venv/bin/python": f'test "$*" = "-m tools.version_ranges stale" || exit 9\n{asked}',
    }
    for name, body in programs.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8", newline="\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    ended_with = subprocess.run(["bash", ".ci/run"], cwd=tmp_path, env={"PATH": path}, capture_output=True, check=False)
    assert (tmp_path / "ran").read_text(encoding="utf-8").split() == ran
    assert ended_with.returncode == ended
