"""Cut-out stretches: nothing is lost between source and target, and the shares are those of the paper."""

import pickle
from itertools import pairwise

import numpy as np
import pytest

from qkv.data.span_corruption import SpanCorruption, corrupted, spans_of, whole_length
from qkv.data.token_rows import TokenRows
from qkv.errors import QkvError

SENTINELS = list(range(1000, 900, -1))


def put_back(source, target):
    """The text that a source and its target came from."""
    pieces, current = {}, None
    for token in target:
        if token in SENTINELS:
            pieces[token] = current = []
        else:
            current.append(token)
    return [token for each in source for token in (pieces[each] if each in SENTINELS else [each])]


@pytest.mark.parametrize("length", [1, 2, 3, 7, 40, 512])
def test_source_and_target_together_are_the_text(length):
    generator = np.random.default_rng(length)
    ids = list(range(10, 10 + length))
    for _ in range(20):
        source, target = corrupted(ids, SENTINELS, generator, 0.15, 3.0)
        assert put_back(source, target) == ids
        used = [token for token in source if token in SENTINELS]
        assert used == SENTINELS[: len(used)]
        # [raffel2020 §3.1.4]: the target has the same sentinels, and one more at its end.
        assert [token for token in target if token in SENTINELS] == SENTINELS[: len(used) + 1]
        assert target[-1] == SENTINELS[len(used)]
        assert not any(a in SENTINELS and b in SENTINELS for a, b in pairwise(source))


def test_the_shares_are_those_of_the_paper():
    lost, count = spans_of(512, 0.15, 3.0)
    assert (lost, count) == (77, 26)
    source, target = corrupted(list(range(10, 522)), SENTINELS, np.random.default_rng(0), 0.15, 3.0)
    assert len(source) == 512 - 77 + 26
    assert len(target) == 77 + 27


def test_stretches_may_begin_and_end_the_text():
    generator = np.random.default_rng(0)
    sources = [corrupted(list(range(10, 20)), SENTINELS, generator, 0.3, 1.5)[0] for _ in range(200)]
    assert any(source[0] in SENTINELS for source in sources)
    assert any(source[-1] in SENTINELS for source in sources)
    assert any(source[0] not in SENTINELS and source[-1] not in SENTINELS for source in sources)


def test_epochs_differ_and_repeat():
    texts = TokenRows.from_lists([list(range(10, 60))] * 5, 0)
    corrupt = SpanCorruption(texts, SENTINELS, end=1, start=0, seed=3)
    first, again, other = corrupt(0), corrupt(0), corrupt(1)
    assert np.array_equal(first.source.ids, again.source.ids)
    assert not np.array_equal(first.source.ids, other.source.ids)
    assert first.source[0][-1] == first.target[0][-1] == 1
    assert first.target[0][:2] == [0, SENTINELS[0]]
    assert not np.array_equal(first.source[0], first.source[1])


@pytest.mark.parametrize("length", [8, 64, 512])
def test_a_text_of_the_whole_length_fills_the_source(length):
    whole = whole_length(length)
    lost, count = spans_of(whole, 0.15, 3.0)
    assert whole - lost + count + 1 <= length
    lost, count = spans_of(whole + 1, 0.15, 3.0)
    assert whole + 1 - lost + count + 1 > length


def test_other_processes_make_the_same_rows():
    texts = TokenRows.from_lists([list(range(10, 60))] * 5, 0)
    corrupt = SpanCorruption(texts, SENTINELS, end=1, start=0, seed=3)
    assert np.array_equal(pickle.loads(pickle.dumps(corrupt))(2).source.ids, corrupt(2).source.ids)


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(QkvError, match="between 0 and 1"):
        whole_length(32, rate=1.5)
    with pytest.raises(QkvError, match="at least 3"):
        whole_length(2)
    texts = TokenRows.from_lists([list(range(100))], 0)
    with pytest.raises(QkvError, match="needs 6 sentinels, but there are 2"):
        SpanCorruption(texts, [7, 8], end=1, start=0)
    with pytest.raises(QkvError, match="between 0 and 1"):
        SpanCorruption(texts, SENTINELS, end=1, start=0, rate=1.0)
    with pytest.raises(QkvError, match="at least 1"):
        SpanCorruption(texts, SENTINELS, end=1, start=0, mean=0.5)
