"""The oldest and the newest versions that pyproject.toml allows, for `make test-oldest` and `make test-newest`.

    python -m tools.version_ranges oldest          requirements for pip: the lower bound of each of our own
    python -m tools.version_ranges newest          the same without bounds: pip takes the newest there are
    python -m tools.version_ranges record oldest   note that these tests passed, with the versions that are installed
    python -m tools.version_ranges stale           the targets whose tests have to pass anew

`tools/tested_versions.json` holds what passed, and of which requirements; it is committed with them. Extras that bring
the reference library are left out: its own bounds are narrower than ours. So is `ray`: the bounds of all three
(ray, lm-eval, transformers) are untested.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tools" / "tested_versions.json"
TARGETS = ("oldest", "newest")
EXTRAS = ("bleu", "parquet", "datasets", "constrained", "sound", "tensorboard")
TESTS = ("pytest", "pytest-xdist", "hypothesis")  # what runs the tests is what runs them elsewhere
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[\w,.-]+\])?>=(?P<bound>\d+(\.\d+)*)")


def bounds(pyproject: dict[str, Any]) -> dict[str, str]:
    """The lower bound of every requirement of the library and of these extras, by its name."""
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    found = {}
    for requirement in [*project["dependencies"], *(each for extra in EXTRAS for each in extras[extra])]:
        match = REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise ValueError(f"{requirement} is not spelled name>=version, so its oldest version is not known.")
        found[match["name"]] = match["bound"]
    return found


def pins(constraints: str) -> dict[str, str]:
    """The versions of a constraint file by their names."""
    lines = [line.split("==") for line in constraints.splitlines() if "==" in line and not line.startswith("#")]
    return dict(lines)


def requirements_for(target: str, pyproject: dict[str, Any], constraints: str) -> str:
    """A requirements file: this library, its bounds where the oldest are wanted, and what runs its tests."""
    pinned = {name: pins(constraints)[name] for name in TESTS}
    if target == "oldest":
        pinned |= bounds(pyproject)
    return f"--editable .[{','.join(EXTRAS)}]\n" + "".join(f"{name}=={number}\n" for name, number in pinned.items())


def fingerprint(pyproject: dict[str, Any], constraints: str) -> str:
    """Of all that says which versions are allowed and which are taken, and of nothing else in these files."""
    project = pyproject["project"]
    told = [project["requires-python"], project["dependencies"], project["optional-dependencies"], pins(constraints)]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def stale(record: dict[str, Any], now: str) -> list[str]:
    return [target for target in TARGETS if record.get(target, {}).get("of") != now]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=[*TARGETS, "record", "stale"])
    parser.add_argument("target", nargs="?", choices=TARGETS)
    given = parser.parse_args(arguments)
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    now = fingerprint(pyproject, constraints)
    if given.what == "stale":
        print(*(f"test-{each}" for each in stale(record, now)))
    elif given.what == "record":
        versions = {name: version(name) for name in bounds(pyproject)}
        record[given.target] = {"of": now, "python": platform.python_version(), "versions": versions}
        RECORD.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8", newline="\n")
    else:
        print(requirements_for(given.what, pyproject, constraints), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
