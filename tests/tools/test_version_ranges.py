"""Which versions are the oldest is read from pyproject.toml, and tests of them are asked for when it says others."""

import tomllib
from typing import Any

import pytest

from tools.version_ranges import EXTRAS, ROOT, bounds, fingerprint, requirements_for, stale

PINS = "# runs\nalpha==3.1\n\n# tests\npytest==9.2.0\npytest-xdist==3.8.0\n"


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
    assert oldest[1:] == ["pytest==9.2.0", "pytest-xdist==3.8.0", "alpha==2.11", "delta-e==1", "beta==0.4.1"]
    assert requirements_for("newest", pyproject, PINS).splitlines() == oldest[:3]


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
