"""Runs side by side: what differs in what made them, what came of them, and their curves, in words and as a page."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qkv.api.run_summaries import RunSummary, flat_settings, summary
from qkv.errors import QkvError, nearest_or_all
from qkv.look.axes import Axis
from qkv.look.curves import Curve
from qkv.look.plots_page import Plot, Table, write_plots_page
from qkv.train.history import RunHistory
from qkv.train.reporter import duration, figure, short
from qkv.train.watchers import figures_of

AGAINST = {"steps": "step", "seconds": "seconds", "tokens": "tokens", "flops": "flops"}
LABELS = {"steps": "updates", "seconds": "training time, seconds", "tokens": "tokens", "flops": "operations, FLOP"}
ON_THE_PAGE = (
    "train/loss", "train/learning_rate", "train/gradient_norm", "train/tokens_per_second", "train/flops_utilisation",
    "train/data_wait_share", "train/peak_memory", "train/balance", "train/busiest_expert",
)  # fmt: skip
UNKNOWN = "-"


def names(runs: Sequence[RunHistory]) -> list[str]:
    """As short as they differ: without the folder that all of them stand in."""
    folders = [os.path.abspath(run.folder) for run in runs]
    if len(set(folders)) == 1:
        return [run.folder.name or str(run.folder) for run in runs]
    above = os.path.commonpath(folders)
    return [run.folder.name if folder == above else os.path.relpath(folder, above)
            for run, folder in zip(runs, folders, strict=True)]  # fmt: skip


def differences(runs: Sequence[RunHistory]) -> dict[str, list[Any]]:
    """What is not the same for all runs, by name, with a value for each: settings, data, versions and hardware."""
    made = [_made(run) for run in runs]
    known = dict.fromkeys(name for each in made for name in each)
    values = {name: [each.get(name) for each in made] for name in known}
    return {name: each for name, each in values.items() if any(value != each[0] for value in each)}


def _made(run: RunHistory) -> dict[str, Any]:
    session = run.session
    versions = {f"version of {name}": value for name, value in session.get("versions", {}).items()}
    hardware = {name: session.get("hardware", {}).get(name) for name in ("device", "threads")}
    more = {"data": run.described.get("data"), "commit": session.get("git_commit"), **hardware, **versions}
    more["source of qkv"] = session.get("source")
    if "weights_at_start" in session:
        more["weights at start"] = session["weights_at_start"]
    return {**flat_settings(run), **more}


def results(run: RunSummary) -> dict[str, str]:
    """The figures of a run, as they are read."""
    return {
        "state": run.state,
        "family": run.family or UNKNOWN,
        "size": run.size or UNKNOWN,
        "parameters": UNKNOWN if run.parameters is None else short(run.parameters),
        "data": run.data or (run.data_fingerprint or UNKNOWN)[:8],
        "steps": f"{run.steps:,}",
        f"best {run.figure}": _figure(run.best),
        f"last {run.figure}": _figure(run.last),
        "train loss": _figure(run.loss),
        "speed": UNKNOWN if run.tokens_per_second is None else f"{short(run.tokens_per_second)} {run.counted}/s",
        "of device": _share(run.flops_utilisation),
        "data wait": _share(run.data_wait_share),
        "memory": UNKNOWN if run.peak_memory is None else f"{run.peak_memory / 2**30:.2f}G",
        "time": UNKNOWN if run.seconds is None else duration(run.seconds),
        "when": (run.when or UNKNOWN)[:16].replace("T", " "),
    }


def _figure(value: float | None) -> str:
    return UNKNOWN if value is None else figure(value)


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1%}"


def figure_names(runs: Sequence[RunHistory]) -> list[str]:
    """All figures that these runs recorded, such as `train/loss` and `validation/perplexity`."""
    found: dict[str, None] = {}
    for run in runs:
        for record in run.records:
            if record["kind"] != "final":
                found |= dict.fromkeys(figures_of(record))
    return list(found)


def find_figure(spelled: str, runs: Sequence[RunHistory]) -> str:
    """`loss` is `train/loss`, where nothing says that validation is meant."""
    known = figure_names(runs)
    for name in (spelled, f"train/{spelled}", f"validation/{spelled}"):
        if name in known:
            return name
    raise QkvError(f"These runs recorded no {spelled}: {nearest_or_all(spelled, known) if known else 'nothing yet.'}")


def plot(runs: Sequence[RunHistory], name: str, against: str = "steps") -> Plot:
    """The curves of one figure."""
    if against not in AGAINST:
        raise QkvError(f"Runs cannot be drawn against {against}: {nearest_or_all(against, AGAINST)}")
    curves = [Curve(shown, *run.curve(name, AGAINST[against])) for shown, run in zip(names(runs), runs, strict=True)]
    file = f"{name.replace('/', '-')}-by-{against}.png"
    return Plot(file, name, [curve for curve in curves if curve.x], Axis(LABELS[against]), Axis(name))


def default_figures(runs: Sequence[RunHistory]) -> list[str]:
    """The loss of training, and what decides in validation."""
    wanted = ["train/loss", *dict.fromkeys(f"validation/{run.watched[0]}" for run in runs)]
    return [name for name in wanted if name in figure_names(runs)]


def write_page(runs: Sequence[RunHistory], folder: Path, against: str = "steps") -> list[Path]:
    """`page.html` and a picture of every plot."""
    shown, cells = names(runs), [results(summary(run)) for run in runs]
    head = list(dict.fromkeys(name for each in cells for name in each))
    unlike = differences(runs) if len(runs) > 1 else {}
    rows = [
        [name, *(each.get(column, UNKNOWN) for column in head), *(told(values[number]) for values in unlike.values())]
        for number, (name, each) in enumerate(zip(shown, cells, strict=True))
    ]
    known = figure_names(runs)
    decided = [name for name in known if name.startswith("validation/")]
    plots = [plot(runs, name, against) for name in [*decided, *ON_THE_PAGE] if name in known]
    about = [f"Repeat {name}: {run.repeat}" for name, run in zip(shown, runs, strict=True)]
    if unlike:
        about.insert(0, "The last columns are the settings in which the runs differ.")
    return write_plots_page(folder, "Runs", about, Table(["run", *head, *unlike], rows), [], plots)


def told(value: Any) -> str:
    """A setting as short as it can be read."""
    return UNKNOWN if value is None else value if isinstance(value, str) else json.dumps(value)


def as_json(runs: Sequence[RunHistory]) -> list[Mapping[str, Any]]:
    """All that is known of each run but its records."""
    return [{**asdict(summary(run)), "settings": run.settings, "sessions": run.described["sessions"]} for run in runs]
