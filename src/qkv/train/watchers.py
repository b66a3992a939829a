"""Who else is told every record of a run: TensorBoard, Weights & Biases, trackio, or anything with three methods."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from qkv.errors import QkvError, QkvWarning, nearest_or_all

# What goes wrong with those who listen: a full disk, no network, a value they do not take.
_FAILURES = (
    QkvError, RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError, ImportError, OSError,
)  # fmt: skip
_GROUPS = {"train": "train", "evaluation": "validation", "final": "final"}  # kinds of records that hold figures
_PLACES = ("step", "tokens", "flops", "seconds", "wall_seconds")  # where in a run a record stands


class Watcher(Protocol):
    """Gets what `run.json` says at the beginning, then every record as `metrics.jsonl` has it."""

    def begin(self, folder: Path, about: Mapping[str, Any]) -> None: ...

    def record(self, record: Mapping[str, Any]) -> None: ...

    def end(self) -> None: ...


class Watchers:
    """All who watch a run. One that fails is told of and left out: training is none the worse for it."""

    def __init__(self, watchers: Sequence[Watcher] = ()) -> None:
        self._watching = list(watchers)

    def begin(self, folder: Path, about: Mapping[str, Any]) -> None:
        """An error here is the caller's: what cannot begin was asked for in vain."""
        for watcher in self._watching:
            watcher.begin(folder, about)

    def record(self, record: Mapping[str, Any]) -> None:
        self._tell("record", record)

    def end(self) -> None:
        self._tell("end")
        self._watching = []

    def _tell(self, what: str, *news: Any) -> None:
        for watcher in list(self._watching):
            try:
                getattr(watcher, what)(*news)
            except _FAILURES as error:
                self._watching.remove(watcher)
                kind = type(watcher).__name__
                warnings.warn(f"{kind} failed and is told no more ({error}); the run goes on.", QkvWarning, 2)


def figures_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record by name, such as `train/loss` and `validation/perplexity`; none of other records."""
    group = _GROUPS.get(record["kind"])
    if group is None:
        return {}
    found: dict[str, float] = {}
    for name, value in record.items():
        if name in _PLACES and group != "train":
            continue
        inner = value if isinstance(value, Mapping) else {name: value}
        for each, number in inner.items():
            if isinstance(number, int | float) and not isinstance(number, bool):
                found[f"{group}/{each}"] = number
    found.pop(f"{group}/step", None)
    return found


class TensorBoard:
    """Event files in the folder `tensorboard` of the run, for `tensorboard --logdir runs`."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise QkvError('TensorBoard is not installed: pip install "qkv[tensorboard]".') from error
        self._make = SummaryWriter
        self._writer: Any = None

    def begin(self, folder: Path, about: Mapping[str, Any]) -> None:
        self._writer = self._make(log_dir=str(folder / "tensorboard"))

    def record(self, record: Mapping[str, Any]) -> None:
        for name, value in figures_of(record).items():
            self._writer.add_scalar(name, value, record["step"])
        self._writer.flush()

    def end(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Tracker:
    """A library that is told by `init`, `log` and `finish`, as wandb and trackio are. Each session is a run there."""

    def __init__(self, library: str, project: str = "qkv") -> None:
        try:
            self._library = importlib.import_module(library)
        except ImportError as error:
            raise QkvError(f"{library} is not installed: pip install {library}.") from error
        self.project = project
        self._error: type[Exception] = getattr(self._library, "Error", QkvError)  # its own, such as wandb.Error
        self._begun = False

    def begin(self, folder: Path, about: Mapping[str, Any]) -> None:
        self._call("init", project=self.project, name=folder.name, config=dict(about))
        self._begun = True

    def record(self, record: Mapping[str, Any]) -> None:
        if figures := figures_of(record):
            self._call("log", figures, step=record["step"])

    def end(self) -> None:
        if self._begun:
            self._call("finish")

    def _call(self, what: str, /, *given: Any, **named: Any) -> None:
        try:
            getattr(self._library, what)(*given, **named)
        except self._error as error:
            raise QkvError(f"{self._library.__name__} could not be told of the run: {error}") from error


KNOWN = ("tensorboard", "wandb", "trackio")


def watcher_of(spelled: str) -> Watcher:
    """`tensorboard`, `wandb`, `trackio`, or one of the latter two with a project: `wandb:translation`."""
    name, colon, project = spelled.partition(":")
    if name not in KNOWN:
        raise QkvError(f"Nobody called {name!r} can be told of a run: {nearest_or_all(name, KNOWN)}")
    if name == "tensorboard":
        if colon:
            raise QkvError("TensorBoard knows no projects: write tensorboard alone.")
        return TensorBoard()
    if colon and not project:
        raise QkvError(f"The project is missing behind {spelled!r}: write {name} or {name}:project.")
    return Tracker(name, project) if colon else Tracker(name)
