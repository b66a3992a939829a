"""What each layer of a run did: norms of gradients and updates as recorded, and how a small change of weights grows."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from qkv.api.loading import load
from qkv.api.runs import no_model
from qkv.data.batches import ordered_batches
from qkv.data.pairs import Pairs
from qkv.data.rows import Rows
from qkv.errors import QkvError
from qkv.generate.reader import TextReader
from qkv.generate.text import TextToText
from qkv.look.axes import Axis, Logarithmic, figure
from qkv.look.curves import Curve
from qkv.look.difficulty import RandomNoise, output_change
from qkv.look.plots_page import Plot, Table, write_plots_page
from qkv.train.run_folder import RunFolder

STEPS_SHOWN = 6  # curves of a plot
KINDS = {
    "gradient_norms": ("Gradients", "norm of the gradient", "of all parameters of a layer, before clipping"),
    "relative_updates": ("Updates", "update / weights", "how far one update moved a layer, as a share of its weights"),
}
By = dict[str, list[float]]  # by stack: a figure of each layer


def look_at_layers(
    folder: Path | str,
    texts: Sequence[str] = (),
    *,
    out: Path | str | None = None,
    noise: float = 0.01,
    device: str = "auto",
) -> list[Path]:
    """Draw what a run with `gradient_norms` recorded of its layers; the page and its plots are left in `out`.

    With `texts` the trained model reads them twice, as it is and with `noise` on every matrix (a share of its size),
    and the page shows how much the stream differs after each layer. Without `out` that is `layers` inside the run.
    """
    if isinstance(texts, str):
        raise QkvError("look_at_layers wants a list of texts: put the one text into brackets.")
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise QkvError(f"There is no training run in {folder}: it has no run.json.")
    records = RunFolder(folder, save_model=no_model, resume=True).records()
    layers = [record for record in records if record["kind"] == "layers"]
    if not layers and not texts:
        raise QkvError(
            f"The run in {folder} recorded no norms by layer: train with --gradient-norms (in Python, "
            "TrainSettings(gradient_norms=True)), or give texts to see how changes grow."
        )
    plots = [plot for kind in KINDS for plot in _plots(layers, kind)]
    change: By = {}
    if texts:
        change = _change(load(str(folder), device), texts, noise)
        plots.append(
            Plot(
                "output-change.png",
                "Change of the output",
                [_curve(name, values) for name, values in change.items()],
                Axis("layer"),
                Axis("squared change"),
                f"What would leave a stack that ended after each layer, with noise of {noise:.0%} on every matrix.",
            )
        )
    where = folder / "layers" if out is None else Path(out)
    where.mkdir(parents=True, exist_ok=True)
    about = [f"The layers of {folder.name}, from the input up."]
    return write_plots_page(where, "What each layer did", about, _table(layers, change), [], plots)


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many, evenly from the first to the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(number * (len(items) - 1) / (most - 1))] for number in range(most)]


def _plots(layers: Sequence[dict[str, Any]], kind: str) -> list[Plot]:
    """For each stack a plot with a curve for each of some steps."""
    heading, label, note = KINDS[kind]
    stacks = layers[0][kind] if layers else {}
    plots = []
    for stack in stacks:
        curves = [_curve(f"step {each['step']:,}", _numbers(each[kind][stack])) for each in spread(layers, STEPS_SHOWN)]
        curves = [curve for curve in curves if any(value > 0 for value in curve.y)]
        if curves:  # none where the stack was frozen
            axes = Axis("layer"), Axis(label, Logarithmic())
            plots.append(Plot(f"{kind}-{stack}.png".replace("_", "-"), f"{heading}, {stack}", curves, *axes, note))
    return plots


def _curve(name: str, values: Sequence[float]) -> Curve:
    return Curve(name, range(1, len(values) + 1), values)


def _numbers(values: Sequence[float | None]) -> list[float]:
    """As a logarithmic axis can show them: what is 0 or was no number interrupts a curve."""
    return [value if value else float("nan") for value in values]


def _table(layers: Sequence[dict[str, Any]], change: By) -> Table:
    """A row a layer: gradients and updates at the first and the last recorded step, and the change."""
    columns: dict[str, dict[str, list[Any]]] = {}
    for kind, (heading, _, _) in KINDS.items():
        for each in [layers[0], layers[-1]] if layers else []:
            columns[f"{heading.lower()}, step {each['step']:,}"] = each[kind]
    if change:
        columns["squared change"] = change
    stacks = next(iter(columns.values()))
    rows = [
        [f"{stack} {number + 1}", *(_told(column[stack][number]) for column in columns.values())]
        for stack, values in stacks.items()
        for number in range(len(values))
    ]
    return Table(["layer", *columns], rows)


def _told(value: float | None) -> str:
    return "not finite" if value is None else figure(value)


def _change(model: Any, texts: Sequence[str], noise: float) -> By:
    """By a model that was loaded, for all texts as one batch."""
    if isinstance(model, TextToText):
        answers = [result.text for result in model.run(texts, beams=1)]
        pairs = _one_batch(model.model, Pairs.from_texts(texts, answers, *model.readers))
        forward = partial(model.model, pairs.source, pairs.source_lengths, pairs.target[:, :-1])
    elif isinstance(model, TextReader):
        rows = _one_batch(model.model, model.rows(model.encodings(texts)))
        forward = partial(model.model, rows.ids, lengths=rows.lengths, segments=rows.segments)
    else:
        raise QkvError(f"The change of the output is shown for models of text, and a {type(model).__name__} is none.")
    return output_change(model.model, forward, RandomNoise(noise))


def _one_batch(model: nn.Module, rows: Rows[Any]) -> Any:
    longest = max(int(sizes.max()) for sizes in rows.sizes)
    ((_, batch),) = ordered_batches(rows, longest * len(rows.sizes[0]))
    return batch.to(next(model.parameters()).device)
