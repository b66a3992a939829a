"""What models there are: each family with its sizes and how many parameters they make."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from qkv.api.choices import SMALL, named_sizes
from qkv.models.catalogue import FAMILIES, Family, count_parameters, find_family

SMALL_VOCABULARY = 8000  # for the parameter count of the small size, whose vocabulary is the data's


@dataclass(frozen=True)
class FamilySize:
    """One size of a family. The parameters are counted on a model that occupies no memory."""

    family: str
    summary: str
    size: str
    published: bool
    parameters: int
    sizes: Mapping[str, Any]


def family_sizes(family: str | None = None) -> list[FamilySize]:
    """All families with all their sizes, or those of one family."""
    families = list(FAMILIES.values()) if family is None else [find_family(family)]
    return [_described(each, size) for each in families for size in (SMALL, *each.published)]


def _described(family: Family, size: str) -> FamilySize:
    if size == SMALL:
        sizes = family.sizes({**named_sizes(family, SMALL), "vocabulary": SMALL_VOCABULARY})
    else:
        sizes = family.published[size]
    return FamilySize(
        family=family.name,
        summary=family.summary,
        size=size,
        published=size != SMALL,
        parameters=count_parameters(family.name, sizes),
        sizes=asdict(sizes),
    )
