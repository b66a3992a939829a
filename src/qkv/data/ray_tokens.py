"""Tokenised shards made by many machines: a Ray Data job of the very function that one machine runs."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from qkv.data.making_tokens import Made
from qkv.data.table import Problem
from qkv.data.token_shards import TokenShards
from qkv.errors import QkvError


def tokenize_with_ray(shards: TokenShards, made: Callable[[int, Made], None] | None = None) -> None:
    """Make all shards that are not there yet, each as a task with one core, wherever Ray has one free.

    Sources and folder must be at the same place on every machine, such as on a shared file system, and qkv be installed
    there. Which cluster it is Ray finds by itself (`RAY_ADDRESS`); with none it starts one on this machine.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise QkvError("Tokenising with Ray needs it: pip install 'qkv[ray]'.") from error
    numbers = [{"shard": number} for number in range(len(shards))]
    work = ray.data.from_items(numbers, override_num_blocks=len(numbers)).map(_Task(shards), num_cpus=1)
    try:
        shards.follow((_made(row) for row in work.iter_rows()), made)
    except ray.exceptions.RayError as error:
        raise QkvError(f"Ray could not make the tokens: {str(error).strip().splitlines()[-1]}") from error


def _made(row: dict[str, Any]) -> tuple[int, Made]:
    if row["error"]:
        raise QkvError(row["error"])
    said = json.loads(row["made"])
    return int(row["shard"]), Made(**{**said, "problems": [Problem(**problem) for problem in said["problems"]]})


class _Task:
    """What a machine of the cluster is sent: the shards, of which it makes one at a time."""

    def __init__(self, shards: TokenShards) -> None:
        self.shards = shards
        self.__name__ = "tokenise"  # as Ray's progress calls it

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        number = int(row["shard"])
        try:
            return {"shard": number, "made": json.dumps(asdict(self.shards.ensure(number))), "error": ""}
        except QkvError as error:
            return {"shard": number, "made": "", "error": str(error)}
