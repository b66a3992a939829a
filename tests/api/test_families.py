"""The list of families says what the catalogue says."""

import pytest

from qkv.api.families import family_sizes
from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES, build


def test_every_size_of_every_family_is_listed() -> None:
    listed = {(each.family, each.size) for each in family_sizes()}
    assert listed == {(family.name, size) for family in FAMILIES.values() for size in ("small", *family.published)}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_small_size_has_the_parameters_that_are_listed(family: str) -> None:
    small = next(each for each in family_sizes(family) if not each.published)
    model = build(family, FAMILIES[family].sizes(small.sizes))
    assert sum(parameter.numel() for parameter in model.parameters()) == small.parameters


def test_one_family_can_be_asked_for() -> None:
    assert {each.family for each in family_sizes("rnn")} == {"rnn"}
    with pytest.raises(QkvError, match="did you mean rnn"):
        family_sizes("rn")
