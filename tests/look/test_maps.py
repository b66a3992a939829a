import numpy as np
import pytest

from qkv.errors import QkvError
from qkv.look.maps import NOTEBOOK_LIMIT, AttentionMap, AttentionRecord, Kind
from tests.look.fabricated import distributions, fabricate


def test_the_most_telling_kind_comes_first_and_layers_keep_their_order():
    record = fabricate(layers=2)
    assert record.kinds == (Kind.CROSS, Kind.ENCODER, Kind.DECODER)
    assert [each.name for each in record.of(Kind.CROSS)] == [f"decoder.blocks.{layer}.cross.mixer" for layer in (0, 1)]


def test_an_average_is_the_mean_over_layers_and_heads_and_its_rows_sum_to_one():
    record = fabricate(layers=3, heads=4)
    weights = np.concatenate([each.weights for each in record.of(Kind.ENCODER)])
    average = record.average(Kind.ENCODER)
    np.testing.assert_allclose(average.weights[0], weights.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(average.weights.sum(axis=-1), 1, rtol=1e-6)
    assert average.queries == record.of(Kind.ENCODER)[0].queries


def test_the_average_of_a_kind_that_is_not_there_is_a_clear_error():
    record = fabricate()
    cross_only = AttentionRecord(record.source, record.target, record.of(Kind.CROSS))
    assert cross_only.average().kind is Kind.CROSS
    with pytest.raises(QkvError, match="no encoder self attention; it has cross"):
        cross_only.average(Kind.ENCODER)


def test_weights_that_do_not_fit_their_labels_are_a_clear_error():
    with pytest.raises(QkvError, match=r"\[2, 3, 4\].*3 queries, 5 keys"):
        AttentionMap("mixer", Kind.CROSS, distributions(2, 3, 4, seed=0), ("a",) * 3, ("b",) * 5)


def test_a_record_needs_maps():
    with pytest.raises(QkvError, match="at least one"):
        AttentionRecord("a", "b", ())


def test_repr_tells_the_story_in_a_few_lines():
    lines = repr(fabricate(layers=2, heads=3)).splitlines()
    assert lines[0] == "AttentionRecord: 'knight' -> 'N AY T'"
    assert " ".join(lines[1].split()) == "cross 2 layers × 3 heads, 4 queries × 7 keys"
    assert len(lines) == 4


def test_the_notebook_shows_labels_and_escapes_them():
    page = fabricate(source=("<b>", "k"), target=("N",))._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


def test_the_notebook_says_what_it_leaves_out():
    page = fabricate(source=("k",) * 100)._repr_html_()
    assert page.count('scope="col"') == NOTEBOOK_LIMIT
    assert f"{NOTEBOOK_LIMIT} of 101 columns" in page
    assert "Too large" not in fabricate()._repr_html_()
