"""What the guide to many GPUs shows works, and its table is what `qkv cost` foretells today."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qkv.api.cost_ranks import Plans
from qkv.train.parallel.layout import Layout
from tests.api.corpus import DOCUMENTS
from tests.cli.shell import commands, paste
from tests.guides import DOCS, blocks

SCRIPT = DOCS.parent / "bench" / "scale_plans.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def stored() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((SCRIPT.parent / "results" / "scale_plans.json").read_text())["rows"]
    return rows


def test_its_plans_can_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for block in blocks("scale.md", "sh") for line in commands(block) if line.startswith("qkv ")]
    assert len(lines) == 3
    for line in lines:
        # Twelve layers take seconds, and say no more than one.
        outcome = paste(line.replace("--size base", "--size base,layers=1"), tmp_path)
        assert outcome.code == 0, (line, outcome)
    for block in blocks("scale.md", "python"):
        exec(compile(block, "scale.md", "exec"), {})


@pytest.mark.slow
def test_its_training_on_two_ranks_works(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("\n\n".join(DOCUMENTS), encoding="utf-8")
    (line,) = [
        line for block in blocks("scale.md", "sh") for line in commands(block) if line.startswith("torchrun ")
    ]  # fmt: skip
    started = line.replace("torchrun", f"{sys.executable} -m torch.distributed.run", 1) + " --hold-out 0.3"
    done = subprocess.run(["bash", "-c", started], cwd=tmp_path, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert (tmp_path / "runs" / "two" / "metrics.jsonl").exists()


def test_its_table_is_that_of_the_plans(script: dict[str, Any]) -> None:
    page = (DOCS / "scale.md").read_text(encoding="utf-8")
    assert script["written"](page, stored()) == page
    assert {(each["size"], each["gpus"]) for each in stored()} == {
        (size, gpus) for size in script["MODELS"] for gpus in script["GPUS"]
    }


@pytest.mark.slow
def test_a_plan_of_the_smallest_is_that_of_today(script: dict[str, Any]) -> None:
    (old,) = [each for each in stored() if (each["size"], each["gpus"]) == ("124M", 8)]
    sizes, rows = script["MODELS"]["124M"]
    plans = Plans("llama", sizes, ranks=8, rows=8 * rows, **script["COMMON"])
    found = plans.cost(Layout.parse(old["layout"]), old["recompute"])
    check_same(old, script["row"]("124M", 8, found.layout, found, old["recompute"], found.fraction_of_peak))


@pytest.mark.slow
@pytest.mark.parametrize("size", ["124M", "1.5B", "7B", "70B"])
def test_all_plans_are_those_of_today(script: dict[str, Any], size: str) -> None:
    was = [each for each in stored() if each["size"] == size]
    for old, new in zip(was, script["planned"](size), strict=True):
        check_same(old, new)


def check_same(old: dict[str, Any], new: dict[str, Any]) -> None:
    for name in ("size", "gpus", "layout", "recompute", "fits"):
        assert old[name] == new[name], (name, old, new)
    for name in ("memory", "within", "between", "seconds", "share"):
        assert new[name] == pytest.approx(old[name], rel=0.01), (name, old, new)
