"""Variants: names that can be folders, changes that exist, sizes on top of the common ones."""

import pytest

from qkv.api.variants import Setup, Variant, check_variants
from qkv.errors import QkvError

COMMON = Setup(sizes={"width": 32, "layers": 2}, attention="window:8", batch_rows=4)


def test_a_variant_changes_what_it_names_and_nothing_else() -> None:
    changed = COMMON.changed({"learning_rate": 0.1, "sizes": {"layers": 3}})
    assert changed == Setup(sizes={"width": 32, "layers": 3}, attention="window:8", batch_rows=4, learning_rate=0.1)
    assert COMMON.changed({"attention": None}).attention is None
    assert COMMON.changed({}) == COMMON


def test_another_family_begins_with_sizes_of_its_own() -> None:
    assert COMMON.changed({"family": "llama"}).sizes == {}
    assert COMMON.changed({"family": "llama", "sizes": {"layers": 1}}).sizes == {"layers": 1}
    assert COMMON.changed({"family": "gpt2"}).sizes == COMMON.sizes


def test_a_named_size_replaces_changes() -> None:
    assert COMMON.changed({"sizes": "desk"}).sizes == "desk"
    assert Setup(sizes="desk").changed({}).sizes == "desk"
    assert Setup(sizes="desk").changed({"sizes": {"layers": 1}}).sizes == {"layers": 1}


def test_what_cannot_be_changed_is_told() -> None:
    with pytest.raises(QkvError, match="no setting called learnin_rate: did you mean learning_rate"):
        COMMON.changed({"learnin_rate": 1})
    with pytest.raises(QkvError, match="batch_rows must be above 0"):
        COMMON.changed({"batch_rows": 0})
    with pytest.raises(QkvError, match="no attention called 'windw'"):
        COMMON.changed({"attention": "windw:3"})


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 61, "end.", "tab\tname"])
def test_names_that_make_no_folder_are_refused(name: str) -> None:
    with pytest.raises(QkvError, match="cannot be called"):
        Variant(name)


def test_names_become_folders_of_their_own() -> None:
    assert Variant("window:256+global:4").folder == "window-256+global-4"
    with pytest.raises(QkvError, match="'dense' is there twice"):
        check_variants([Variant("dense"), Variant("dense")])
    with pytest.raises(QkvError, match="in the same folder"):
        check_variants([Variant("a:b"), Variant("a b")])
    with pytest.raises(QkvError, match="nothing to compare"):
        check_variants([])
