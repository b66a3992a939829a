"""`qkv train` on several ranks, as real processes: killed, stopped, gone on with by others, and started by torchrun."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from qkv.files import read_tensors
from tests.cli.test_kill import FORKS, PATIENCE, Training, command
from tests.train.parallel.ranks import run_ranks

OPTIONS = ("--attention", "window:12", "--length", "24")


def rank_process(rank: int, ranks: int, port: int, arguments: list[str], log: str) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    torch.set_num_threads(1)
    command(arguments, log)


class RankedTraining(Training):
    """The same run on several ranks."""

    def __init__(self, folder: Path, steps: int, ranks: int, *more: str) -> None:
        super().__init__(folder, steps, *OPTIONS, *more)
        self.ranks = ranks

    def start_all(self) -> list[BaseProcess]:
        how = "--resume" if (self.folder / "run.json").exists() else "--overwrite"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes = [
            FORKS.Process(target=rank_process, args=(rank, self.ranks, port, [*self.options, how], str(self.log)))
            for rank in range(self.ranks)
        ]
        for process in processes:
            process.start()
        return processes

    def finish(self) -> None:
        processes = self.start_all()
        for process in processes:
            process.join(PATIENCE)
        assert [process.exitcode for process in processes] == [0] * self.ranks, self.log.read_text()

    def figures(self) -> list[dict[str, float]]:
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        return [line["figures"] for line in lines if line["kind"] == "evaluation"]


def end(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.kill()  # one that lost its neighbour may have ended by itself
    for process in processes:
        process.join(PATIENCE)


def kill_and_go_on(folder: Path, steps: int, kills: int, ranks: int = 2) -> int:
    """The number of kills that fell into a save. A rank is killed, then, as torchrun does it, the others."""
    unbroken, killed = (
        RankedTraining(folder / "unbroken", steps, ranks),
        RankedTraining(folder / "killed", steps, ranks),
    )
    unbroken.finish()
    within_saves, draw = 0, random.Random(2)
    for number in range(kills):
        processes = killed.start_all()
        if number % 4:
            killed.wait_for_save(processes[0])
        time.sleep(draw.uniform(0, 0.1 if number % 4 else 1.0))
        assert processes[0].is_alive(), f"more steps are needed for so many kills: {killed.log.read_text()[-2000:]}"
        draw.shuffle(processes)
        end(processes[:1])
        time.sleep(draw.uniform(0, 0.02))
        end(processes[1:])
        within_saves += killed.is_saving()
        killed.check_whole()
    killed.check_ends_as(unbroken)
    return within_saves


def test_two_ranks_that_are_killed_end_as_unbroken_ones(tmp_path: Path) -> None:
    kill_and_go_on(tmp_path, steps=40, kills=3)


@pytest.mark.slow
def test_two_ranks_that_are_killed_fifty_times_end_as_unbroken_ones(tmp_path: Path) -> None:
    within_saves = kill_and_go_on(tmp_path, steps=600, kills=50)
    print(f"{within_saves} of 50 kills fell into a save")
    assert within_saves > 3


def test_other_numbers_of_ranks_go_on_with_a_run(tmp_path: Path) -> None:
    """1 → 2 → 4 → 1: the same losses and weights as one process, but for rounding."""
    still = "width=16,hidden=16,layers=1,heads=2,dropout=0,embedding_dropout=0,attention_dropout=0"
    plain = ("--size", still, "--schedule", "constant")  # which does not depend on how long a run is to be
    alone = RankedTraining(tmp_path / "alone", 24, 1, *plain)
    alone.finish()
    changing = RankedTraining(tmp_path / "changing", 6, 1, *plain)
    for steps, ranks in ((6, 1), (12, 2), (18, 4), (24, 1)):
        changing.options[changing.options.index("--steps") + 1] = str(steps)
        changing.ranks = ranks
        changing.finish()
    last = [run.figures()[-1]["loss"] for run in (alone, changing)]
    assert last[0] == pytest.approx(last[1], rel=1e-4)


def test_a_signal_to_one_rank_stops_all_of_them_with_their_state_saved(tmp_path: Path) -> None:
    unbroken, stopped = RankedTraining(tmp_path / "unbroken", 30, 2), RankedTraining(tmp_path / "stopped", 30, 2)
    unbroken.finish()
    processes = stopped.start_all()
    stopped.wait_for_save(processes[0])
    os.kill(processes[1].pid or 0, signal.SIGTERM)
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [143, 143], stopped.log.read_text()
    assert stopped.log.read_text().count("Stopped by SIGTERM") == 1, "one rank speaks"
    stopped.finish()
    assert stopped.outcome() == unbroken.outcome()


def told(arguments: list[str]) -> int:
    from qkv.cli.main import main

    return main(arguments)


def test_what_a_model_in_parts_writes_is_scored(tmp_path: Path) -> None:
    """Decoding in the middle of training, by ranks that hold different heads."""
    data = tmp_path / "words.tsv"
    data.write_text("word\tsounds\n" + "".join(f"w{number}\t{number % 7} {number % 5}\n" for number in range(40)))
    options = [
        "train", "text-to-text", "--data", str(data), "--source", "word", "--target", "sounds",
        "--tokenizer", "characters", "--steps", "6",
        "--size", "width=16,hidden=24,encoder_layers=1,decoder_layers=1,heads=2,dropout=0",
        "--evaluate-every", "3", "--device", "cpu", "--out",
    ]  # fmt: skip
    assert told([*options, str(tmp_path / "one")]) == 0
    assert run_ranks(2, told, [*options, str(tmp_path / "two"), "--parallel", "tensor:2"]) == [0, 0]
    figures = [
        [record["figures"] for record in map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
         if record["kind"] == "evaluation"]
        for name in ("one", "two")
    ]  # fmt: skip
    assert len(figures[0]) == 2
    assert "cer" in figures[0][0]
    for one, two in zip(*figures, strict=True):
        assert two == pytest.approx(one, rel=1e-4)


@pytest.mark.slow
def test_torchrun_starts_again_after_a_rank_was_lost(tmp_path: Path) -> None:
    unbroken, lost = RankedTraining(tmp_path / "unbroken", 60, 2), RankedTraining(tmp_path / "lost", 60, 2)
    unbroken.finish()
    runner = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2", "-m", "qkv",
         *lost.options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + PATIENCE
    while max(lost.checkpoints.steps(), default=0) < 10:
        assert time.monotonic() < deadline
        assert runner.poll() is None, runner.stdout and runner.stdout.read()
        time.sleep(0.01)
    ranks = subprocess.run(["pgrep", "-P", str(runner.pid)], capture_output=True, text=True, check=True).stdout.split()
    os.kill(int(ranks[1]), signal.SIGKILL)
    said, _ = runner.communicate(timeout=PATIENCE)
    assert runner.returncode == 0, said
    assert "Resuming after step" in said
    mine, theirs = (read_tensors(run.folder / "model.safetensors") for run in (lost, unbroken))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
