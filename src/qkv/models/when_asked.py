"""A table whose values are in files of their own, of which only those are opened that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

Home = TypeVar("Home")
Value = TypeVar("Value")


class WhenAsked(Mapping[str, Value], Generic[Home, Value]):
    """Values by their names; `fetch` makes one of its name and its home when it is first asked for.

    A program that needs one family of models does not wait for all of them.
    """

    def __init__(self, homes: Mapping[str, Home], fetch: Callable[[str, Home], Value]) -> None:
        self.homes, self._fetch = homes, fetch
        self._fetched: dict[str, Value] = {}

    def __getitem__(self, name: str) -> Value:
        if name not in self._fetched:
            self._fetched[name] = self._fetch(name, self.homes[name])
        return self._fetched[name]

    def __contains__(self, name: object) -> bool:
        return name in self.homes

    def __iter__(self) -> Iterator[str]:
        return iter(self.homes)

    def __len__(self) -> int:
        return len(self.homes)
