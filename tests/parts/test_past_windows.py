"""What trials are made of that pass a window."""

from __future__ import annotations

import pytest
import torch

from qkv.parts.attention.attention import Attention
from qkv.parts.attention.visibility import (
    Causal,
    Chunks,
    Everything,
    Fixed,
    GlobalTokens,
    Mask,
    NotPadding,
    Rule,
    Strided,
    Tokens,
    Window,
)
from qkv.parts.block import Block
from qkv.parts.past_windows import BEYOND, LOUDEST, Passed, fill_past, passed, row_past, spans, spans_of

RULES: list[tuple[Rule, set[int]]] = [
    (Everything(), set()),
    (Causal() & NotPadding(), set()),
    (Causal() & Window(5), {5}),
    (Window(3, 2), {2, 6}),
    (Causal() & (Window(4) | Strided(4)), {4}),
    (Causal() & Fixed(6, 1), {6}),
    (Chunks(4, 1, 0), {4, 8}),
    (~Window(7), {7}),
    (Window(3) | GlobalTokens(2), {2, 3}),
]


@pytest.mark.parametrize(("rule", "expected"), RULES)
def test_the_spans_of_a_rule_are_those_of_all_rules_in_it(rule: Rule, expected: set[int]) -> None:
    assert spans(rule) == expected
    block = Block(attention=Attention(8, 2, visibility=rule))
    assert spans_of(block) == expected


@pytest.mark.parametrize("rule", [Window(5), Window(7, 1), Fixed(6, 1), Chunks(4, 1, 0), GlobalTokens(3)])
def test_rows_no_longer_than_every_span_see_as_if_there_were_no_rule(rule: Rule) -> None:
    least = min(spans(rule))
    for size in (least, least + 1):
        tokens = Tokens(size)
        assert bool(Mask(rule, tokens, tokens, "cpu").dense.all()) == (size == least)


def test_rows_are_tried_as_long_as_they_are_and_up_to_two_windows() -> None:
    assert passed({10, 700}, 10) == []
    assert passed({700, 10}, 15) == [Passed(10, 15)]
    assert passed({700, 10}, 701) == [Passed(10, 20), Passed(700, 701)]
    assert passed([700], 9000) == [Passed(700, 1400)]


def test_the_same_trial_serves_rows_that_pass_a_window_by_about_as_much() -> None:
    kinds = [passed([700], length)[0].kind for length in (701, 702, 703, 1000, 1024, 1025, 1400, 50_000)]
    assert kinds[1] == kinds[2]
    assert kinds[3] == kinds[4] != kinds[5]  # other programs are for longer rows
    assert kinds[6] == kinds[7]
    assert len(set(kinds)) == 5


def test_a_row_ends_in_tokens_that_are_unlike_those_it_may_not_see() -> None:
    row = row_past(torch.zeros(1, 1, 64), 24, 20, 12)[0]
    first, last = row[:8].mean(0), row[8:].mean(0)
    assert torch.nn.functional.cosine_similarity(first, last, 0) < 0.6
    assert (row[:8] - first).norm() < 8**0.5 * (first - last).norm()


@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
@pytest.mark.parametrize("span", [5, 700, 40_000])
def test_slots_at_a_windows_edge_are_heard_among_all_others(kind: torch.dtype, span: int) -> None:
    place = 3 + span + BEYOND
    keys, values = (torch.full((1, 2, place + 1, 4), 7, dtype=kind) for _ in range(2))
    fill_past((keys, values), [span], 3, place)
    for each in (keys, values):
        assert bool(each.isfinite().all())
        assert bool((each[:, :, :3] == 7).all())
        assert bool((each[:, :, place:] == 7).all())
    all_but_seen = values.float()[:, :, 3 : place - span + 1]  # one more than the first token behind may not see
    assert float(all_but_seen.square().mean().sqrt()) > 0.5 * min(span, LOUDEST)
