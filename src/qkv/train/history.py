"""A run read back from its folder, also while it runs: what made it, what it recorded, what became of it."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from qkv.data.columns import is_number
from qkv.errors import QkvError
from qkv.files import opened_tensors, read_bytes, read_json
from qkv.train.origin import CONFIGURATION, for_shell
from qkv.train.run_folder import FORMAT
from qkv.train.run_state import FILE as STATE
from qkv.train.run_state import state_of
from qkv.train.watchers import figures_of

# What a record holds besides, each a number or nothing.
NUMBERS = (
    "tokens", "flops", "seconds", "wall_seconds", "loss", "learning_rate", "gradient_norm", "tokens_per_second",
    "flops_utilisation", "data_wait", "data_wait_share", "peak_memory",
)  # fmt: skip
STATES = ("running", "finished", "stopped", "failed")
NOT_RUNS = ("checkpoints", "tensorboard")  # folders that a run makes inside its own


@dataclass(frozen=True)
class RunHistory:
    """What a run folder says. Folders of earlier versions say less: what is not told is None."""

    folder: Path
    described: Mapping[str, Any]  # run.json
    records: Sequence[Mapping[str, Any]]  # metrics.jsonl
    noted: Mapping[str, Any] | None  # state.json
    options: Mapping[str, Any]  # train.toml, by the names of the options alone

    @property
    def settings(self) -> Mapping[str, Any]:
        settings: Mapping[str, Any] = self.described["settings"]
        return settings

    @property
    def session(self) -> Mapping[str, Any]:
        """The first one, which made the run."""
        first: Mapping[str, Any] = next(iter(self.described["sessions"]), {})
        return {name: value for name, value in first.items() if value is not None}

    def of_kind(self, kind: str) -> list[Mapping[str, Any]]:
        return [record for record in self.records if record["kind"] == kind]

    @cached_property
    def state(self) -> tuple[str, str]:
        """(running, finished, stopped or failed; why)"""
        finished = bool(self.records) and self.records[-1]["kind"] == "final"  # one that went on is not
        return state_of(self.noted, finished)

    @property
    def watched(self) -> tuple[str, bool]:
        """The validation figure that decides, and whether more of it is better."""
        train = self.settings.get("train") or {}
        return train.get("watch") or "loss", train.get("better") == "higher"

    def figure(self, which: str) -> float | None:
        """The `best` or `last` validation figure; of a finished run without evaluations none."""
        name, higher = self.watched
        found = [record["figures"].get(name) for record in self.of_kind("evaluation")]
        found = [value for value in found if value is not None]
        if not found:
            return None
        return found[-1] if which == "last" else max(found) if higher else min(found)

    def middle(self, name: str) -> float | None:
        """Of the windows of training, but for the first, in which all is new to the device."""
        found = [record[name] for record in self.of_kind("train") if record.get(name) is not None]
        return median(found[1:] or found) if found else None

    def latest(self, name: str) -> Any:
        found = [record[name] for record in self.records if record.get(name) is not None]
        return found[-1] if found else None

    def curve(self, figure: str, against: str) -> tuple[list[float], list[float]]:
        """(where, what) of a figure such as `train/loss` or `validation/perplexity`, against steps, seconds, …"""
        points = [
            (record[against], value)
            for record in self.records
            if record["kind"] != "final" and record.get(against) is not None
            for value in [figures_of(record).get(figure)]
            if value is not None
        ]
        return [float(x) for x, _ in points], [float(y) for _, y in points]

    @cached_property
    def parameters(self) -> int | None:
        """Of the model that was saved; None where there is none yet."""
        try:
            with opened_tensors(self.folder / "model.safetensors") as opened:
                shapes = [opened.get_slice(name).get_shape() for name in opened.keys()]  # noqa: SIM118 (no mapping)
        except QkvError:
            return None
        total = 0
        for shape in shapes:
            size = 1
            for side in shape:
                size *= side
            total += size
        return total

    @property
    def command(self) -> str:
        """As it was typed."""
        return for_shell(*self.session.get("command", []))

    @property
    def repeat(self) -> str:
        """What repeats the run, from where the folder stands now; for runs of Python, what to run again."""
        if (self.folder / CONFIGURATION).exists() and self.options.get("data") not in ("-", ["-"]):
            verb, folder = str(self.options["command"]).split(), os.path.normpath(self.folder)
            file = os.path.join(folder, CONFIGURATION)
            return for_shell("qkv", *verb, "--config", file, "--out", f"{folder}-again")
        if self.session.get("by") == "python":
            return f"Started from Python: run it again as {self.command}, with another folder."
        return self.command


def read_history(folder: Path) -> RunHistory:
    """One run; what is broken is told in a sentence."""
    described = read_json(folder / "run.json")
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise QkvError(f"The file {folder / 'run.json'} is not the description of a {FORMAT} run.")
    if not _is_whole(described):
        raise QkvError(
            f"The file {folder / 'run.json'} lacks the settings or the sessions of its run, or parts of them."
        )
    noted = read_json(folder / STATE) if (folder / STATE).exists() else None
    if noted is not None and not (isinstance(noted, dict) and noted.get("state") in STATES):
        raise QkvError(f"The file {folder / STATE} does not hold the state of a run.")
    return RunHistory(folder, described, _records(folder / "metrics.jsonl"), noted, _options(folder / CONFIGURATION))


def _records(file: Path) -> list[dict[str, Any]]:
    """All whole lines; the last one may be on its way."""
    try:
        lines = read_bytes(file).decode("utf-8").split("\n")[:-1] if file.exists() else []
        found = [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        raise QkvError(f"The file {file} holds a line that is not JSON ({error}).") from error
    if not all(map(_is_record, found)):
        raise QkvError(f"The file {file} holds a line that is no record of a run.")
    return found


def _is_whole(described: Mapping[str, Any]) -> bool:
    """Whether all that is looked for in `run.json` is of its kind, or not there at all."""
    settings, sessions = described.get("settings"), described.get("sessions")
    if not isinstance(settings, dict) or not isinstance(sessions, list):
        return False
    train = settings.get("train", {})
    kinds: list[tuple[Any, type]] = [(described.get("data"), str), (settings.get("family"), str), (train, dict)]
    kinds += [(train.get(name), str) for name in ("watch", "better") if isinstance(train, dict)]
    for session in sessions:
        if not isinstance(session, dict):
            return False
        kinds += [(session.get(name), str) for name in ("started", "directory", "git_commit", "source", "by")]
        kinds += [(session.get("command"), list), (session.get("versions"), dict), (session.get("hardware"), dict)]
    return all(value is None or isinstance(value, kind) for value, kind in kinds)


def _is_record(record: Any) -> bool:
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str) or not _is_number(record.get("step")):
        return False
    figures = record.get("figures", None if record["kind"] in ("evaluation", "final") else {})
    numbers = [record.get(name) for name in NUMBERS]
    return isinstance(figures, dict) and all(
        value is None or _is_number(value) for value in [*numbers, *figures.values()]
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, bool) or is_number(value)


def _options(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        found = tomllib.loads(read_bytes(file).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise QkvError(f"The file {file} is not whole TOML ({error}).") from error
    flat = {name: value for name, value in found.items() if not isinstance(value, dict)}
    for value in found.values():
        flat |= value if isinstance(value, dict) else {}
    return {"command": "", **flat}


def is_run(folder: Path) -> bool:
    return (folder / "run.json").is_file()


def run_folders(folder: Path) -> Iterator[Path]:
    """All run folders in and beneath a folder, by name; hidden ones are passed over."""
    if not folder.is_dir():
        raise QkvError(f"There is no folder {folder} with runs in it.")
    for place, inner, files in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith(".") and name not in NOT_RUNS)
        if "run.json" in files:
            yield Path(place)


def read_histories(folders: Sequence[Path]) -> tuple[list[RunHistory], list[str]]:
    """(runs, a sentence for each that is broken); a folder that is no run stands for all beneath it."""
    found: list[RunHistory] = []
    broken: list[str] = []
    for folder in folders:
        for each in [folder] if is_run(folder) else run_folders(folder):
            try:
                found.append(read_history(each))
            except QkvError as error:
                broken.append(str(error))
    return found, broken
