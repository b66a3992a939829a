"""Paths through attention: against the reference library's, and against all paths there are."""

import itertools

import numpy as np
import pytest
import torch
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

from qkv.errors import QkvError
from qkv.generate.alignment import align, alignment, cheapest_path, default_heads, median_filter
from qkv.models.sequence_to_sequence import Memory
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Ledger
from tests.generate.speech import EN, END, NO_TIMES, SIZES, START, TRANSCRIBE, small_model

OPENING = [START, EN, TRANSCRIBE, NO_TIMES]


def all_paths(rows, columns):
    """Every way from the first corner to the last, as lists of places."""
    if (rows, columns) == (1, 1):
        return [[(0, 0)]]
    before = [(rows - 1, columns), (rows, columns - 1), (rows - 1, columns - 1)]
    return [[*path, (rows - 1, columns - 1)] for r, c in before if r and c for path in all_paths(r, c)]


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (4, 1), (3, 5), (5, 3), (4, 4)], ids=str)
def test_no_path_is_cheaper(shape):
    cost = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    rows, columns = cheapest_path(cost)
    found = sum(cost[place] for place in zip(rows, columns, strict=True))
    assert found == pytest.approx(min(sum(cost[place] for place in path) for path in all_paths(*shape)), abs=1e-5)
    steps = [(r2 - r1, c2 - c1) for (r1, c1), (r2, c2) in itertools.pairwise(zip(rows, columns, strict=True))]
    assert set(steps) <= {(0, 1), (1, 0), (1, 1)}


@pytest.mark.parametrize("shape", [(7, 30), (20, 12)], ids=str)
def test_the_path_is_the_reference_s(shape):
    cost = np.random.default_rng(2).normal(size=shape)
    for found, expected in zip(cheapest_path(cost.astype(np.float32)), _dynamic_time_warping(cost), strict=True):
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("slots", [3, 4, 9, 40])
def test_the_median_is_the_reference_s(slots):
    values = torch.randn(2, 3, slots)
    torch.testing.assert_close(median_filter(values, 7), _median_filter(values, 7), atol=0, rtol=0)


def test_a_map_does_not_depend_on_what_lies_beyond_its_slots():
    """Weights of a window of which only a part is sound: as if the softmax had been over that part."""
    scores = torch.randn(2, 6, 20)
    torch.testing.assert_close(alignment(scores.softmax(-1)[..., :12]), alignment(scores[..., :12].softmax(-1)))


def test_tokens_begin_in_order_and_only_chosen_heads_are_kept():
    model, text = small_model(), [65, 66, 67, 68]
    memory = model.encode(torch.randn(1, SIZES.mels, 100))
    found = align(model, memory, OPENING, text, END, 30, [(0, 1), (1, 0)])
    assert len(found.begins) == len(text) + 1
    assert found.begins == sorted(found.begins)
    assert found.begins[-1] < 30
    logs = model.decode(torch.tensor([[*OPENING, *text]]), memory).log_softmax(-1)[0, len(OPENING) - 1 :]
    expected = [logs[place, token].exp().item() for place, token in enumerate(text)]
    assert found.probabilities == pytest.approx(expected, rel=1e-4)


def test_the_map_is_made_of_the_weights_in_the_ledger():
    model, text = small_model(), [65, 66, 67]
    memory = model.encode(torch.randn(1, SIZES.mels, 100))
    ids = torch.tensor([[*OPENING, *text, END]])
    ledger = Ledger(model, {"weights"})
    model.decode(ids, memory, ledger=ledger)
    weights = [
        ledger.entries[f"decoder.blocks.{layer}.cross.mixer/weights"][0][0, head] for layer, head in [(0, 1), (1, 1)]
    ]
    rows, columns = cheapest_path(-alignment(torch.stack(weights))[len(OPENING) - 1 : -1].detach().numpy())
    first = [columns[list(rows).index(row)] for row in range(len(text) + 1)]
    assert align(model, memory, OPENING, text, END, 50, [(1, 1), (0, 1)]).begins == first


def test_heads_that_are_not_there_are_refused():
    model = small_model()
    memory = Memory(torch.randn(1, 50, SIZES.width), Tokens(50))
    with pytest.raises(QkvError, match="no layer 7"):
        align(model, memory, OPENING, [65], END, 50, [(7, 0)])
    with pytest.raises(QkvError, match="no head 9"):
        align(model, memory, OPENING, [65], END, 50, [(0, 9)])
    assert default_heads(model) == [(1, 0), (1, 1)]
