"""Work that ranks do for each other: what goes wrong on one of them is an error on all, so that none waits for ever."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from qkv.errors import QkvError
from qkv.train.parallel.world import World

Answer = TypeVar("Answer")


def by_first(world: World | None, work: Callable[[], Any]) -> Any:
    """What the first rank finds by work that it alone does; something that JSON can hold."""
    if world is None:
        return work()
    told = json.dumps(_tried(work)).encode() if world.first else None
    problem, answer = json.loads(world.from_first(told))
    if problem is not None:
        raise QkvError(problem)
    return answer


def by_each(world: World | None, work: Callable[[], Answer]) -> Answer:
    """What this rank finds, where all of them find something."""
    if world is None:
        return work()
    problem, answer = _tried(work)
    problems: list[Any] = [None] * world.size
    dist.all_gather_object(problems, problem, group=world.host)
    for each in problems:
        if each is not None:
            raise QkvError(each)
    return answer  # type: ignore[return-value]


def _tried(work: Callable[[], Answer]) -> tuple[str | None, Answer | None]:
    """(what a person should know of what went wrong, the answer)."""
    try:
        return None, work()
    except (QkvError, OSError) as error:
        return str(error), None
