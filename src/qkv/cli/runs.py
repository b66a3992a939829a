"""`qkv runs`: what was trained, what differs, and how it went."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from qkv.train.history import RunHistory

WIDEST = 60  # letters of a setting beside others
NO_TERMINAL = 10_000  # letters of a line where nobody's window is too narrow
# What is left out first where a window is narrow.
LEAST = (
    "when", "memory", "data wait", "of device", "parameters", "time", "train loss", "data", "speed", "size", "last",
    "family",
)  # fmt: skip


def runs(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of runs, or folders with runs somewhere beneath them.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Only those with family=gpt2, state!=finished, 'best<2.5', train.seed=1; may be repeated."),
    ] = None,
    sort: Annotated[str, typer.Option(help="By a column or a setting: when, best, steps, run, …")] = "when",
    reverse: Annotated[bool, typer.Option("--reverse", help="From the last to the first.")] = False,
    plot: Annotated[
        list[str] | None,
        typer.Option(help="Draw a figure: loss, validation/perplexity, learning_rate, …; may be repeated."),
    ] = None,
    against: Annotated[str, typer.Option(help="Draw against steps, seconds, tokens or flops.")] = "steps",
    page: Annotated[Path | None, typer.Option(help="Folder for a page with all plots, and these as PNG.")] = None,
    json: Annotated[bool, typer.Option("--json", help="All that is known, for a program to read.")] = False,
) -> None:
    """List, compare and draw runs, also while they run.

    A folder with runs beneath it is listed (`runs` where none is named). One run is told of at length, with the
    command that repeats it; several runs are put side by side: what came of them, and in which settings they differ.
    A folder that is broken is told of and left out.

    \b
    Example (after the one that `qkv train lm --help` shows):
      qkv runs runs
      qkv runs runs/verses
      qkv runs runs/verses runs/near --plot validation/loss --page runs/page
    """
    from qkv.api.run_comparison import as_json, default_figures, differences, find_figure, write_page
    from qkv.api.run_summaries import order, select
    from qkv.errors import QkvError
    from qkv.train.history import is_run, read_histories

    asked = folders or [Path("runs")]
    found, broken = read_histories(asked)
    for sentence in broken:
        typer.echo(f"qkv: Left out: {sentence}", err=True)
    chosen = order(select(found, where or ()), sort, reverse) if found else []
    named = all(is_run(folder) for folder in asked)  # not a folder that holds some
    if named and sort == "when" and not reverse:
        kept = {id(run) for run in chosen}
        chosen = [run for run in found if id(run) in kept]  # as they were named
    if json:
        import json as writer

        unlike = differences(chosen) if len(chosen) > 1 and named else {}
        whole = {"runs": as_json(chosen), "differences": unlike, "broken": broken}
        typer.echo(writer.dumps(whole, indent=2))
        return
    if not chosen:
        of_them = f" among the {len(found)} there are" if found else ""
        raise QkvError(f"There are no such runs in {', '.join(map(str, asked))}{of_them}.")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else NO_TERMINAL
    if len(chosen) == 1 and named:
        typer.echo(one(chosen[0]), nl=False)
    elif named:
        typer.echo(side_by_side(chosen, width), nl=False)
    else:
        typer.echo(listed(chosen, width), nl=False)
    drawn = [find_figure(each, chosen) for each in plot or ()] or (default_figures(chosen) if named else [])
    for name in drawn:
        typer.echo("\n" + drawing(chosen, name, against, min(width, 100)), nl=False)
    if page is not None:
        for file in write_page(chosen, page, against):
            typer.echo(f"Written: {file}", err=True)


def listed(found: "Sequence[RunHistory]", width: int) -> str:
    """A line each; columns that nobody has or that do not fit are left out."""
    from qkv.api.run_comparison import UNKNOWN, names, results
    from qkv.api.run_summaries import summary

    cells = [results(summary(run)) for run in found]
    figures = {name for each in cells for name in each if name.startswith(("best ", "last "))}
    if len(figures) > 2:  # runs that are judged by several figures: a cell says which one is its own
        cells = [dict(_named(name, value) if name in figures else (name, value) for name, value in each.items())
                 for each in cells]  # fmt: skip
    head = list(dict.fromkeys(name for each in cells for name in each))
    head = [name for name in head if any(each.get(name, UNKNOWN) != UNKNOWN for each in cells)]
    for narrower in ((), *((LEAST[:count]) for count in range(1, len(LEAST) + 1))):
        kept = [name for name in head if name not in narrower and name.split()[0] not in narrower]
        rows = [[name, *(each.get(column, UNKNOWN) for column in kept)]
                for name, each in zip(names(found), cells, strict=True)]  # fmt: skip
        text = aligned([["run", *kept], *rows])
        if max(map(len, text.splitlines())) <= width:
            break
    return text


def _named(name: str, value: str) -> tuple[str, str]:
    """(`best accuracy`, `0.9`) as (`best`, `0.9 accuracy`)."""
    from qkv.api.run_comparison import UNKNOWN

    which, _, own = name.partition(" ")
    return which, value if value == UNKNOWN else f"{value} {own}"


def side_by_side(found: "Sequence[RunHistory]", width: int) -> str:
    """What came of each, and what differs in what made them: a column for each run."""
    from qkv.api.run_comparison import UNKNOWN, differences, names, results, told
    from qkv.api.run_summaries import summary

    cells = [results(summary(run)) for run in found]
    head = list(dict.fromkeys(name for each in cells for name in each))
    most = min(WIDEST, max(12, (width - 30) // len(found)))
    came = [[name, *(each.get(name, UNKNOWN) for each in cells)] for name in head]
    unlike = [[name, *(cut(told(value), most) for value in values)] for name, values in differences(found).items()]
    titles = ["", *(cut(name, most) for name in names(found))]
    text = aligned([titles, *came])
    if not unlike:
        return text + "\nAll were made alike: no setting, version or device differs.\n"
    return text + "\nWhat differs:\n" + aligned([titles, *unlike])


def one(run: "RunHistory") -> str:
    """All that a person asks of a run first."""
    from qkv.api.run_comparison import UNKNOWN, results
    from qkv.api.run_summaries import summary

    told, session = summary(run), run.session
    lines = {name: value for name, value in results(told).items() if value != UNKNOWN}
    if told.why:
        lines["state"] += f": {told.why}"
    lines |= {
        "data fingerprint": told.data_fingerprint or UNKNOWN,
        "device": told.device or UNKNOWN,
        "versions": ", ".join(f"{name} {version}" for name, version in session.get("versions", {}).items()) or UNKNOWN,
        "commit": session.get("git_commit") or UNKNOWN,
        "source of qkv": session.get("source") or UNKNOWN,
        "sessions": str(len(run.described["sessions"])),
        "command": told.command or UNKNOWN,
        "in": session.get("directory", UNKNOWN),
        "repeat": told.repeat or UNKNOWN,
    }
    wide = max(map(len, lines))
    return "".join(f"{name:{wide}}  {value}\n" for name, value in {"run": told.run, **lines}.items())


def drawing(found: "Sequence[RunHistory]", name: str, against: str, width: int) -> str:
    from qkv.api.run_comparison import plot
    from qkv.look.text_plot import text_plot

    shown = plot(found, name, against)
    return text_plot(shown.curves, shown.x, shown.y, width=width)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns under each other: the first to the left, numbers and all else to the right."""
    first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = [
        "  ".join([name.ljust(first), *(cell.rjust(wide) for cell, wide in zip(cells, widths, strict=True))])
        for name, *cells in rows
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
