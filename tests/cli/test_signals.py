"""Ctrl-C and SIGTERM in a real process: a training saves and says how to go on; anything else just stops."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command import TINY, process, qkv, train

PATIENCE = 120  # seconds after which a process that does not do what it should is given up


def wait_for_step(run: Path, process: subprocess.Popen[str]) -> None:
    """Until the training has recorded its first steps."""
    deadline = time.monotonic() + PATIENCE
    while not (run / "metrics.jsonl").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_training_that_is_stopped_is_saved_and_goes_on(
    number: signal.Signals, code: int, words: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    columns = ["--data", words, "--source", "word", "--target", "phonemes", "--hold-out", "0.3", "--device", "cpu"]
    with process("train", "text-to-text", *columns, *TINY, "--out", out, "--steps", "1000000") as training:
        wait_for_step(out, training)
        training.send_signal(number)
        output, errors = training.communicate(timeout=PATIENCE)
    assert training.returncode == code
    assert f"Stopped by {number.name} after step" in errors
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert output == ""
    assert qkv("run", out, "cat").code == 0, "what is left is a model"

    saved = max(int(path.name.removeprefix("step-")) for path in (out / "checkpoints").glob("step-*"))
    outcome = train(words, out, "--resume", "--steps", str(saved + 2))
    assert outcome.code == 0
    assert f"Resuming after step {saved:,}." in outcome.err
    assert f"Trained {saved + 2:,} steps" in outcome.out
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in records if record["kind"] == "train"]
    assert steps == sorted(set(steps)), "no step is recorded twice"


def test_ctrl_c_while_waiting_for_input_ends_quietly(model: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "qkv", "run", str(model), "--input", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    ) as running:
        try:
            assert running.stdin is not None
            assert running.stdout is not None
            running.stdin.write(b"cat\n" * 600)  # more than is decoded at once, so that something comes out first
            running.stdin.flush()
            assert running.stdout.readline()
            running.send_signal(signal.SIGINT)
            _, errors = running.communicate(timeout=PATIENCE)
        finally:
            running.kill()
    assert running.returncode == 130
    assert b"Traceback" not in errors


def test_a_reader_that_goes_away_is_no_error(model: Path) -> None:
    command = f"yes cat | head -n 5000 | {sys.executable} -m qkv run {model} --beams 1 | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0
    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b""
