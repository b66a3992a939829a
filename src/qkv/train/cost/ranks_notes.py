"""Notes of what a rank would say to others, taken while its step runs with shapes alone."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.train.cost.ranks_links import Message


class Notes:
    """All messages of a step in their order; copies of a model write into the same notes."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.uses: dict[int, int] = {}  # how often each unit of parameters was used, by its number

    def __deepcopy__(self, memory: object) -> Notes:
        return self

    def now(self, kinds: tuple[str, str], how: str, ranks: int, apart: int, x: Tensor) -> None:
        """Said where it is noted: the first kind on the way forward, the second when computed again on the way back."""
        self._add(kinds[_on_the_way_back()], how, ranks, apart, x)

    def on_the_way_back(self, kind: str, how: str, ranks: int, apart: int, x: Tensor) -> None:
        """Said when the gradient of x is known; what is computed again has one gradient alone."""
        if not _on_the_way_back():
            self._add(kind, how, ranks, apart, x)

    def use(self, number: int) -> None:
        if not _on_the_way_back():
            self.uses[number] = self.uses.get(number, 0) + 1

    def _add(self, kind: str, how: str, ranks: int, apart: int, x: Tensor) -> None:
        self.messages.append(Message(kind, how, ranks, apart, x.numel() * x.element_size()))


def _on_the_way_back() -> bool:
    return torch._C._current_graph_task_id() != -1
