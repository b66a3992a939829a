"""A function in several processes that know of each other, as `torchrun` would start them."""

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# A fork server imports torch once; each rank is then a quick copy of it.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.train.parallel.preload"])
PATIENCE = 120.0  # seconds for a test's ranks: a hang fails the test instead of CI


def run_ranks(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(*arguments)` gives on each rank; it must be found by name in its module."""
    with tempfile.TemporaryDirectory() as folder:
        answers = SERVER.SimpleQueue()
        ranks = [
            SERVER.Process(target=_rank, args=(rank, count, folder, answers, function, arguments))
            for rank in range(count)
        ]
        for rank in ranks:
            rank.start()
        found: dict[int, Any] = {}
        problems: list[str] = []
        try:
            while len(found) < count and not problems:
                if not _readable(answers, ranks):
                    break
                number, answer, problem = answers.get()
                if problem is None:
                    found[number] = pickle.loads(answer)
                else:
                    problems.append(f"rank {number}: {problem}")
        finally:
            for rank in ranks:
                rank.join(5 if problems or len(found) < count else PATIENCE)
                if rank.is_alive():
                    rank.kill()
                    rank.join()
    if problems or len(found) < count:
        codes = [rank.exitcode for rank in ranks]
        pytest.fail("\n".join(problems) or f"ranks ended with {codes} before they answered", pytrace=False)
    return [found[rank] for rank in range(count)]


def _readable(answers: Any, ranks: list[Any]) -> bool:
    """Wait for an answer; False where all that could give one are gone, or too much time is."""
    waited = 0.0
    while not answers._reader.poll(0.05):
        waited += 0.05
        if waited > PATIENCE or not any(rank.is_alive() for rank in ranks):
            return bool(answers._reader.poll(0))
    return True


def _rank(
    rank: int, count: int, folder: str, answers: Any, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
    dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'meet'}", rank=rank, world_size=count)
    try:
        # By value: tensors would otherwise go by memory that ends with the process.
        answers.put((rank, pickle.dumps(function(*arguments)), None))
        dist.barrier()
    except BaseException:
        answers.put((rank, None, traceback.format_exc()))
        os._exit(1)  # others may wait for this one for ever: the test ends them
    dist.destroy_process_group()
