"""Rules that turn the tensor names of another library into ours, and back.

A map is a list of rules. A rule says which tensors of theirs are which of ours; `{}` in a name stands for a layer's
index. Every rule owns its inverse, so what can be loaded can be exported. Nothing is skipped in silence: a tensor that
no rule takes, and one that no rule gives, are errors that name it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.weights.gather import Gather

NAMED_AT_MOST = 6  # missing tensors an error lists before it only counts them


@dataclass(frozen=True)
class Rename:
    """The same tensor under another name."""

    theirs: str
    ours: str

    @property
    def their_names(self) -> tuple[str, ...]:
        return (self.theirs,)

    @property
    def our_names(self) -> tuple[str, ...]:
        return (self.ours,)

    def to_ours(self, theirs: list[Tensor]) -> list[Tensor]:
        return theirs

    def to_theirs(self, ours: list[Tensor]) -> list[Tensor]:
        return ours


@dataclass(frozen=True)
class Flatten(Rename):
    """Theirs is ours [n …] inside a table of one row [1 n …], or of so many `axes` of one entry each."""

    axes: int = 1

    def to_ours(self, theirs: list[Tensor]) -> list[Tensor]:
        return [table.squeeze(tuple(range(self.axes))) for table in theirs]

    def to_theirs(self, ours: list[Tensor]) -> list[Tensor]:
        return [row[(None,) * self.axes] for row in ours]


@dataclass(frozen=True)
class Transpose(Rename):
    """Theirs is ours on its side: some libraries keep a matrix as [inputs outputs]."""

    def to_ours(self, theirs: list[Tensor]) -> list[Tensor]:
        return [matrix.T for matrix in theirs]

    def to_theirs(self, ours: list[Tensor]) -> list[Tensor]:
        return [matrix.T for matrix in ours]


@dataclass(frozen=True)
class Split:
    """Theirs holds several of ours, of equal size, one below the other."""

    theirs: str
    ours: tuple[str, ...]

    @property
    def their_names(self) -> tuple[str, ...]:
        return (self.theirs,)

    @property
    def our_names(self) -> tuple[str, ...]:
        return self.ours

    def to_ours(self, theirs: list[Tensor]) -> list[Tensor]:
        (joined,) = theirs
        if len(joined) % len(self.ours):
            raise QkvError(f"{self.theirs} has {len(joined)} rows, which are not {len(self.ours)} equal parts.")
        return list(joined.chunk(len(self.ours)))

    def to_theirs(self, ours: list[Tensor]) -> list[Tensor]:
        return [torch.cat(ours)]


@dataclass(frozen=True)
class SplitColumns(Split):
    """The same for a matrix that is kept as [inputs outputs]."""

    def to_ours(self, theirs: list[Tensor]) -> list[Tensor]:
        return super().to_ours([theirs[0].T])

    def to_theirs(self, ours: list[Tensor]) -> list[Tensor]:
        return [torch.cat(ours).T]


@dataclass(frozen=True)
class Drop:
    """A tensor of theirs that says nothing ours needs, and why. It may be absent, and is not exported.

    Where the other library looks for it all the same, it is exported: as a repeat of another, `written_as`, or as
    zeros of a shape.
    """

    theirs: str
    reason: str
    written_as: str | None = None
    zeros: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Copy:
    """A tensor of theirs that repeats another. It may be absent, must be equal, and is not exported."""

    theirs: str
    of: str


@dataclass(frozen=True)
class Computed:
    """A tensor of theirs that follows from the sizes, such as a table of sines. It may be absent, must be as computed
    but for rounding, and is exported.
    """

    theirs: str
    compute: Callable[[], Tensor]


Map = Sequence[Rename | Split | Gather | Drop | Copy | Computed]
Spelling = Callable[[str], str]  # from a name that rules know to how a file has it


def rename_modules(names: Iterable[tuple[str, str]], kinds: Sequence[str] = ("weight", "bias")) -> Iterator[Rename]:
    """Rules for every tensor of each module in a table of (theirs, ours)."""
    for theirs, ours in names:
        for kind in kinds:
            yield Rename(f"{theirs}.{kind}", f"{ours}.{kind}")


def as_it_is(name: str) -> str:
    return name


def to_ours(
    rules: Map, theirs: Mapping[str, Tensor], wanted: Collection[str], spelled: Spelling = as_it_is
) -> dict[str, Tensor]:
    """Our tensors from theirs; `wanted` are the names that must be filled: those of `qkv.weights.save.tensors_of`.

    What is wrong is told by their names, `spelled` as their file has them.
    """
    left = dict(theirs)
    filled: dict[str, Tensor] = {}
    for rule in rules:
        if isinstance(rule, Copy):
            _check_copy(rule, theirs)
        if isinstance(rule, Computed):
            _check_computed(rule, theirs)
        if isinstance(rule, Drop | Copy | Computed):
            for name in _matches(rule.theirs, left):
                del left[name]
        else:
            filled |= _apply(rule.their_names, rule.our_names, rule.to_ours, left, spelled)

    def sources(names: Collection[str]) -> set[str]:
        return {spelled(source) for name in names for source in sources_of(rules, name)}

    _nothing_left("The weights hold tensors that this family has no place for", set(map(spelled, left)))
    _nothing_left("The weights lack tensors", sources(set(wanted) - set(filled)))
    _nothing_left("The weights hold more layers than the model", sources(set(filled) - set(wanted)))
    return filled


def sources_of(rules: Map, ours: str) -> tuple[str, ...]:
    """Those of theirs that make one of ours: what a person finds in the file, or misses there."""
    for rule in rules:
        if isinstance(rule, Rename | Split | Gather):
            for name in rule.our_names:
                if (index := _index(name, ours)) is not None:
                    return tuple(source.format(index) for source in rule.their_names)
    return (ours,)


def check_kinds(
    rules: Map, theirs: Mapping[str, Tensor], wanted: Mapping[str, Tensor], origin: Path, spelled: Spelling = as_it_is
) -> None:
    """Each of theirs must have the shape that makes ours as `wanted`, and hold fractions where ours do."""
    for rule in rules:
        if not isinstance(rule, Rename | Split | Gather):
            continue
        for index in _indices(rule.our_names, wanted):
            names = [name.format(index) for name in rule.our_names]
            if not all(name in wanted for name in names):
                continue
            made = rule.to_theirs([wanted[name] for name in names])
            for source, expected in zip((name.format(index) for name in rule.their_names), made, strict=True):
                given = theirs.get(source, expected)
                if given.shape != expected.shape:
                    raise QkvError(
                        f"{origin} gives {spelled(source)} the shape {list(given.shape)}; by its config.json it has "
                        f"{list(expected.shape)}."
                    )
                if given.is_floating_point() != expected.is_floating_point():
                    raise QkvError(f"{origin} holds {spelled(source)} as {given.dtype}, not as {expected.dtype}.")


def to_theirs(rules: Map, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors from ours: the inverse of `to_ours`."""
    left = dict(ours)
    filled: dict[str, Tensor] = {}
    for rule in rules:
        if isinstance(rule, Computed):
            filled[rule.theirs] = rule.compute()
        elif not isinstance(rule, Drop | Copy):
            filled |= _apply(rule.our_names, rule.their_names, rule.to_theirs, left, as_it_is)
    for rule in rules:
        if isinstance(rule, Drop) and rule.written_as is not None:
            filled[rule.theirs] = filled[rule.written_as].clone()
        elif isinstance(rule, Drop) and rule.zeros is not None:
            kind = next(iter(ours.values())).dtype if rule.zeros else torch.long  # one number alone is a count
            filled[rule.theirs] = torch.zeros(rule.zeros, dtype=kind)
    _nothing_left("The other library has no place for", left)
    return filled


def _apply(
    sources: Sequence[str],
    targets: Sequence[str],
    convert: Callable[[list[Tensor]], list[Tensor]],
    left: dict[str, Tensor],
    spelled: Spelling,
) -> dict[str, Tensor]:
    """One rule at every layer where one of its sources exists; takes them out of `left`."""
    filled: dict[str, Tensor] = {}
    for index in _indices(sources, left):
        names = [source.format(index) for source in sources]
        _nothing_left("The weights lack tensors", {spelled(name) for name in names if name not in left})
        converted = convert([left.pop(name) for name in names])
        filled |= dict(zip((target.format(index) for target in targets), converted, strict=True))
    return filled


def _index(name: str, candidate: str) -> str | None:
    """The layer that stands in a candidate where a rule's name has {}; "" where it has none, None for another name."""
    before, layered, behind = name.partition("{}")
    if not layered:
        return "" if candidate == name else None
    index = candidate[len(before) : len(candidate) - len(behind)]
    return index if index.isdecimal() and candidate == before + index + behind else None


def _matches(name: str, tensors: Mapping[str, Tensor]) -> list[str]:
    if "{}" not in name:
        return [name] if name in tensors else []
    return [candidate for candidate in tensors if _index(name, candidate) is not None]


def _indices(names: Sequence[str], tensors: Mapping[str, Tensor]) -> list[str]:
    """The layers at which any of the names exists; for names without a layer, one index that stands for nothing."""
    if "{}" not in names[0]:
        return [""] if any(name in tensors for name in names) else []
    found = {index for name in names for candidate in tensors if (index := _index(name, candidate)) is not None}
    return sorted(found, key=int)


def _check_copy(rule: Copy, theirs: Mapping[str, Tensor]) -> None:
    if rule.theirs in theirs and rule.of in theirs and not torch.equal(theirs[rule.theirs], theirs[rule.of]):
        raise QkvError(f"{rule.theirs} differs from {rule.of}; a model of this family has one tensor for both.")


def _check_computed(rule: Computed, theirs: Mapping[str, Tensor]) -> None:
    if (given := theirs.get(rule.theirs)) is not None:
        expected = rule.compute()
        rounding = max(1e-5, torch.finfo(given.dtype).eps if given.is_floating_point() else 0.0)
        if given.shape != expected.shape or not torch.allclose(given.to(expected), expected, atol=rounding, rtol=0):
            raise QkvError(f"{rule.theirs} is not what every model of this family and size has there.")


def _nothing_left(complaint: str, names: Collection[str]) -> None:
    if names:
        listed = ", ".join(sorted(names)[:NAMED_AT_MOST])
        more = len(names) - NAMED_AT_MOST
        raise QkvError(f"{complaint}: {listed}{f' and {more} more' if more > 0 else ''}.")
