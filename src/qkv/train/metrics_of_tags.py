"""How many names were found: F1 over whole entities, as tags like B-PER I-PER O mark them."""

from collections.abc import Sequence
from typing import NamedTuple

from qkv.errors import QkvError


class Entity(NamedTuple):
    kind: str
    first: int  # word
    last: int


class EntityScore(NamedTuple):
    """Over all entities of all sentences, each found exactly or not at all."""

    precision: float
    recall: float
    f1: float


def entity_score(said: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> EntityScore:
    """An entity counts if its kind and both its ends are right. [tjongkimsang2003]"""
    if len(said) != len(right) or not right:
        raise QkvError(f"A score needs right tags for each sentence, but there are {len(said)} and {len(right)}.")
    hits = found = wanted = 0
    for number, (mine, theirs) in enumerate(zip(said, right, strict=True)):
        if len(mine) != len(theirs):
            raise QkvError(f"Sentence {number} has {len(mine)} tags, but {len(theirs)} right ones.")
        guesses, names = set(entities(mine)), set(entities(theirs))
        hits += len(guesses & names)
        found += len(guesses)
        wanted += len(names)
    return EntityScore(
        hits / found if found else 0.0,
        hits / wanted if wanted else 0.0,
        2 * hits / (found + wanted) if found + wanted else 0.0,
    )


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities that tags mark, in the schemes IOB1, IOB2, IOE and IOBES alike.

    B and S begin one, E and S end one, another kind or O ends one; I and E begin one where none of their kind goes on.
    """
    found: list[Entity] = []
    kind, first = "", -1  # the entity under way, if first is not -1

    def close(last: int) -> None:
        nonlocal first
        if first >= 0:
            found.append(Entity(kind, first, last))
        first = -1

    for word, tag in enumerate(tags):
        mark, _, name = tag.partition("-")
        if mark not in {"B", "I", "E", "S", "O"} or (mark != "O" and not name):
            raise QkvError(f"The tag {tag!r} marks no entity: tags are O, or B-, I-, E- or S- with a kind.")
        if mark in {"O", "B", "S"} or name != kind:
            close(word - 1)
        if mark != "O":
            if first < 0:
                kind, first = name, word
            if mark in {"E", "S"}:
                close(word)
    close(len(tags) - 1)
    return found
