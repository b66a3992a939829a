"""Rows made by other processes: the same as here, epoch for epoch."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from qkv.data.ahead import Ahead, _Background
from qkv.data.batches import Batches
from qkv.data.in_processes import InProcesses, now_at
from qkv.data.pairs import Pairs
from qkv.data.plan import TokenBudget
from qkv.errors import QkvError, QkvWarning

TEXTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13]] * 5


def made(texts: list[list[int]], epoch: int) -> Pairs:
    """The texts from another place on in each epoch."""
    turned = texts[epoch:] + texts[:epoch]
    return Pairs.from_ids(turned, turned)


def test_no_module_of_the_current_folder_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("multiprocessing", "numpy", "qkv", "pickle"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'it ran')!r}, 'w')\nraise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert InProcesses(partial(made, TEXTS))(0).source.ids.tolist() == made(TEXTS, 0).source.ids.tolist()
    assert not (tmp_path / "it ran").exists()


def broken(epoch: int) -> Pairs:
    raise ValueError(f"epoch {epoch} is broken")


def test_another_process_makes_what_would_be_made_here() -> None:
    elsewhere = InProcesses(partial(made, TEXTS), workers=2)
    for epoch in (0, 1, 2, 7):  # a resumed run begins where it stopped
        here, there = made(TEXTS, epoch), elsewhere(epoch)
        assert there.source.ids.tolist() == here.source.ids.tolist()
        assert there.target.offsets.tolist() == here.target.offsets.tolist()
    batches = Batches(elsewhere, TokenBudget(100))
    assert sum(len(batch.source) for batch in batches) == len(TEXTS)


def test_what_goes_wrong_there_is_raised_here() -> None:
    with pytest.raises(ValueError, match="epoch 0 is broken"):
        InProcesses(broken)(0)


def dies(epoch: int) -> Pairs:
    os.kill(os.getpid(), signal.SIGKILL)
    return made(TEXTS, epoch)


def test_a_process_that_dies_is_reported_with_what_it_made() -> None:
    """Killed for real, as a system short of memory does it."""
    elsewhere = InProcesses(dies)
    with pytest.raises(QkvError, match="process that made the rows of epoch 3 died"):
        elsewhere(3)
    with pytest.raises(QkvError, match="epoch 3"):  # and again, where it is asked for again
        elsewhere(3)


def waits(sign: str, epoch: int) -> Pairs:
    while not os.path.exists(sign):
        time.sleep(0.01)
    return made(TEXTS, epoch)


def test_a_process_that_hangs_is_told_of(tmp_path: Path) -> None:
    sign = tmp_path / "go on"
    told: list[str] = []

    def tell(message: Warning | str, *_: object, **__: object) -> None:
        told.append(str(message))
        sign.touch()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = tell
        rows = InProcesses(partial(waits, str(sign)), patience=0.05)(2)
    assert "rows of epoch 2 are still being made" in told[0]
    assert len(rows.source) == len(TEXTS)


def test_a_process_that_hangs_for_good_ends_the_run(tmp_path: Path) -> None:
    elsewhere = InProcesses(partial(waits, str(tmp_path / "never")), patience=0.05, limit=0.1)
    with pytest.warns(QkvWarning), pytest.raises(QkvError, match=r"hangs: the rows of epoch 2 are not made after 0\.1"):
        elsewhere(2)


def test_the_end_of_the_program_waits_for_no_process(tmp_path: Path) -> None:
    elsewhere = InProcesses(partial(waits, str(tmp_path / "never")), patience=0.05, limit=1e9)
    before = set(threading.enumerate())
    ahead = Ahead(lambda: elsewhere(2))
    wait_until(lambda: elsewhere._workers[0]._process is not None)
    for thread in set(threading.enumerate()) - before:
        if isinstance(thread, _Background):
            thread.abandon()
    with pytest.raises(QkvError, match="died"):
        ahead.result()


def wait_until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.01)


def tells_and_dies(number: int) -> Pairs:
    now_at(f"the rows of shard {number:03}.jsonl")
    return dies(number)


def test_what_a_process_was_at_when_it_died_is_told() -> None:
    with pytest.raises(QkvError, match=r"process that made the rows of shard 007\.jsonl died"):
        InProcesses(tells_and_dies, named=str)(7)


def use_and_leave(epoch: int) -> int:
    return len(InProcesses(partial(made, TEXTS))(epoch).source)


def test_a_worker_that_used_others_ends() -> None:
    """Such as one of several runs side by side."""
    process = get_context("spawn").Process(target=use_and_leave, args=(0,))
    process.start()
    process.join(120)  # only reached where it would never end
    ended = process.exitcode
    process.kill()
    assert ended == 0
