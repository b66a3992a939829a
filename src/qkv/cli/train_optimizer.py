"""How weights are changed: options of every training, how they become values, and a search for the learning rate."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from qkv.cli.train_ranks import DeviceOptions

if TYPE_CHECKING:
    from qkv.train.find_rate import RateSearch
    from qkv.train.schedules import Schedule

PLOT_WIDTH = 80


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions(DeviceOptions):
    optimizer: Annotated[str, typer.Option(help="adamw, adamw8bit, muon, lion or adafactor.")] = "adamw"
    schedule: Annotated[
        str | None, typer.Option(help="cosine, linear, wsd, noam or constant; by default what suits the task.")
    ] = None
    ema: Annotated[
        float | None, typer.Option(help="Keep a moving average of the weights with this decay, such as 0.999.")
    ] = None
    average: Annotated[int, typer.Option(min=0, help="Leave the mean of so many last checkpoints.")] = 0
    find_rate: Annotated[
        bool, typer.Option("--find-rate", help="Do not train: try rising rates, draw the loss and suggest a rate.")
    ] = False


def optimizer_in(run: Any, rate: float, **more: Any) -> Callable[..., Any]:
    """The optimizer that a person chose: with the rate that they chose, or one like `rate`, which suits AdamW."""
    from qkv.train.find_rate import FindRate
    from qkv.train.optimizers import chosen_optimizer

    made = chosen_optimizer(run.optimizer, suits_adamw=rate, learning_rate=run.learning_rate, **more)
    return FindRate(made) if run.find_rate else made


def schedule_in(run: Any, usual: "Schedule", warmup: int) -> "Schedule":
    """The schedule that a person chose, or the usual one of the task."""
    from qkv.train.schedules import chosen_schedule

    return usual if run.schedule is None else chosen_schedule(run.schedule, warmup)


def tell_rate(search: "RateSearch") -> NoReturn:
    """What was found, drawn and in words; the command is done."""
    from qkv.look.axes import Axis, Linear, Logarithmic
    from qkv.look.curves import Curve
    from qkv.look.text_plot import text_plot

    curves = [Curve("loss", search.rates, search.losses), Curve("its moving mean", search.rates, search.smoothed)]
    typer.echo(text_plot(curves, Axis("learning rate", Logarithmic()), Axis("loss", Linear()), width=PLOT_WIDTH))
    tried = f"from {search.rates[0]:.2g} to {search.rates[-1]:.2g}"
    if search.suggested is None:
        typer.echo(f"The loss never fell {tried}: give more data, or a --learning-rate to search around.")
    else:
        typer.echo(f"The mean loss was lowest at {search.lowest:.2g}, {tried}; nothing was trained or written.")
        typer.echo(f"Suggested: --learning-rate {search.suggested:.1g}")
    raise typer.Exit
