"""What models there are: each family with its sizes and how many parameters they make."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from qkv.api.choices import DESK, named_sizes
from qkv.models.catalogue import FAMILIES, count_parameters, find_family
from qkv.models.family import Family
from qkv.models.head_choice import WITH_LABELS, HeadChoice

DESK_VOCABULARY = 8000  # for the parameter count of the desk size, whose vocabulary is the data's


@dataclass(frozen=True)
class FamilySize:
    """One size of a family. The parameters are counted on a model that occupies no memory."""

    family: str
    summary: str
    size: str
    published: bool
    parameters: int
    sizes: Mapping[str, Any]
    heads: tuple[str, ...]  # to choose from; none where sequences become sequences
    counted_head: str | None  # the one that is counted: the usual one, if it needs no labels


def family_sizes(family: str | None = None) -> list[FamilySize]:
    """All families with all their sizes, or those of one family."""
    families = list(FAMILIES.values()) if family is None else [find_family(family)]
    return [_described(each, size) for each in families for size in dict.fromkeys((DESK, *each.published))]


def _described(family: Family, size: str) -> FamilySize:
    if size == DESK:
        has_vocabulary = "vocabulary" in {field.name for field in fields(family.sizes_type)}
        vocabulary = {"vocabulary": DESK_VOCABULARY} if has_vocabulary else {}
        sizes = family.sizes({**named_sizes(family, DESK), **vocabulary})
    else:
        sizes = family.published[size]
    head = next((kind for kind in family.heads if kind not in WITH_LABELS), None)
    return FamilySize(
        family=family.name,
        summary=family.summary,
        size=size,
        published=size != DESK,
        parameters=parameters_of(family.name, sizes, None if head is None else HeadChoice(head)),
        sizes=asdict(sizes),
        heads=family.heads,
        counted_head=head,
    )


def parameters_of(family: str, sizes: Any, head: HeadChoice | None = None) -> int:
    """The number of parameters, told from models with one and two layers: all further ones are like the second.

    Only where there are experts or several sights, layers may differ, and groups of layers may share weights: then all
    are counted.
    """
    several_sights = len(getattr(sizes, "sights", "").split()) > 1
    if several_sights or getattr(sizes, "experts", None) is not None or getattr(sizes, "groups", 1) > 1:
        return count_parameters(family, sizes, head)
    depths = {field.name: getattr(sizes, field.name) for field in fields(sizes) if field.name.endswith("layers")}
    depths = {name: layers for name, layers in depths.items() if isinstance(layers, int)}
    shallow = replace(sizes, **dict.fromkeys(depths, 1))
    parameters = at_one = count_parameters(family, shallow, head)
    for name, layers in depths.items():
        if layers > 1:
            at_two = count_parameters(family, replace(shallow, **{name: 2}), head)
            parameters += (layers - 1) * (at_two - at_one)
    return parameters
