"""Checkpoints: folders that are there whole or not at all, and that know when they were damaged.

`checkpoints/step-00001000/` holds `model.safetensors` (as in a model folder), `optimizer.safetensors` (state by
parameter name), where there is a moving average `average.safetensors`, `random.json`, and `state.json` with everything
else and the checksums of the rest. Nothing in it is pickled.
"""

import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.files import (
    WRITE_ERRORS,
    checksum,
    checksum_of_json,
    copy_into,
    read_json,
    read_tensors,
    sync_folder,
    write_json,
    write_tensors,
)
from qkv.weights.save import tensors_of

FORMAT = "qkv-checkpoint-2"
NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back and found whole."""

    folder: Path
    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    average: dict[str, Tensor] | None
    random: dict[str, Any]
    state: dict[str, Any]  # what the loop saved: counters, position in the data, best score, budget used

    def restore_model(self, model: nn.Module) -> None:
        copy_into(tensors_of(model), self.model, self.folder / "model.safetensors")

    def restore_optimizer(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """State goes to parameters by name, so their order and grouping may differ."""
        file = self.folder / "optimizer.safetensors"
        names = _parameter_names(model)
        packed = optimizer.state_dict()
        state: dict[int, dict[str, Tensor]] = {}
        unused = set(self.optimizer)
        for group, packed_group in zip(optimizer.param_groups, packed["param_groups"], strict=True):
            for parameter, index in zip(group["params"], packed_group["params"], strict=True):
                prefix = names[parameter] + "/"
                entries = {key for key in unused if key.startswith(prefix)}
                for key in entries:
                    state.setdefault(index, {})[key.removeprefix(prefix)] = self.optimizer[key]
                unused -= entries
        if unused:
            raise QkvError(f"{file} holds {min(unused)}, which belongs to no parameter of this optimizer.")
        optimizer.load_state_dict({"state": state, "param_groups": packed["param_groups"]})


class Checkpoints:
    """The `checkpoints/` folder of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first; whether each is whole shows when it is read."""
        if not self.folder.is_dir():
            return []
        names = (NAME.fullmatch(path.name) for path in self.folder.iterdir() if path.is_dir())
        return sorted(int(name[1]) for name in names if name)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def save(
        self,
        step: int,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        random: Mapping[str, Any],
        state: Mapping[str, Any],
        average: Mapping[str, Tensor] | None = None,
    ) -> Path:
        """Write beside, reach the disk, rename: whoever looks sees the old checkpoints or all of the new one."""
        target = self.path(step)
        partial = self.folder / f".{target.name}.partial"
        try:
            self._make_folder()
            partial.mkdir()
            write_tensors(partial / "model.safetensors", tensors_of(model))
            write_tensors(partial / "optimizer.safetensors", _optimizer_tensors(model, optimizer))
            if average is not None:
                write_tensors(partial / "average.safetensors", average)
            write_json(partial / "random.json", random)
            files = {file.name: checksum(file) for file in sorted(partial.iterdir())}
            content = {"format": FORMAT, "step": step, "files": files, "state": dict(state)}
            write_json(partial / "state.json", {**content, "checksum": checksum_of_json(content)})
            self._put_in_place(partial, target)
        except WRITE_ERRORS as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            before = [self.path(older).name for older in self.steps()]
            kept = f"the last one, {before[-1]}, is intact" if before else "there is none from before"
            raise QkvError(
                f"The checkpoint {target} could not be written ({reason}); {kept}. Make room there and resume the run."
            ) from error
        finally:
            self.recover()
        return target

    def verify(self, step: int) -> dict[str, Any]:
        """Raise where a byte of a checkpoint is not what it was; returns what its `state.json` says."""
        folder = self.path(step)
        content = read_json(folder / "state.json")
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise QkvError(f"The file {folder / 'state.json'} is not the state of a {FORMAT} checkpoint.")
        if content.pop("checksum", None) != checksum_of_json(content) or content["step"] != step:
            raise QkvError(f"The file {folder / 'state.json'} was edited or damaged: its checksum does not match.")
        for name, expected in content["files"].items():
            file = folder / name
            if not file.is_file():
                raise QkvError(f"The file {file} is missing.")
            if checksum(file) != expected:
                raise QkvError(f"The file {file} was cut short, edited or damaged: its checksum does not match.")
        return content

    def read(self, step: int) -> Checkpoint:
        """One checkpoint, every byte of it verified."""
        folder, content = self.path(step), self.verify(step)
        average = folder / "average.safetensors"
        return Checkpoint(
            folder=folder,
            step=step,
            model=read_tensors(folder / "model.safetensors"),
            optimizer=read_tensors(folder / "optimizer.safetensors"),
            average=read_tensors(average) if average.name in content["files"] else None,
            random=read_json(folder / "random.json"),
            state=content["state"],
        )

    def read_newest(self, say: Callable[[str], None]) -> Checkpoint | None:
        """The newest whole checkpoint, or None if there is none at all.

        A damaged one is reported and set aside under another name: were it left, it would count as the newest.
        """
        self.recover()
        problems = []
        for step in reversed(self.steps()):
            try:
                checkpoint = self.read(step)
            except QkvError as error:
                problems.append((self.path(step), str(error)))
                continue
            for path, problem in problems:
                aside = path.with_name(f"{path.name}.damaged")
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
                say(f"{problem} Going on from {checkpoint.folder.name} instead; the damaged one is now {aside.name}.")
            return checkpoint
        if problems:
            raise QkvError(f"No checkpoint in {self.folder} is whole. " + " ".join(text for _, text in problems))
        return None

    def read_up_to(self, step: int, regular: int) -> Checkpoint | None:
        """The newest whole checkpoint of a multiple of `regular` that is not of a later step."""
        for earlier in reversed([each for each in self.steps() if each <= step and each % regular == 0]):
            with suppress(QkvError):
                return self.read(earlier)
        return None

    def retain(self, newest: int, best: int | None, every: int | None = None, regular: int | None = None) -> None:
        """Delete all but the newest few, the best, and those of every so many steps.

        With `regular` only multiples of it count as the newest, and the very last: a checkpoint made because a run was
        stopped must leave no trace in a run that goes on.
        """
        steps = self.steps()
        counted = [step for step in steps if regular is None or step % regular == 0 or step == steps[-1]]
        for step in steps:
            if step not in counted[-newest:] and step != best and (every is None or step % every):
                self._delete(step)

    def forget_after(self, step: int) -> None:
        """Delete those of later steps."""
        for later in [each for each in self.steps() if each > step]:
            self._delete(later)

    def _delete(self, step: int) -> None:
        """Under another name first: what a crash leaves of it is then no checkpoint, and not a torn one either."""
        passing = self.folder / f".{self.path(step).name}.removed"
        self.path(step).rename(passing)
        shutil.rmtree(passing)

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

    def _make_folder(self) -> None:
        self.recover()
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True)
            sync_folder(self.folder.parent)

    def _put_in_place(self, partial: Path, target: Path) -> None:
        sync_folder(partial)
        replaced = self.folder / f".{target.name}.replaced"
        if target.exists():  # a folder cannot be renamed onto a full one
            target.rename(replaced)
        partial.rename(target)
        sync_folder(self.folder)
        shutil.rmtree(replaced, ignore_errors=True)


def _parameter_names(model: nn.Module) -> dict[Tensor, str]:
    return {parameter: name for name, parameter in model.named_parameters()}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """`decoder.blocks.0.norm.weight/exp_avg` and so on; a plain number becomes a tensor of one."""
    names = _parameter_names(model)
    return {
        f"{names[parameter]}/{key}": torch.as_tensor(value)
        for parameter, entries in optimizer.state.items()
        for key, value in entries.items()
    }
