"""A run folder is a model folder with its history: `run.json`, `metrics.jsonl` and `checkpoints/`."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import nn

from qkv.errors import QkvError
from qkv.files import WRITE_ERRORS, drop_leftovers, json_text, read_bytes, read_json, write_json, write_whole
from qkv.parts import agreement
from qkv.train.checkpoint import Checkpoints
from qkv.train.interrupts import Interrupted
from qkv.train.origin import CONFIGURATION, current_origin
from qkv.train.run_state import FILE as STATE
from qkv.train.run_state import State, write_state
from qkv.train.settings import CHANGEABLE_ON_RESUME
from qkv.train.watchers import Watcher, Watchers

FORMAT = "qkv-run-1"
# What a run owns in its folder, and what overwriting removes; other files are left alone.
OWNED = (
    "run.json", "metrics.jsonl", "checkpoints", "model.safetensors", "config.json", CONFIGURATION, STATE, "tensorboard",
    "not_finite",
)  # fmt: skip

# What a person calls some of the settings.
SPOKEN = {"optimizer.groups.initial_lr": "the learning rate", "optimizer.groups.weight_decay": "the weight decay"}

SaveModel = Callable[[nn.Module, Path], None]


class RunFolder:
    """Opened before training begins, so that a folder in the way is reported before anyone waits."""

    def __init__(
        self,
        folder: Path | str,
        *,
        save_model: SaveModel,
        settings: Mapping[str, Any] | None = None,
        data_fingerprint: str | None = None,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        """`save_model` writes the model folder (weights, config, tokenizers); `settings` are the caller's own, kept in
        `run.json` beside those of the loop and compared like them on resume."""
        self.folder = Path(folder)
        self.save_model = save_model
        self.settings = dict(settings or {})
        self.data_fingerprint = data_fingerprint
        self.resumes = resume
        self.checkpoints = Checkpoints(self.folder / "checkpoints")
        self._watchers = Watchers()
        self._begun = False
        self._make_way(resume, overwrite)

    def _make_way(self, resume: bool, overwrite: bool) -> None:
        if resume and overwrite:
            raise QkvError("A run is either resumed or overwritten; ask for one of the two.")
        if self.folder.exists() and not self.folder.is_dir():
            raise QkvError(f"{self.folder} is a file, but a run needs a folder.")
        present = [name for name in OWNED if (self.folder / name).exists()]
        if resume and "run.json" not in present:
            raise QkvError(f"There is no run to resume in {self.folder}: it has no run.json.")
        if overwrite:
            for name in present:
                path = self.folder / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif present and not resume:
            raise QkvError(
                f"{self.folder} already holds a run or a model ({present[0]}): resume it (--resume), begin anew "
                "(--overwrite) or name another folder (--out)."
            )

    def watched_by(self, watchers: Sequence[Watcher]) -> Self:
        """Who is told every record of what happens within a `with` block."""
        self._watchers = Watchers(watchers)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        """The folder says what became of the run."""
        if self._begun:
            self._note_refused()
            state: State = "stopped" if isinstance(value, Interrupted | KeyboardInterrupt) else "failed"
            reason = "" if value is None else str(value) or type(value).__name__
            write_state(self.folder, "finished" if value is None else state, reason)
        self._watchers.end()

    def _note_refused(self) -> None:
        """Faster ways that gave other answers than the parts, and were left: kept with the session."""
        file = self.folder / "run.json"
        if not agreement.refused or not file.exists():
            return
        described = read_json(file)
        if isinstance(described, dict) and described.get("sessions"):
            described["sessions"][-1]["refused"] = list(agreement.refused)
            write_json(file, described)

    def begin(self, settings: Mapping[str, Any], session: Mapping[str, Any]) -> None:
        """Write `run.json`; on resume check first that nothing changed that would change the result."""
        now = {"data": self.data_fingerprint, "settings": {**self.settings, **settings}}
        now = json.loads(json_text(now))  # as it is on disk, where tuples are lists
        file = self.folder / "run.json"
        sessions = []
        if self.resumes:
            before = read_json(file)
            if not isinstance(before, dict) or before.get("format") != FORMAT:
                raise QkvError(f"The file {file} is not the description of a {FORMAT} run.")
            found = dict(reversed(list(_differences(before["settings"], now["settings"]))))  # the first by each name
            differences = [f"{name} ({change})" for name, change in reversed(found.items())]
            if before["data"] != now["data"]:
                differences.append(f"data (it was {before['data']}, now {now['data']})")
            if differences:
                raise QkvError(
                    f"The run in {self.folder} cannot be resumed with other settings: {'; '.join(differences)}. "
                    "Only the budget, patience and which checkpoints are kept may change."
                )
            sessions = before["sessions"]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            drop_leftovers(self.folder)
            described = {"format": FORMAT, **now, "sessions": [*sessions, dict(session)]}
            write_json(file, described)
            if (configuration := current_origin().configuration) is not None:
                write_whole(self.folder / CONFIGURATION, configuration.encode())
        except OSError as error:
            raise QkvError(f"The run folder {self.folder} cannot be written ({error.strerror or error}).") from error
        self._begun = True
        write_state(self.folder, "running")
        self._watchers.begin(self.folder, described)

    def record(self, record: Mapping[str, Any]) -> None:
        """One line of `metrics.jsonl`, there for others to read at once."""
        line = json.dumps(record, allow_nan=False)
        try:
            with (self.folder / "metrics.jsonl").open("a", encoding="utf-8", newline="\n") as stream:
                stream.write(line + "\n")
        except OSError as error:
            raise QkvError(
                f"{self.folder / 'metrics.jsonl'} cannot be written ({error.strerror or error}); "
                "make room there and resume the run."
            ) from error
        self._watchers.record(record)

    def records(self) -> list[dict[str, Any]]:
        """What `metrics.jsonl` holds; a last line that a crash cut short is left out."""
        file = self.folder / "metrics.jsonl"
        if not file.exists():
            return []
        try:
            return [json.loads(line) for line in read_bytes(file).decode("utf-8").split("\n")[:-1]]
        except (ValueError, RecursionError) as error:
            raise QkvError(f"The file {file} holds a line that is not JSON ({error}).") from error

    def records_end(self) -> int:
        """The length of `metrics.jsonl` in bytes, all of which is on the disk: a checkpoint says where it stood."""
        file = self.folder / "metrics.jsonl"
        if not file.exists():
            return 0
        with file.open("rb+") as stream:
            os.fsync(stream.fileno())
            return os.fstat(stream.fileno()).st_size

    def forget_after(self, end: int) -> None:
        """Drop the records behind this place, and a line cut short: a resumed run writes them again."""
        file = self.folder / "metrics.jsonl"
        if not file.exists():
            return
        with file.open("rb+") as stream:
            content = stream.read(end)
            stream.truncate(content.rfind(b"\n") + 1)

    def write_model(self, model: nn.Module) -> None:
        try:
            self.save_model(model, self.folder)
        except WRITE_ERRORS as error:
            raise QkvError(
                f"The model could not be written to {self.folder} ({error}); its checkpoints are intact. "
                "Make room there and resume the run."
            ) from error


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """What is another than before, by name: (its name, what it was and is)."""
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if old == new or (prefix == "train." and key in CHANGEABLE_ON_RESUME):
            continue
        for one, other in _beside(old, new):
            if isinstance(one, dict) and isinstance(other, dict):
                yield from _differences(one, other, f"{prefix}{key}.")
            else:
                name = prefix + key
                yield SPOKEN.get(name, name), f"it was {json.dumps(one)}, now {json.dumps(other)}"


def _beside(old: Any, new: Any) -> list[tuple[Any, Any]]:
    """As many groups of settings are compared group by group, anything else as it is."""
    lists = isinstance(old, list) and isinstance(new, list) and len(old) == len(new)
    if lists and all(isinstance(one, dict) for one in [*old, *new]):
        return list(zip(old, new, strict=True))
    return [(old, new)]
