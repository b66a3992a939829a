"""A plan for ranks beside ranks: what they hold, and what they say to each other, to the last byte."""

from __future__ import annotations

import pytest

from qkv.api.cost_ranks import plans_for
from qkv.train.cost.ranks import RankCost
from qkv.train.cost.ranks_links import EXCHANGE
from qkv.train.cost.tracer import BACKWARD, FORWARD, Trace
from qkv.train.parallel.layout import Layout
from tests.train.cost.real_ranks import LENGTH, Case, Said, steps_of_rank
from tests.train.parallel.ranks import run_ranks

GPT = {"vocabulary": 37, "width": 24, "hidden": 44, "heads": 4, "layers": 2, "dropout": 0.0,
       "embedding_dropout": 0.0, "attention_dropout": 0.0}  # fmt: skip
LLAMA = {"vocabulary": 37, "width": 24, "hidden": 44, "heads": 4, "key_value_heads": 2, "layers": 2}
SWITCH = {"vocabulary": 37, "width": 32, "key_width": 8, "hidden": 48, "heads": 4, "experts": 4,
          "encoder_layers": 2, "decoder_layers": 2}  # fmt: skip
OF_TWO = [
    Case("", sizes=GPT),
    Case("tensor:2", sizes=GPT),
    Case("replicate:2", sizes=GPT),
    Case("", sizes=GPT, accumulate=2, recompute=True),
    Case("tensor:2", "llama", LLAMA, precision="bfloat16"),
]
OF_FOUR = [
    Case("", sizes=GPT),
    Case("replicate:2", sizes=GPT),
    Case("tensor:2", sizes=GPT, recompute=True),
    Case("context:2", sizes=GPT),
    Case("context:2", "llama", LLAMA, precision="bfloat16", recompute=True),
    Case("expert:2", "switch", SWITCH),
    Case("tensor:2,expert:2", "switch", SWITCH),
]

LARGE = {**GPT, "vocabulary": 1009, "width": 144, "hidden": 500, "layers": 4}
T5 = {"vocabulary": 300, "width": 64, "key_width": 16, "hidden": 96, "heads": 4, "encoder_layers": 2,
      "decoder_layers": 2}  # fmt: skip
LARGER_OF_FOUR = [
    Case("", sizes=LARGE, precision="bfloat16", accumulate=2),
    Case("", sizes=LARGE, precision="bfloat16", recompute=True, rows=8),
    Case("replicate:4", sizes=LARGE),
    Case("replicate:2,tensor:2", sizes=LARGE, precision="bfloat16", recompute=True),
    Case("tensor:4", sizes=LARGE),
    Case("tensor:2,context:2", sizes=LARGE),
    Case("context:4", sizes=LARGE, precision="bfloat16"),
    Case("replicate:2,context:2", sizes=LARGE, recompute=True),
    Case("tensor:2", "t5", T5),
    Case("tensor:2", "bert", {"vocabulary": 300, "width": 64, "hidden": 96, "heads": 4, "layers": 2}),
    Case("expert:4", "mixtral", {**LLAMA, "experts": 4}),
    Case("context:2,expert:2", "mixtral", {**LLAMA, "experts": 4}, recompute=True),
]


def said_in(plan: RankCost) -> Said:
    found: Said = {}
    for each in plan.messages:
        found[each.how, each.ranks] = found.get((each.how, each.ranks), 0) + each.bytes * each.times
    return found


def planned(case: Case, ranks: int) -> tuple[RankCost, int]:
    """The plan, and the most bytes that a rank keeps for the way back at any time."""
    layout = Layout.parse(case.parallel).fitted(ranks)
    plans = plans_for(
        case.family, case.sizes, ranks=ranks, rows=case.rows * layout.data, length=LENGTH, device="cpu",
        precision=case.precision, accumulate=case.accumulate,
    )  # fmt: skip
    plan = plans.cost(layout, case.recompute)
    ((_, steps),) = plans.found.values()
    return plan, most_kept(steps.passes)


def most_kept(trace: Trace) -> int:
    now = most = 0
    for number, taken in trace.events:
        held = trace.held[number]
        if held.phase == FORWARD and held.freed_in == BACKWARD and not held.owner:
            now += held.bytes if taken else -held.bytes
            most = max(most, now)
    return most


@pytest.mark.parametrize(("ranks", "cases"), [(2, OF_TWO), pytest.param(4, OF_FOUR, marks=pytest.mark.slow)])
def test_ranks_hold_and_say_what_was_foretold(ranks: int, cases: list[Case]) -> None:
    check(ranks, cases)


@pytest.mark.slow
def test_more_and_larger_ones_do() -> None:
    check(4, LARGER_OF_FOUR)


def check(ranks: int, cases: list[Case]) -> None:
    real = run_ranks(ranks, steps_of_rank, cases)
    for number, case in enumerate(cases):
        plan, kept = planned(case, ranks)
        held = [of_rank[number] for of_rank in real]
        assert {each.parameters for each in held} == {plan.memory.parameters}, case
        assert {each.gradients for each in held} == {plan.memory.gradients}, case
        assert max(each.optimizer for each in held) == held[0].optimizer == plan.memory.optimizer, case
        for rank, each in enumerate(held):
            assert without_exchanges(each.said) == without_exchanges(said_in(plan)), (case, rank)
        # How many tokens a rank's experts are given is for its router to say: on average as many as it sends.
        exchanged = sum(size for each in held for (how, _), size in each.said.items() if how == EXCHANGE)
        assert exchanged == ranks * sum(size for (how, _), size in said_in(plan).items() if how == EXCHANGE), case
        if case.family != "mixtral":  # where a rank keeps what its experts were given
            assert kept == pytest.approx(held[0].activations, rel=0.035), case


def without_exchanges(said: Said) -> Said:
    return {(how, ranks): size for (how, ranks), size in said.items() if how != EXCHANGE}
