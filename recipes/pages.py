"""What the results pages have in common: what is kept of a run, curves, recipe, command line."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.files import read_json, write_whole
from qkv.look.curves import Curve

RESULTS = Path(__file__).parents[1] / "docs" / "results"


@dataclass(frozen=True)
class Page:
    """A page of docs/results/, written from the `result.json` of a recipe and the histories of its runs."""

    text: Callable[[dict[str, Any]], str]  # of what result.json says
    runs: tuple[str, ...] = ("",)  # folders with a metrics.jsonl, beneath the recipe's own
    shown: str | None = None  # a folder of pictures that the page shows, beneath the recipe's own


def keep(name: str, page: Page, folder: Path) -> None:
    """Copy what a page states to docs/results/."""
    kept = RESULTS / name
    for run in page.runs:
        if (folder / run / "metrics.jsonl").exists():
            (kept / run).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / run / "metrics.jsonl", kept / run / "metrics.jsonl")
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(folder / "result.json", kept / "result.json")
    if page.shown is not None:
        shutil.copytree(folder / page.shown, kept / page.shown, dirs_exist_ok=True)


def evaluations(page: str, run: str) -> list[dict[str, Any]]:
    lines = (RESULTS / page / run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == "evaluation"]


def curve_by_minutes(page: str, run: str, figure: str, name: str) -> Curve:
    records = evaluations(page, run)
    return Curve(name, [each["seconds"] / 60 for each in records], [each["figures"][figure] for each in records])


def curve_by_steps(page: str, run: str, figure: str, name: str) -> Curve:
    records = evaluations(page, run)
    return Curve(name, [each["step"] for each in records], [each["figures"][figure] for each in records])


def recipe_of(result: dict[str, Any]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in result["recipe"].items())


def made_by(versions: dict[str, str], device: str) -> str:
    return f"One {device}; " + ", ".join(f"{name} {number}" for name, number in versions.items()) + "."


def write_pages(pages: Mapping[str, Page]) -> None:
    """The command line of a report: the name of a page and, where it is to be read anew, the folder of its run."""
    script, asked = Path(sys.argv[0]).name, sys.argv[1:]
    if not 1 <= len(asked) <= 2 or asked[0] not in pages:
        names = ", ".join(pages)
        sys.exit(
            f"qkv: Name a page ({names}) and the folder of its run: python recipes/{script} {next(iter(pages))} RUN"
        )
    name = asked[0]
    try:
        if len(asked) > 1:
            keep(name, pages[name], Path(asked[1]))
        text = pages[name].text(read_json(RESULTS / name / "result.json"))
        print(f"Written: {write_whole(RESULTS / f'{name}.md', text.encode())}")
    except QkvError as error:
        sys.exit(f"qkv: {error}")
