"""The list of families says what the catalogue says."""

import subprocess
import sys
from dataclasses import replace

import pytest

from qkv.api.families import family_sizes, parameters_of
from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES, build, count_parameters
from qkv.models.head_choice import HeadChoice


def test_every_size_of_every_family_is_listed() -> None:
    listed = {(each.family, each.size) for each in family_sizes()}
    assert listed == {(family.name, size) for family in FAMILIES.values() for size in ("desk", *family.published)}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_small_size_has_the_parameters_that_are_listed(family: str) -> None:
    small = next(each for each in family_sizes(family) if not each.published)
    head = None if small.counted_head is None else HeadChoice(small.counted_head)
    model = build(family, FAMILIES[family].sizes(small.sizes), head)
    assert sum(parameter.numel() for parameter in model.parameters()) == small.parameters


def test_one_family_can_be_asked_for() -> None:
    assert {each.family for each in family_sizes("rnn")} == {"rnn"}
    with pytest.raises(QkvError, match="did you mean rnn"):
        family_sizes("rn")


@pytest.mark.parametrize(
    ("family", "size"),
    [
        ("reformer", "enwik8"),
        ("gpt3", "175b"),
        ("llama", "2-70b"),
        ("t5", "v1.1-small"),
        ("albert", "xxlarge"),
        ("transformer-admin", "big"),
    ],
)
def test_layers_are_multiplied_as_if_each_were_counted(family: str, size: str) -> None:
    found = next(each for each in family_sizes(family) if each.size == size)
    assert found.parameters == count_parameters(family, FAMILIES[family].published[size])


def test_counting_imports_no_compiler() -> None:
    """Which takes several seconds, and filling tensors that have no memory asks for it."""
    counted = "import sys; from qkv.api.families import family_sizes; family_sizes()"
    code = f"{counted}; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_layers_that_share_weights_in_groups_are_counted() -> None:
    sizes = replace(FAMILIES["albert"].published["base"], layers=4, groups=2, group_layers=3)
    assert parameters_of("albert", sizes) == count_parameters("albert", sizes)
