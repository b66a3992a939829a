"""How the ranks of a training share its work."""

import math
from dataclasses import dataclass, fields, replace
from typing import Self

from qkv.errors import QkvError, nearest_or_all

EXAMPLE = "such as tensor:2,context:2"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Ranks for each way of sharing; together they are replicate · shard · context · tensor.

    `shard` ranks hold a part of every block and see rows of their own (FSDP) [zhao2023 §3]; `replicate` such groups
    hold the same. `context` ranks read a part of each row [liu2023 §3], `tensor` ranks a part of each matrix
    [shoeybi2019 §3]. `expert` of the ranks that see rows of their own keep different experts [lepikhin2021 §3.2].
    """

    replicate: int = 1
    shard: int = 0  # 0: all ranks that nothing else is said of
    context: int = 1
    tensor: int = 1
    expert: int = 1

    def __post_init__(self) -> None:
        for each in fields(self):
            least = 0 if each.name == "shard" else 1
            if getattr(self, each.name) < least:
                raise QkvError(
                    f"The layout needs {least} rank or more for {each.name}, not {getattr(self, each.name)}."
                )

    @classmethod
    def parse(cls, text: str) -> Self:
        """`tensor:2,context:2`, as it is spelled on the command line."""
        names = [each.name for each in fields(cls)]
        found: dict[str, int] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, number = part.partition(":")
            if name not in names:
                raise QkvError(f"There is no way to share work called {name!r}: {nearest_or_all(name, names)}")
            if not number.isdecimal():
                raise QkvError(f"{part!r} does not say how many ranks: give a number for each, {EXAMPLE}.")
            if name in found:
                raise QkvError(f"The layout {text!r} names {name} twice: give one number.")
            found[name] = int(number)
        return cls(**found)

    def fitted(self, ranks: int) -> Self:
        """The layout of so many ranks: those left over shard."""
        others = self.replicate * self.context * self.tensor
        shard = self.shard or max(1, ranks // others)
        fitted = replace(self, shard=shard)
        if others * shard != ranks:
            told = " · ".join(f"{name} {getattr(fitted, name)}" for name in ("replicate", "shard", "context", "tensor"))
            raise QkvError(f"{ranks} ranks cannot be laid out as {told}: start {others * shard}, or change the layout.")
        if fitted.data % self.expert:
            raise QkvError(
                f"Experts on {self.expert} ranks need a multiple of as many that see rows of their own, and there are "
                f"{fitted.data}: change expert, or start more ranks."
            )
        return fitted

    @property
    def data(self) -> int:
        """Groups of ranks that see rows of their own."""
        return self.replicate * self.shard

    @property
    def ranks(self) -> int:
        return math.prod((self.replicate, self.shard, self.context, self.tensor))

    def __str__(self) -> str:
        told = [f"{each.name}:{getattr(self, each.name)}" for each in fields(self) if getattr(self, each.name) > 1]
        return ",".join(told) or "shard:1"
