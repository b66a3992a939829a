"""Names become models here and nowhere else; a wrong name is answered with the nearest right one."""

from dataclasses import asdict

import pytest

from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES, build, count_parameters, find_family
from qkv.models.transformer import SIZES


def test_a_family_is_found_by_its_name() -> None:
    assert all(find_family(name).name == name for name in FAMILIES)


@pytest.mark.parametrize(("name", "hint"), [("transfromer", "did you mean transformer?"), ("qqqq", "there are transf")])
def test_an_unknown_family_is_answered_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(QkvError) as raised:
        build(name, SIZES["base"])
    assert hint in str(raised.value)


def test_an_unknown_size_is_answered_with_the_nearest() -> None:
    with pytest.raises(QkvError, match="no size called widht: did you mean width"):
        find_family("transformer").sizes({"widht": 8})


def test_a_size_like_no_other_is_answered_with_all() -> None:
    with pytest.raises(QkvError, match="there are attention_dropout, "):
        find_family("transformer").sizes({"qqqq": 8})


def test_a_missing_size_is_named() -> None:
    values = asdict(SIZES["base"])
    del values["heads"]
    with pytest.raises(QkvError, match="'heads'"):
        find_family("transformer").sizes(values)


@pytest.mark.parametrize(
    ("width", "problem"), [(10**9, "at most 100,000,000, but is 1000000000"), (-1, "0, but is -1")]
)
def test_sizes_that_no_model_has_are_refused(width: int, problem: str) -> None:
    with pytest.raises(QkvError, match=problem):
        find_family("transformer").sizes({**asdict(SIZES["base"]), "width": width})


def test_sizes_survive_a_file() -> None:
    for family in FAMILIES.values():
        for sizes in family.published.values():
            assert family.sizes(asdict(sizes)) == sizes


def test_counting_takes_no_memory_worth_mentioning() -> None:
    """A Transformer of a trillion parameters is counted all the same."""
    sizes = find_family("transformer").sizes({**asdict(SIZES["base"]), "width": 2**16, "hidden": 2**20})
    assert count_parameters("transformer", sizes) > 10**12


def test_every_family_says_what_it_is() -> None:
    assert all(family.summary and family.published for family in FAMILIES.values())
