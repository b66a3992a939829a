"""`qkv cost --ranks`: what a training takes of each of many GPUs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from qkv.cli.cost import gibibytes, scaled, spent
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.api.cost_ranks import Plans
    from qkv.train.cost.ranks import RankCost

SHOWN = 8  # layouts that are suggested


def tell(
    model: Any, common: dict[str, Any], parallel: str, recompute: bool, suggest: bool, as_json: bool
) -> None:  # fmt: skip
    from qkv.api.cost_ranks import plans_for
    from qkv.train.parallel.layout import Layout

    plans = plans_for(model, **common)
    if suggest:
        if parallel:
            raise QkvError("--suggest looks for a layout, and --parallel gives one: leave out one of the two.")
        _suggested(plans.best(recompute), as_json)
        return
    layout = Layout.parse(parallel)
    found = plans.cost(layout, recompute)
    if as_json:
        typer.echo(json.dumps(found.record(), indent=2))
    else:
        _show(found, plans, layout, recompute)


def _suggested(found: list[RankCost], as_json: bool) -> None:
    if not found:
        raise QkvError("No layout of so many ranks suits this model and so many rows: give other numbers of them.")
    if as_json:
        typer.echo(json.dumps([each.record() for each in found], indent=2))
        return
    table = _table(["layout", "memory", "sent", "between", "step", "of peak", ""])
    for each in found[:SHOWN]:
        within, across = (sum(sent[at] for sent in each.sent().values()) for at in (0, 1))
        table.add_row(
            each.layout,
            gibibytes(each.memory.total),
            gigabytes(within + across),
            gigabytes(across),
            "" if each.seconds is None else spent(each.seconds),
            "" if each.fraction_of_peak is None else f"{100 * each.fraction_of_peak:.1f}%",
            "" if each.fits is not False else "does not fit",
        )
    _print(table)
    typer.echo("Sent by a rank in a step, and how much of it between nodes.")


def _show(found: RankCost, plans: Plans, layout: Any, recompute: bool) -> None:
    memory = found.memory
    nodes = -(-found.ranks // found.per_node)
    room = "" if not found.device_memory else f"of {gibibytes(found.device_memory)}"
    table = _table(None)
    typer.echo(f"{found.ranks} ranks as {found.layout}, on {nodes} node{'s' * (nodes > 1)} of {found.per_node}")
    table.add_row("parameters", f"{found.parameters:,}", "")
    table.add_row("operations of a step", scaled(found.flops) + "FLOP", "of all ranks together")
    table.add_row("memory of a rank", gibibytes(memory.total), room)
    for name in ("parameters", "gradients", "optimizer", "activations", "gathered", "temporary"):
        table.add_row(f"  {name}", gibibytes(getattr(memory, name)), "")
    for kind, (within, across, seconds) in found.sent().items():
        if kind != "figures":
            between = f"{gigabytes(across)} between nodes, " if across else ""
            table.add_row(f"sent: {kind}", gigabytes(within + across), f"{between}{spent(seconds)}")
    if found.seconds is not None and found.waiting_seconds is not None:
        share = "" if found.fraction_of_peak is None else f"{100 * found.fraction_of_peak:.1f}% of the devices' peak"
        table.add_row("time of a step", spent(found.seconds), share)
        table.add_row("  waiting for others", spent(found.waiting_seconds), "the rest of what is sent hides")
        table.add_row(f"{found.counts} a second", f"{found.per_second:,.0f}", "of all ranks together")
        if found.total_seconds is not None and found.steps != 1:
            from qkv.train.reporter import duration

            table.add_row(f"time of {found.steps:,} steps", duration(found.total_seconds), "")
    _print(table)
    if found.fits is False:
        assert found.device_memory is not None
        typer.echo(
            f"It does not fit, for {gibibytes(memory.total)} are more than {gibibytes(found.device_memory)}; "
            f"{plans.fitting(layout, recompute)}."
        )


def _table(columns: list[str] | None) -> Any:
    from rich.table import Table

    table = Table(box=None, show_header=columns is not None, pad_edge=False)
    for number, name in enumerate(columns or ["", "", ""]):
        left = number == 0 or (columns is None and number == 2)
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    return table


def _print(table: Any) -> None:
    from rich.console import Console

    Console(highlight=False).print(table)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.2f} MB"
