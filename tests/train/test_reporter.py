"""A terminal sees a bar, a pipe sees plain lines."""

import io

import pytest
from rich.console import Console

from qkv.train.reporter import Reporter, duration, short

RECORD = {
    "step": 1200, "loss": 3.14159, "tokens_per_second": 12345.6, "learning_rate": 3e-4, "seconds": 60.0, "skipped": 0,
}  # fmt: skip


def test_a_pipe_gets_plain_lines() -> None:
    stream = io.StringIO()
    with Reporter(Console(file=stream)) as reporter:
        reporter.train(RECORD, progress=0.25)
        reporter.train({**RECORD, "loss": None, "skipped": 2, "tokens_per_second": None}, progress=0.0)
        reporter.train({**RECORD, "flops_utilisation": 0.423, "data_wait_share": 0.25}, progress=0.25)
        reporter.train({**RECORD, "data_wait_share": 0.02}, progress=0.25)
        reporter.evaluation(1200, {"loss": 2.5, "perplexity": 12.18249}, improved=True)
        reporter.say("[bold]a path in brackets[/bold]")
    assert stream.getvalue().splitlines() == [
        "step 1,200  loss 3.142  12.3k tokens/s  rate 3.00e-04  3m00s left",
        "step 1,200  loss none  ? tokens/s  rate 3.00e-04  ? left  2 skipped",
        "step 1,200  loss 3.142  12.3k tokens/s  rate 3.00e-04  3m00s left  42% of the device  25% waiting for data",
        "step 1,200  loss 3.142  12.3k tokens/s  rate 3.00e-04  3m00s left",
        "step 1,200  validation: loss 2.5  perplexity 12.18  (best so far)",
        "[bold]a path in brackets[/bold]",
    ]


def test_a_terminal_gets_a_bar_that_moves() -> None:
    stream = io.StringIO()
    with Reporter(Console(file=stream, force_terminal=True, width=140)) as reporter:
        reporter.train(RECORD, progress=0.25)
        reporter.say("a message")
    shown = stream.getvalue()
    assert "25%" in shown
    assert "step 1,200  loss 3.142" in shown
    assert "a message" in shown


def test_the_time_left_follows_the_pace_of_late() -> None:
    """The first updates are slow, and then others begin to use the cores."""
    reporter = Reporter(Console(file=io.StringIO()))
    told = []
    for seconds, progress in [(10, 0.1), (12, 0.2), (14, 0.3), (16, 0.4), (36, 0.6), (56, 0.8), (76, 1.0)]:
        reporter.train({**RECORD, "seconds": seconds}, progress)
        told.append(reporter.left)
    assert told == pytest.approx([90.0, 16.0, 14.0, 12.0, 88 / 3, 20.0, 0.0])


@pytest.mark.parametrize(
    ("number", "text"), [(None, "?"), (999, "999"), (1500, "1.5k"), (2.5e6, "2.5M"), (3e9, "3.0G")]
)
def test_short_numbers(number: float | None, text: str) -> None:
    assert short(number) == text


@pytest.mark.parametrize(("seconds", "text"), [(None, "?"), (59.4, "59s"), (61, "1m01s"), (3720, "1h02m")])
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
