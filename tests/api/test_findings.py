"""What is said of variants follows from their figures: made-up runs whose standing is known."""

from dataclasses import replace

from qkv.api.comparison import Comparison, Moment, Outcome, Run, Speed, table
from qkv.api.comparison_page import caveats, plots
from qkv.api.findings import Findings, findings
from qkv.train.by_context import ContextBits


def run(
    seed: int, bits: list[float], seconds: float, contexts: tuple[float, float] = (3.0, 2.0), memory: int | None = None
) -> Run:
    """Evaluated at equal steps of 10; `seconds` each."""
    moments = tuple(
        Moment(10 * place, 1000 * place, 1e15 * place, seconds * place, value) for place, value in enumerate(bits, 1)
    )
    last = moments[-1]
    parts = (ContextBits(1, 64, 100, contexts[0]), ContextBits(65, 128, 100, contexts[1]))
    return Run(seed, 7, last.step, last.tokens, last.flops, last.seconds, min(bits), memory, moments, parts)


def outcome(name: str, *runs: Run) -> Outcome:
    return Outcome(name, {}, runs)


def said(comparison: Comparison, name: str) -> Findings:
    return next(each for each in findings(comparison) if each.name == name)


def test_a_faster_variant_that_learns_less_a_step_wins_by_time_and_loses_by_steps() -> None:
    dense = outcome("dense", run(0, [3.0, 2.0, 1.5], seconds=10.0))
    quick = outcome("quick", run(0, [3.2, 2.2, 1.7], seconds=2.0))
    found = said(Comparison({}, (dense, quick)), "quick")
    assert "at equal steps (30) 0.200 bits behind dense" in found.behind
    assert "at equal operations (3 PFLOP) 0.200 bits behind dense" in found.behind
    assert "when the budget is spent 0.200 bits behind dense, the best" in found.behind
    assert "5.00 times the tokens a second of dense" in found.ahead
    # quick was evaluated up to 6 s, dense from 10 s on: nobody knows at equal time
    assert any("at equal training time (6.0 s)" in line for line in found.undecided)
    slow = outcome("dense", run(0, [3.0, 2.9, 2.8], seconds=2.0))
    assert (
        "at equal training time (6.0 s) 1.100 bits ahead of dense" in said(Comparison({}, (slow, quick)), "quick").ahead
    )


def test_seeds_that_overlap_tell_nothing() -> None:
    one = outcome("one", run(0, [2.0, 1.50], 1.0), run(1, [2.0, 1.60], 1.0))
    two = outcome("two", run(0, [2.0, 1.58], 1.0), run(1, [2.0, 1.62], 1.0))
    found = said(Comparison({}, (one, two)), "two")
    assert "at equal steps (20) 0.050 bits behind one, within the range of seeds" in found.undecided
    assert not any("steps" in line for line in found.behind)
    far = outcome("two", run(0, [2.0, 1.70], 1.0), run(1, [2.0, 1.72], 1.0))
    assert "at equal steps (20) 0.160 bits behind one" in said(Comparison({}, (one, far)), "two").behind


def test_context_and_memory_are_told() -> None:
    dense = outcome("dense", run(0, [2.0, 1.5], 1.0, contexts=(3.0, 2.0), memory=4_000_000_000))
    near = outcome("near", run(0, [2.0, 1.5], 1.0, contexts=(2.9, 2.4), memory=1_000_000_000))
    found = said(Comparison({}, (dense, near)), "near")
    assert "with 65 to 128 tokens of context 0.400 bits behind dense" in found.behind
    assert "0.25 times the peak memory of dense" in found.ahead
    assert "at equal steps (20) level with dense" in found.undecided


def test_who_leads_along_the_way_is_told() -> None:
    early = outcome("early", run(0, [2.0, 1.9, 1.8], 1.0))
    late = outcome("late", run(0, [2.5, 1.95, 1.5], 1.0))
    both = Comparison({}, (early, late))
    assert "the best of all from 1.0 s to 2.0 s of training" in said(both, "early").ahead
    assert "the best of all at 3.0 s of training" in said(both, "late").ahead
    assert "when the budget is spent the best of all, 0.300 bits ahead of early" in said(both, "late").ahead


def test_speed_by_length_is_told() -> None:
    made = run(0, [2.0], 1.0)
    dense = Outcome(
        "dense", {}, (made,), (Speed(64, 1, 10.0, None), Speed(128, 1, 5.0, None), Speed(256, 1, None, None))
    )
    near = Outcome("near", {}, (made,), (Speed(64, 1, 8.0, None), Speed(128, 1, 15.0, None), Speed(256, 1, 7.0, None)))
    found = said(Comparison({}, (dense, near)), "near")
    assert "times the speed of dense on rows of so many tokens: 3.00 at 128" in found.ahead
    assert "times the speed of dense on rows of so many tokens: 0.80 at 64" in found.behind
    assert "it takes a step on a row of 256 tokens, and dense cannot" in found.ahead
    turned = said(Comparison({}, (near, dense)), "dense")
    assert "a step on a row of 256 tokens, which near takes, cannot be taken" in turned.behind


def test_one_variant_is_compared_with_nobody() -> None:
    alone = said(Comparison({}, (outcome("alone", run(0, [2.0], 1.0)),)), "alone")
    assert (alone.ahead, alone.behind, alone.undecided) == ([], [], [])


def test_between_evaluations_a_line_is_drawn() -> None:
    made = run(0, [3.0, 2.0], seconds=10.0)
    assert made.at("seconds", 15.0) == 2.5
    assert made.at("seconds", 10.0) == 3.0
    assert made.at("step", 20) == 2.0
    assert made.at("seconds", 9.9) is None
    assert made.at("seconds", 20.1) is None


def test_the_table_has_means_and_ranges_and_says_what_is_unknown() -> None:
    made = outcome("two", run(0, [2.0, 1.5], 1.0), run(1, [2.0, 1.7], 1.0))
    line = table(Comparison({}, (made,))).splitlines()[2]
    assert "| two | 1.600 (1.500 to 1.700) | 2 | 20 | 2.0 | 2 | 1,000 | unknown | 7 |" == line


def test_plots_are_drawn_of_what_was_measured_only() -> None:
    known = outcome("known", run(0, [2.0, 1.5], 1.0, memory=10**9))
    files = [plot.file for plot in plots(Comparison({}, (known,)))]
    assert files == ["time.png", "operations.png", "steps.png", "memory.png", "context.png"]
    unknown = Outcome("unknown", {}, (run(0, [2.0, 1.5], 1.0),), (Speed(64, 1, 10.0, None), Speed(128, 1, None, None)))
    found = {plot.file: plot for plot in plots(Comparison({}, (unknown,)))}
    assert list(found) == ["time.png", "operations.png", "steps.png", "context.png", "speed.png"]
    assert list(found["speed.png"].curves[0].x)[:1] == [64]


def test_a_page_says_whose_steps_were_not_recorded() -> None:
    dense, reversible = (
        outcome(name, replace(run(0, [2.0, 1.5], seconds=1.0), replayed=replayed))
        for name, replayed in (("dense", 0.9), ("reversible", 0.0))
    )
    *_, told = caveats(Comparison({}, (dense, reversible)))
    assert "operator by operator" in told
    assert told.endswith(": reversible.")
    *_, told = caveats(Comparison({}, (dense,)))
    assert "no variant waits for the host" in told
