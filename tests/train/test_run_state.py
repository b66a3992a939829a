"""A folder says whether its run is under way, finished, stopped or failed, and a killed one does not say it runs."""

import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.errors import QkvError
from qkv.train.interrupts import Interrupted
from qkv.train.run_state import born, state_of, write_state
from tests.train.test_loop import SignalAfter
from tests.train.tiny import open_run, train_tiny


def noted(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "state.json").read_text())
    return found


def test_a_run_is_finished_stopped_or_failed(tmp_path: Path) -> None:
    train_tiny(tmp_path / "finished", steps=1)
    assert noted(tmp_path / "finished")["state"] == "finished"
    with pytest.raises(Interrupted):
        train_tiny(tmp_path / "stopped", objective=SignalAfter(2, signal.SIGTERM))
    assert noted(tmp_path / "stopped")["state"] == "stopped"
    with pytest.raises(QkvError):
        train_tiny(tmp_path / "failed", evaluate=lambda model: {"other": 1.0}, evaluate_every=1)
    assert noted(tmp_path / "failed")["state"] == "failed"
    assert "watch asks for loss" in str(noted(tmp_path / "failed")["reason"])


def test_a_run_that_never_began_leaves_the_state_of_the_one_before(tmp_path: Path) -> None:
    train_tiny(tmp_path, steps=1)
    before = noted(tmp_path)
    with pytest.raises(QkvError, match="other settings"), open_run(tmp_path, resume=True) as run:
        run.begin({"train": {"seed": 7}}, {})
    assert noted(tmp_path) == before


def test_a_process_that_is_gone_was_killed(tmp_path: Path) -> None:
    write_state(tmp_path, "running")
    assert state_of(noted(tmp_path), finished=False) == ("running", "")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    state, why = state_of({**noted(tmp_path), "process": ended.pid}, finished=False)
    assert state == "failed"
    assert "process is gone" in why
    assert state_of({**noted(tmp_path), "process": ended.pid, "host": "elsewhere"}, finished=False)[0] == "running"


@pytest.mark.skipif(born(os.getpid()) is None, reason="this system does not tell when processes began")
def test_a_number_that_another_process_has_now_does_not_count() -> None:
    own = {"state": "running", "host": platform.node(), "process": os.getpid()}
    assert state_of({**own, "born": born(os.getpid())}, finished=False)[0] == "running"
    assert state_of({**own, "born": "1"}, finished=False)[0] == "failed"


def test_runs_of_earlier_versions_are_finished_or_stopped() -> None:
    assert state_of(None, finished=True)[0] == "finished"
    assert state_of(None, finished=False)[0] == "stopped"
