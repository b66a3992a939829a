"""`qkv cost`: what a training will take, before it is started."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.api.cost_ranks import RankCost
    from qkv.train.cost.prediction import Cost

MEASURE = "qkv cost --measure"
PER_NODE = 8
LAYOUTS = 8  # that are suggested


def cost(
    family: Annotated[str | None, typer.Option(help="Family of the model; `qkv models` lists them.")] = None,
    size: Annotated[str, typer.Option(help="A named size, changes to the desk size (width=128), or both.")] = "desk",
    model: Annotated[str | None, typer.Option(help="A model that exists, in place of a family.")] = None,
    head: Annotated[str | None, typer.Option(help="Of the model, where its family has several.")] = None,
    attention: Annotated[str | None, typer.Option(help="Another than the family's own, such as window:256.")] = None,
    vocabulary: Annotated[int | None, typer.Option(min=1, help="Tokens that there are; else by the size.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows, or pictures, of a batch.")] = 8,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens of a row; 256 for texts.")] = None,
    target_length: Annotated[int | None, typer.Option(min=1, help="Of a target row; else as long as a source.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Of the run.")] = None,
    accumulate: Annotated[int, typer.Option(min=1, help="Batches for each update.")] = 1,
    recompute: Annotated[bool, typer.Option("--recompute", help="Blocks are computed twice and keep nothing.")] = False,
    record: Annotated[
        bool | None,
        typer.Option("--record/--no-record", help="Whether steps are launched as one recorded graph, if not as usual."),
    ] = None,
    ranks: Annotated[int | None, typer.Option(min=2, help="So many GPUs share the rows: the plan of one.")] = None,
    parallel: Annotated[str | None, typer.Option(help="How they share the work: tensor:8; the rest shard.")] = None,
    per_node: Annotated[int | None, typer.Option(min=1, help="GPUs of a node; 8 if nothing is said.")] = None,
    links: Annotated[
        str | None, typer.Option(help="GB/s that a GPU sends: within:450,between:50, if nothing is said.")
    ] = None,
    suggest: Annotated[bool, typer.Option("--suggest", help="The best layouts of so many ranks.")] = False,
    precision: Annotated[str, typer.Option(help="float32 or bfloat16; auto: bfloat16 on a GPU.")] = "auto",
    optimizer: Annotated[str, typer.Option(help="adamw, adamw8bit, muon, lion or adafactor.")] = "adamw",
    device: Annotated[str, typer.Option(help="One that was measured, such as h200, or cpu, cuda or auto.")] = "auto",
    forward_only: Annotated[bool, typer.Option("--forward-only", help="A pass that learns nothing.")] = False,
    measure: Annotated[bool, typer.Option("--measure", help="Measure this machine's device first.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """Tell what a step of training takes: parameters, operations, memory, and time on a device that was measured.

    One step is taken with shapes alone, by the code that trains, so nothing is allocated and the device need not be
    there. `qkv cost --measure` measures the device of this machine once, in less than a minute.

    \b
    Example:
      qkv cost --family gpt2 --size base --rows 32 --length 1024 --steps 1000 --device h200 --precision bfloat16
      qkv cost --family gpt2 --size base --rows 1 --length 8192 --attention window:512 --device cuda
      qkv cost --family llama --size 2-7b --rows 512 --length 4096 --ranks 512 --device h200 --precision bfloat16
    """
    if measure:
        device = measured(device)
        if family is None and model is None:
            return
    if (family is None) == (model is None):
        raise QkvError("Say what to price: --family with --size, or --model for one that exists.")
    from qkv.api.cost import cost as predicted
    from qkv.train.optimizers import chosen_optimizer

    if forward_only and optimizer != "adamw":
        raise QkvError("--forward-only learns nothing, so --optimizer does nothing: give one of the two.")
    common: dict[str, Any] = {
        "rows": rows, "length": length, "target_length": target_length, "steps": steps, "accumulate": accumulate,
        "precision": precision, "device": device,
        "optimizer": chosen_optimizer(optimizer, suits_adamw=1e-3, weight_decay=0.1),
    }  # fmt: skip
    if model is not None:
        if head is not None or attention is not None or vocabulary is not None or size != "desk":
            raise QkvError("A model that exists is what it is: give --model, or --family with its size and the like.")
        priced: Any = network_of(model)
    else:
        assert family is not None
        priced, sizes = family, sizes_of(family, size, vocabulary, length)
        common |= {"sizes": sizes, "head": head_of(head), "attention": attention}
    if ranks is None:
        for name, given in (("parallel", parallel), ("per-node", per_node), ("links", links), ("suggest", suggest)):
            if given:
                raise QkvError(f"--{name} is about several GPUs: say how many by --ranks.")
        found = predicted(priced, **common, forward_only=forward_only, recompute=recompute, record=record)
        if as_json:
            typer.echo(json.dumps(found.record(), indent=2))
        else:
            show(found, device, forward_only, steps)
        return
    if record:
        raise QkvError("Steps of several ranks are not recorded: leave out --record.")
    if forward_only:
        raise QkvError("Plans for ranks are those of trainings: leave out --forward-only.")
    if suggest and parallel:
        raise QkvError("--suggest looks for a layout, and --parallel gives one: leave out one of the two.")
    from qkv.api.cost_ranks import Plans
    from qkv.train.parallel.layout import Layout

    plans = Plans(priced, **common, ranks=ranks, per_node=per_node or PER_NODE, links=links or "")
    plan = plans.best(recompute) if suggest else plans.cost(Layout.parse(parallel or ""), recompute)
    if as_json:
        told = [each.record() for each in plan] if isinstance(plan, list) else plan.record()
        typer.echo(json.dumps(told, indent=2))
    elif isinstance(plan, list):
        show_layouts(plan)
    else:
        typer.echo(f"{ranks} ranks as {plan.layout}, of which this is one; operations and time are of all together.")
        show(plan, device, forward_only, steps)


def measured(device: str) -> str:
    """Measure the device of this machine and keep what was found; its short name."""
    import torch

    from qkv.parts.device import device_called
    from qkv.train.cost.measure import measure_device
    from qkv.train.cost.profile import own_profiles, short_name

    place = device_called(device)
    profile = measure_device(torch.device(place), say=lambda text: typer.echo(f"Measuring {text} …", err=True))
    name = short_name(profile.name)
    file = own_profiles() / f"{name}.json"
    profile.save(file)
    typer.echo(f"Measured {profile.name}; kept as {name} in {file}.", err=True)
    return name


def network_of(model: str) -> Any:
    from qkv.api.loading import load

    return load(model, "cpu").model


def head_of(kind: str | None) -> Any:
    from qkv.api.cost import head_for

    return None if kind is None else head_for(kind)


def sizes_of(family: str, spelled: str, vocabulary: int | None, length: int | None) -> Any:
    """The sizes by name, or all of them where some are changed."""
    from qkv.cli.spellings import sizes_of as spelled_sizes
    from qkv.models.catalogue import find_family

    published = find_family(family).published.get(spelled.partition(",")[0])
    if vocabulary is None and "," not in spelled and "=" not in spelled:
        return spelled
    values = spelled_sizes(family, spelled)
    if length is not None and "positions=" not in spelled and values.get("positions") and not values.get("lines"):
        values["positions"] = max(length, values["positions"])
    if vocabulary is not None:
        values["vocabulary"] = vocabulary
    elif published is not None and hasattr(published, "vocabulary"):
        values.setdefault("vocabulary", published.vocabulary)
    return values


def show(found: "Cost", device: str, forward_only: bool, steps: int | None) -> None:
    """A table, and what it takes to know more."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column(justify="left")
    for name, value, remark in lines(found, forward_only, steps):
        table.add_row(name, value, remark)
    Console(highlight=False).print(table)
    if found.seconds is None:
        own = device in ("auto", "cpu", "cuda")
        where = f"{MEASURE}{'' if device == 'auto' else f' --device {device}'}"
        why = (
            "this precision was not measured there" if found.device_memory else f"{where} measures it" if own else where
        )
        typer.echo(f"How long it takes on {found.device} is not known: {why}.")


def show_layouts(found: "list[RankCost]") -> None:
    if not found:
        raise QkvError("No layout of so many ranks suits this model and so many rows: give other numbers of them.")
    typer.echo("layout, memory of a rank, what it sends in a step, time of a step")
    for each in found[:LAYOUTS]:
        sent = sum(sum(sizes) for sizes in each.sent.values())
        time = "" if each.seconds is None else spent(each.seconds)
        fits = "" if each.fits is not False else "  does not fit"
        typer.echo(f"{each.layout:32} {gibibytes(each.memory.total):>12} {gibibytes(sent):>12} {time:>10}{fits}")


def lines(found: "Cost", forward_only: bool, steps: int | None) -> list[tuple[str, str, str]]:
    """(name, figure, remark)"""
    memory, passes = found.memory, "" if forward_only else f"forward {scaled(found.flops_forward)}, backward the rest"
    rows = [
        ("parameters", f"{found.parameters:,}", ""),
        ("operations of a step", scaled(found.flops) + "FLOP", passes),
        ("memory at its peak", gibibytes(memory.total), room(found)),
        *(
            (f"  {name}", gibibytes(getattr(memory, name)), "")
            for name in ("weights", "gradients", "optimizer", "activations", "temporary")
        ),
    ]
    for name, (within, between) in getattr(found, "sent", {}).items():
        rows.append((f"sent: {name}", gibibytes(within + between), f"{gibibytes(between)} to other nodes"))
    if found.seconds is not None:
        share = "" if found.fraction_of_peak is None else f"{100 * found.fraction_of_peak:.1f}% of the device's peak"
        rows.append(("time of a step", spent(found.seconds), share))
        rows.append((f"{found.counts} a second", f"{found.per_second:,.0f}", bound(found)))
    if steps is not None and found.total_seconds is not None:
        from qkv.train.reporter import duration

        rows.append((f"time of {steps:,} steps", duration(found.total_seconds), ""))
    return rows


def room(found: "Cost") -> str:
    if not found.device_memory:
        return ""
    return f"of {gibibytes(found.device_memory)}" + ("" if found.fits else ": it does not fit")


def bound(found: "Cost") -> str:
    if found.host_seconds is None or found.device_seconds is None or found.host_seconds < found.device_seconds:
        return ""
    return "the host sets the pace: larger batches would cost little more time"


def scaled(number: float) -> str:
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.2f} {letter}"
    return f"{number:.0f} "


def gibibytes(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.1f} MiB"


def spent(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
