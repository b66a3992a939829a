"""Folders that appear whole or not at all, and disappear so: what one process does to them on a disk."""

import re
import shutil
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.files import checksum, checksum_of_json, read_json, sync_folder, write_json

FORMAT = "qkv-checkpoint-2"
NAME = re.compile(r"step-(\d{8,})")
# One for each kind of thing, or one for each kind and rank.
FILE = re.compile(r"(?P<kind>model|optimizer|average|random)(-\d{5,9})?\.(safetensors|json)")


class CheckpointFolder:
    """`checkpoints/`, with a folder for each step; what begins with a dot is not there yet, or no more."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def steps(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        names = (NAME.fullmatch(path.name) for path in self.folder.iterdir() if path.is_dir())
        return sorted(int(name[1]) for name in names if name)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def partial(self, step: int) -> Path:
        """Where the files of a checkpoint are written before they have its name."""
        return self.folder / f".{self.path(step).name}.partial"

    def begin(self, step: int) -> None:
        self.recover()
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True)
            sync_folder(self.folder.parent)
        self.partial(step).mkdir()

    def commit(self, step: int, state: dict[str, Any], files: dict[str, str]) -> None:
        """All files are there, with these checksums: `state.json` is the last, then the folder gets its name."""
        partial, target = self.partial(step), self.path(step)
        content = {"format": FORMAT, "step": step, "files": files, "state": state}
        write_json(partial / "state.json", {**content, "checksum": checksum_of_json(content)})
        sync_folder(partial)
        replaced = self.folder / f".{target.name}.replaced"
        if target.exists():  # a folder cannot be renamed onto a full one
            target.rename(replaced)
        partial.rename(target)
        sync_folder(self.folder)
        shutil.rmtree(replaced, ignore_errors=True)

    def described(self, step: int) -> dict[str, Any]:
        """What `state.json` says, where it is what was written."""
        file = self.path(step) / "state.json"
        content = read_json(file)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise QkvError(f"The file {file} is not the state of a {FORMAT} checkpoint.")
        if content.pop("checksum", None) != checksum_of_json(content) or content.get("step") != step:
            raise QkvError(f"The file {file} was edited or damaged: its checksum does not match.")
        files = content.get("files")
        if not isinstance(files, dict) or not all(FILE.fullmatch(name) for name in files) or "state" not in content:
            raise QkvError(f"The file {file} does not say which files belong to it.")
        return content

    def check(self, step: int, name: str, expected: str) -> None:
        """Raise where a file is not what was written."""
        file = self.path(step) / name
        if not file.is_file():
            raise QkvError(f"The file {file} is missing.")
        if checksum(file) != expected:
            raise QkvError(f"The file {file} was cut short, edited or damaged: its checksum does not match.")

    def retain(self, newest: int, best: int | None, every: int | None, regular: int | None) -> None:
        steps = self.steps()
        counted = [step for step in steps if regular is None or step % regular == 0 or step == steps[-1]]
        for step in steps:
            if step not in counted[-newest:] and step != best and (every is None or step % every):
                self._delete(step)

    def forget_after(self, step: int) -> None:
        for later in [each for each in self.steps() if each > step]:
            self._delete(later)

    def _delete(self, step: int) -> None:
        """Under another name first: what a crash leaves of it is then no checkpoint, and not a torn one either."""
        passing = self.folder / f".{self.path(step).name}.removed"
        self.path(step).rename(passing)
        shutil.rmtree(passing)

    def set_aside(self, step: int) -> str:
        """Give a damaged one another name, which is returned."""
        path = self.path(step)
        aside = path.with_name(f"{path.name}.damaged")
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
        return aside.name

    def recover(self) -> None:
        """Finish what a crash interrupted: put back what was moved aside, drop what was half written."""
        if not self.folder.is_dir():
            return
        for path in self.folder.glob(".step-*.replaced"):
            original = self.folder / path.name.removeprefix(".").removesuffix(".replaced")
            if original.exists():
                shutil.rmtree(path)
            else:
                path.rename(original)
        for ending in ("partial", "removed"):
            for path in self.folder.glob(f".step-*.{ending}"):
                shutil.rmtree(path)
