"""kill -9 at any moment, also in the middle of a save: the run that goes on ends as if nothing had happened."""

import hashlib
import json
import os
import random
import resource
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from qkv.files import read_tensors
from qkv.train.checkpoint import Checkpoints

PATIENCE = 120.0  # seconds after which a process that does not do what it should is given up
CLOCK = {
    "seconds", "wall_seconds", "paused_seconds", "step_seconds", "tokens_per_second", "peak_memory", "data_wait",
    "data_wait_share", "flops_utilisation",
}  # fmt: skip
# What a save has under way: seen after a kill, they tell that it fell into one.
UNDER_WAY = (".step-*.partial", ".step-*.removed", ".step-*.replaced")
TEXT = "\n\n".join(
    f"Verse {number}: and it was so, {'day' if number % 2 else 'night'} {number * 37 % 101} of many." * (1 + number % 3)
    for number in range(40)
)
FORKS = get_context("forkserver")  # real processes that have torch in memory when they begin
FORKS.set_forkserver_preload(["qkv.api", "qkv.cli.main", "qkv.api.language", "torch._dynamo", "tests.cli.test_kill"])


def command(arguments: list[str], log: str, most_bytes: int | None = None) -> None:
    """The `qkv` command in a process of its own; what it writes goes to a file.

    With `most_bytes` no file may become larger, which ends a write as a full disk does.
    """
    from qkv.cli.main import main

    if most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    raise SystemExit(main(arguments))


class Training:
    """One run of a small model with dropout, random features and evaluations, begun or gone on with."""

    def __init__(self, folder: Path, steps: int, *more: str) -> None:
        self.folder, self.log = folder, folder.with_suffix(".log")
        self.checkpoints = Checkpoints(folder / "checkpoints")
        data = folder.with_suffix(".txt")
        data.write_text(TEXT)
        self.options = [
            "train", "lm", "--data", str(data), "--blank-lines", "--tokenizer", "bpe:280", "--attention", "performer:8",
            "--size", "width=16,hidden=16,layers=1,heads=2,dropout=0.2", "--length", "24", "--batch-rows", "4",
            "--steps", str(steps), "--evaluate-every", "7", "--save-every", "2", "--keep", "2", "--keep-every", "50",
            "--warmup", "5", "--learning-rate", "0.003", "--device", "cpu", "--out", str(folder), *more,
        ]  # fmt: skip

    def start(self, most_bytes: int | None = None) -> BaseProcess:
        begun = (self.folder / "run.json").exists()
        how = "--resume" if begun else "--overwrite"
        process = FORKS.Process(target=command, args=([*self.options, how], str(self.log), most_bytes))
        process.start()
        return process

    def finish(self) -> None:
        process = self.start()
        process.join(PATIENCE)
        assert process.exitcode == 0, self.log.read_text()

    def is_saving(self) -> bool:
        return any(True for pattern in UNDER_WAY for _ in self.checkpoints.folder.glob(pattern))

    def wait_for_save(self, process: BaseProcess) -> None:
        """Until one more checkpoint is there than at the start."""
        newest = max(self.checkpoints.steps(), default=0)
        deadline = time.monotonic() + PATIENCE
        while process.is_alive() and max(self.checkpoints.steps(), default=0) == newest:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def check_whole(self) -> None:
        """Whoever can be seen is whole."""
        for step in self.checkpoints.steps():
            self.checkpoints.verify(step)

    def check_ends_as(self, other: "Training") -> None:
        """It goes on to its end, which is the other's, and leaves nothing half written."""
        self.finish()
        said = self.log.read_text()
        assert "damaged" not in said
        assert "Traceback" not in said
        assert self.outcome() == other.outcome()
        assert list(self.folder.rglob(".*")) == []

    def outcome(self) -> dict[str, str]:
        """Hashes of all that a run leaves, but for what the clock says."""
        newest = self.checkpoints.path(self.checkpoints.steps()[-1])
        files = {file.name: content_of(file) for file in newest.glob("*") if file.name != "state.json"}
        state = without_clock(json.loads((newest / "state.json").read_text())["state"])
        records = (self.folder / "metrics.jsonl").read_text().splitlines()
        files["state"] = json.dumps(state).encode()
        files["metrics"] = json.dumps([without_clock(json.loads(line)) for line in records]).encode()
        files["final"] = content_of(self.folder / "model.safetensors")
        files["checkpoints"] = json.dumps(self.checkpoints.steps()).encode()
        return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def content_of(file: Path) -> bytes:
    """What a file says; of tensors their names and numbers, for notes beside them have no order."""
    if file.suffix != ".safetensors":
        return file.read_bytes()
    tensors = sorted(read_tensors(file).items())
    return b"".join(name.encode() + tensor.numpy().tobytes() for name, tensor in tensors)


def without_clock(value: Any) -> Any:
    """`records` is a number of bytes, and the clock's digits are among them."""
    if not isinstance(value, dict):
        return value
    return {key: without_clock(each) for key, each in value.items() if key not in CLOCK | {"records"}}


def moments(kills: int, seed: int) -> Iterator[tuple[bool, float]]:
    """(whether to wait for a checkpoint first, seconds to wait then): after a start, between saves and within them."""
    draw = random.Random(seed)
    for number in range(kills):
        first = number % 4 != 0
        yield first, draw.uniform(0, 0.08 if first else 0.6)


@pytest.fixture(autouse=True)
def quiet_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    """What killed processes held is cleared away for them; that need not be told."""
    monkeypatch.setenv("PYTHONWARNINGS", "ignore:resource_tracker")


def kill_and_go_on(folder: Path, steps: int, kills: int, *more: str) -> int:
    """The number of kills that fell into a save."""
    unbroken, killed = Training(folder / "unbroken", steps, *more), Training(folder / "killed", steps, *more)
    unbroken.finish()
    within_saves = 0
    for wait_first, seconds in moments(kills, seed=1):
        process = killed.start()
        if wait_first:
            killed.wait_for_save(process)
        time.sleep(seconds)
        assert process.is_alive(), f"more steps are needed for so many kills: {killed.log.read_text()[-2000:]}"
        process.kill()
        process.join()
        within_saves += killed.is_saving()
        killed.check_whole()
    killed.check_ends_as(unbroken)
    return within_saves


def test_a_run_that_is_killed_four_times_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    kill_and_go_on(tmp_path, steps=60, kills=4)
    kept = Checkpoints(tmp_path / "killed" / "checkpoints").steps()
    assert {50, 58, 60} <= set(kept), "that of step 50 for good, and the newest two"
    assert len(kept) <= 4, "and the best"


def test_a_disk_that_takes_no_more_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    """What remains goes on, when there is room, as if nothing had happened."""
    unbroken, full = Training(tmp_path / "unbroken", 20), Training(tmp_path / "full", 20)
    unbroken.finish()
    process = full.start()
    full.wait_for_save(process)
    process.kill()
    process.join()
    saved = full.checkpoints.steps()[-1]
    process = full.start(most_bytes=30_000)  # less than an optimizer's state
    process.join(PATIENCE)
    said = full.log.read_text()
    assert process.exitcode == 2, said
    assert "File too large" in said
    assert f"the last one, step-{saved:08}, is intact" in said
    assert "Traceback" not in said
    assert full.checkpoints.read(saved).step == saved
    assert not full.is_saving()
    full.finish()
    assert full.outcome() == unbroken.outcome()


@pytest.mark.slow
def test_a_run_that_is_killed_fifty_times_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    within_saves = kill_and_go_on(tmp_path, steps=600, kills=50)
    print(f"{within_saves} of 50 kills fell into a save")
    assert within_saves > 5


@pytest.mark.gpu
def test_a_run_on_a_gpu_that_is_killed_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    kill_and_go_on(tmp_path, 60, 4, "--device", "cuda", "--deterministic", "--attention", "window:8")
