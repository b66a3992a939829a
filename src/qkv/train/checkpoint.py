"""Checkpoints: folders that are there whole or not at all, and that know when they were damaged.

`checkpoints/step-00001000/` holds `model.safetensors` (as in a model folder), `optimizer.safetensors` (state by
parameter name), where there is a moving average `average.safetensors`, `random.json`, and `state.json` with everything
else and the checksums of the rest. Of many ranks each has files of its own, `model-00003.safetensors` and so on, in
which tensors stand in pieces: any number of ranks reads what any other wrote. Nothing in it is pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.files import WRITE_ERRORS, read_json
from qkv.train.checkpoint_folder import CheckpointFolder
from qkv.train.checkpoint_read import Checkpoint, files_of
from qkv.train.parallel.agreed import by_each, by_first
from qkv.train.parallel.pieces import Piece, in_place_of, pieces_of, state_pieces
from qkv.train.parallel.stored_pieces import StoredTensors, write_share
from qkv.train.parallel.world import World

if TYPE_CHECKING:
    from concurrent.futures import Future

    from qkv.train.parallel.distributed_save import DistributedSaver

__all__ = ["Checkpoint", "Checkpoints"]


class Checkpoints:
    """The `checkpoints/` folder of a run. Many ranks call each of its methods together."""

    def __init__(self, folder: Path, world: World | None = None, stream: int = 0) -> None:
        self.folder = folder
        self._disk = CheckpointFolder(folder)
        self.join(world, stream)

    def join(self, world: World | None, stream: int = 0) -> None:
        """Be one of many ranks, each with a part of what is saved and a stream of random numbers to draw from."""
        self.world = world if world is not None and world.size > 1 else None
        self.stream = stream
        self._saver: DistributedSaver | None = None
        self._under_way: tuple[int, Future[Any]] | None = None
        self._then: Callable[[], Any] | None = None  # what is to be done when it is there

    @property
    def _seat(self) -> tuple[int, int]:
        """(which rank this is, of how many)."""
        return (0, 1) if self.world is None else (self.world.rank, self.world.size)

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first; whether each is whole shows when it is read."""
        self.wait()
        steps: list[int] = by_first(self.world, self._disk.steps)
        return steps

    def path(self, step: int) -> Path:
        return self._disk.path(step)

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
        """Write beside, reach the disk, rename: whoever looks sees the old checkpoints or all of the new one.

        Many ranks return when they have a copy of their parts, and write it while training goes on: `wait` waits for
        that, and so does every later call. `average` is a moving average's, by the keys of the model's pieces. What is
        saved of `state` is the first rank's.
        """
        self.wait()
        tensors = {"model": pieces_of(model), "optimizer": state_pieces(model, optimizer)}
        if average is not None:
            tensors["average"] = in_place_of(tensors["model"], average)
        begin, commit = partial(self._disk.begin, step), partial(self._disk.commit, step, dict(state))
        if self.world is not None:
            self._start(step, tensors, random, begin, commit)
            return self.path(step)
        try:
            begin()
            commit(write_share(self._disk.partial(step), "", tensors, random))
        except WRITE_ERRORS as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise self._not_written(step, str(reason)) from error
        finally:
            self._disk.recover()
        return self.path(step)

    def _start(
        self,
        step: int,
        tensors: Mapping[str, list[Piece]],
        random: Mapping[str, Any],
        begin: Callable[[], None],
        commit: Callable[[dict[str, str]], None],
    ) -> None:
        from qkv.train.parallel.distributed_save import DistributedSaver, Job

        rank, _ = self._seat
        if self._saver is None:
            self._saver = DistributedSaver(rank)
        job = Job(self._disk.partial(step), begin, commit)
        self._under_way = step, self._saver.start(job, tensors, {**random, "stream": self.stream})

    def wait(self) -> None:
        """Until what was begun is on the disk; raises, on all ranks, where it could not be written."""
        if self._under_way is None:
            return
        from qkv.train.parallel.distributed_save import told, why

        (step, written), self._under_way = self._under_way, None
        then, self._then = self._then, None
        error = written.exception()
        if error is not None:  # no rank asks another now: one may be gone
            if self.world is not None and self.world.first:
                with suppress(OSError):
                    self._disk.recover()
            if not told(error):
                raise self._not_written(step, "another rank ended or cannot be reached", "Resume the run.") from error
            raise self._not_written(step, why(error)) from error
        if then is not None:
            then()

    def _not_written(self, step: int, reason: str, advice: str = "Make room there and resume the run.") -> QkvError:
        before = [self.path(older).name for older in self._disk.steps()]
        kept = f"the last one, {before[-1]}, is intact" if before else "there is none from before"
        return QkvError(f"The checkpoint {self.path(step)} could not be written ({reason}); {kept}. {advice}")

    def verify(self, step: int) -> dict[str, Any]:
        """Raise where a byte of a checkpoint is not what it was; returns what its `state.json` says.

        Ranks share out the files that are to be read.
        """
        self.wait()
        content: dict[str, Any] = by_first(self.world, partial(self._disk.described, step))
        rank, ranks = self._seat
        mine = list(content["files"].items())[rank::ranks]
        by_each(self.world, lambda: [self._disk.check(step, *each) for each in mine])  # type: ignore[func-returns-value]
        return content

    def read(self, step: int) -> Checkpoint:
        """One checkpoint, every byte of it verified."""
        content = self.verify(step)
        checkpoint = by_each(self.world, partial(self._opened, step, content))
        if self.world is not None and self.world.agree([checkpoint.random is None])[0]:
            return replace(checkpoint, random=None)  # all or none: some draw the same numbers
        return checkpoint

    def _opened(self, step: int, content: dict[str, Any]) -> Checkpoint:
        folder, names = self.path(step), content["files"]
        stored = {kind: files_of(folder, names, kind) for kind in ("model", "optimizer", "average")}
        for kind in ("model", "optimizer"):
            if not stored[kind]:
                raise QkvError(f"The file {folder / kind}.safetensors is missing.")
        return Checkpoint(
            folder=folder,
            step=step,
            model=StoredTensors(stored["model"]),
            optimizer=StoredTensors(stored["optimizer"]),
            average=StoredTensors(stored["average"]) if stored["average"] else None,
            random=self._random(files_of(folder, names, "random")),
            state=content["state"],
        )

    def _random(self, files: list[Path]) -> dict[str, Any] | None:
        """The state that this rank saved; None where other ranks did, or ranks that drew from other streams."""
        rank, ranks = self._seat
        if len(files) != ranks:
            return None
        random = read_json(files[rank])
        if not isinstance(random, dict):
            raise QkvError(f"The file {files[rank]} is not the state of random generators.")
        return random if random.get("stream", 0) == self.stream else None

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
                problems.append((step, str(error)))
                continue
            for damaged, problem in problems:
                aside = by_first(self.world, partial(self._disk.set_aside, damaged))
                if self.world is None or self.world.first:
                    say(f"{problem} Going on from {checkpoint.folder.name} instead; the damaged one is now {aside}.")
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
        stopped must leave no trace in a run that goes on. While one is being written, this is done when it is there.
        """
        work = partial(by_first, self.world, partial(self._disk.retain, newest, best, every, regular))
        if self._under_way is None:
            work()
        else:
            self._then = work

    def forget_after(self, step: int) -> None:
        """Delete those of later steps."""
        self.wait()
        by_first(self.world, partial(self._disk.forget_after, step))

    def recover(self) -> None:
        """Finish what a crash interrupted: put back what was moved aside, drop what was half written."""
        self.wait()
        by_first(self.world, self._disk.recover)
