"""Write the results page of `recipes/pictures.py` from the folders of its runs.

    python recipes/pictures_report.py runs/pictures

The folder holds a folder for each set. What the page states is copied to docs/results/pictures/, and the page and its
curves are written beside it. Without a folder the page is written anew from what was copied before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from pages import RESULTS, Page, evaluations, keep, made_by, recipe_of

from qkv.errors import QkvError
from qkv.files import read_json, write_whole
from qkv.look.axes import Axis
from qkv.look.curves import Curve, curve_png

PAGE = "pictures"
SETS = {"cifar-10": "CIFAR-10", "fashion-mnist": "Fashion-MNIST"}
MODELS = ("ResNet", "ViT", "ViT, pre-trained", "DeiT", "DeiT, all pictures")
CLOSED = 0.5  # points that count as nothing


class Score(NamedTuple):
    """Test accuracies of the runs of one model, in percent."""

    of_seeds: tuple[float, ...]

    @property
    def mean(self) -> float:
        return mean(self.of_seeds)

    @property
    def error(self) -> float:
        """Of the mean; 0 where there is one run alone and nothing is known of it."""
        return stdev(self.of_seeds) / sqrt(len(self.of_seeds)) if len(self.of_seeds) > 1 else 0.0

    def __str__(self) -> str:
        spread = f" ± {stdev(self.of_seeds):.1f}" if len(self.of_seeds) > 1 else ""
        return f"{self.mean:.1f}{spread}"


def scores(result: dict[str, Any], labels: str) -> dict[str, Score]:
    """By model, those there are."""
    found: dict[str, list[float]] = {}
    for run in result["runs"]:
        if run["labels"] == labels:
            found.setdefault(run["model"], []).append(100 * run["test"]["accuracy"])
    return {model: Score(tuple(found[model])) for model in MODELS if model in found}


def some_run(result: dict[str, Any], model: str, labels: str) -> dict[str, Any] | None:
    """The first run of a model on these labels."""
    runs = [run for run in result["runs"] if run["model"] == model and run["labels"] == labels]
    return runs[0] if runs else None


def table(result: dict[str, Any]) -> str:
    few, whole = scores(result, "few"), scores(result, "all")
    lines = [
        f"| model | parameters | training GFLOP a picture | seconds, few / all | {result['pictures']['few']:,} labels, % | "
        f"{result['pictures']['train']:,} labels, % |",
        "|---|---|---|---|---|---|",
    ]
    for model in few:
        one, other = some_run(result, model, "few"), some_run(result, model, "all")
        assert one is not None
        seconds = f"{one['seconds']:.0f} / {'–' if other is None else format(other['seconds'], '.0f')}"
        lines.append(
            f"| {model} | {one['parameters'] / 1e6:.2f}M | {one['flops'] / one['tokens'] / 1e9:.2f} | {seconds} | "
            f"{few[model]} | {whole.get(model, '–')} |"
        )
    return "\n".join(lines)


class Gap(NamedTuple):
    """How far one model is behind the ResNet, and how much of that may be chance."""

    points: float
    chance: float

    @classmethod
    def between(cls, ahead: Score, behind: Score) -> Gap:
        return cls(ahead.mean - behind.mean, max(CLOSED, 2 * sqrt(behind.error**2 + ahead.error**2)))


def gap_told(gap: Gap) -> str:
    if abs(gap.points) <= gap.chance:
        return f"is level with the ResNet: {-gap.points:+.1f} points are no more than chance"
    return (
        f"trails the ResNet by {gap.points:.1f} points" if gap.points > 0 else f"leads it by {-gap.points:.1f} points"
    )


def remedy_told(name: str, before: Gap, after: Gap) -> str:
    """What became of the gap to the ResNet."""
    figures = f"{before.points:.1f} points before, {after.points:.1f} after"
    if before.points <= before.chance:
        return f"- {name} had no gap to close: {figures}."
    if after.points <= after.chance:
        return f"- {name} **closes the gap**: {figures}."
    if after.points < before.points - max(before.chance, after.chance):
        return f"- {name} narrows the gap and does not close it: {figures}."
    if after.points <= before.points + max(before.chance, after.chance):
        return f"- {name} leaves the gap about as it is: {figures}."
    return f"- {name} widens the gap: {figures}."


def findings(result: dict[str, Any]) -> str:
    few, whole = scores(result, "few"), scores(result, "all")
    before = Gap.between(few["ResNet"], few["ViT"])
    lines = [
        f"With {result['pictures']['few']:,} labels the ViT from scratch {gap_told(before)} "
        f"({few['ViT']}% against {few['ResNet']}%).",
        "",
    ]
    remedies = [
        ("Pre-training on the pictures without their labels", few, "ViT, pre-trained"),
        ("Distillation from that ResNet", few, "DeiT"),
        ("Distillation on all the pictures, the others named by that ResNet,", few, "DeiT, all pictures"),
        ("More data, for both,", whole, "ViT"),
        ("More data and distillation", whole, "DeiT"),
    ]
    for name, among, model in remedies:
        if model in among:
            lines.append(remedy_told(name, before, Gap.between(among["ResNet"], among[model])))
    return "\n".join(lines)


def curves(page: str, result: dict[str, Any], labels: str) -> Sequence[Curve]:
    """Accuracy on held-out pictures against pictures seen, of the first seed."""
    found = []
    for model in MODELS:
        run = some_run(result, model, labels)
        if run is not None:
            records = evaluations(page, run["folder"])
            seen = [each["tokens"] / 1000 for each in records]
            found.append(Curve(model, seen, [100 * each["figures"]["accuracy"] for each in records]))
    return found


def section(name: str, title: str, result: dict[str, Any]) -> str:
    page = f"{PAGE}/{name}"
    for labels in ("few", "all"):
        if shown := curves(page, result, labels):
            x, y = Axis("thousand pictures seen"), Axis("accuracy on held-out pictures, %")
            curve_png(shown, RESULTS / page / f"{labels}.png", x, y)
    seeds = len({run["seed"] for run in result["runs"] if run["labels"] == "few"})
    first = result["pretraining"]
    channels, height, width = result["size"]
    return f"""## {title}

{result["pictures"]["train"]:,} pictures of {height} × {width} pixels in {channels} channel{"s" if channels > 1 else ""}, {len(result["classes"])} classes,
tested on the whole test part of {result["pictures"]["test"]:,}, once for each model.

{table(result)}

{findings(result)}

Of few labels: {f"the mean and the standard deviation of {seeds} seeds, each with labels of its own" if seeds > 1 else "one seed"}. The GFLOP of
DeiT hold its teacher's answers, not its teacher's training. Pre-training took {first["seconds"]:.0f} seconds and
{first["flops"] / 1e15:.2f} PFLOP more, once for all seeds: in the end {100 * first["figures"]["accuracy"]:.1f}% of the hidden patches had the
colour it found likeliest.

![Accuracy against pictures seen, few labels]({page}/few.png)

![Accuracy against pictures seen, all labels]({page}/all.png)
"""


def recipes(results: dict[str, dict[str, Any]]) -> str:
    """One for all sets, or one for each where they differ."""
    of_sets = {name: recipe_of(result) for name, result in results.items()}
    if len(set(of_sets.values())) == 1:
        return next(iter(of_sets.values()))
    return "\n\n".join(f"{SETS[name]}:\n\n{recipe}" for name, recipe in of_sets.items())


def page_text(results: dict[str, dict[str, Any]]) -> str:
    some = next(iter(results.values()))
    sizes = some["sizes"]
    sections = "\n".join(section(name, SETS[name], result) for name, result in results.items())
    commands = "\n".join(
        f"python recipes/pictures.py --data corpora/{name} --out runs/pictures/{name}" for name in results
    )
    return f"""# What a ViT lacks on little data

*Written by `recipes/pictures_report.py` from the runs beside this page; the figures are theirs.*

The paper of ViT finds that without much data it trails convolutional networks of its size, which know from the start that
neighbouring pixels belong together, and that enough data makes up for it [dosovitskiy2021 §4.3]. Tested here: a ViT of
{sizes["layers"]} layers of {sizes["width"]} on patches of {sizes["patch"]} × {sizes["patch"]}, and a ResNet-20 of twice the width [he2016 §4.2], which take
about the same arithmetic a picture and see the same number of pictures. A DeiT is that ViT with a second token, which learns
from what the ResNet of the same labels finds likeliest [touvron2021 §4]; with few labels also on all the pictures, where that
ResNet names those without a label. Pre-training is the paper's own: the mean
colours of hidden patches [dosovitskiy2021 §B.1.2]. {made_by(some["versions"], some["device"])} Several trainings shared
the device, so seconds tell less than FLOP.

{sections}
## Recipe

{recipes(results)}

```
make corpora
{commands}
python recipes/pictures_report.py runs/pictures
```
"""


def main(asked: Sequence[str]) -> None:
    if len(asked) > 1:
        sys.exit("qkv: Name the folder of the runs, or nothing: python recipes/pictures_report.py runs/pictures")
    for name in SETS if asked else ():
        folder = Path(asked[0]) / name
        if (folder / "result.json").exists():
            result = read_json(folder / "result.json")
            runs = (*(run["folder"] for run in result["runs"]), result["pretraining"]["folder"])
            keep(f"{PAGE}/{name}", Page(str, runs), folder)
    kept = {name: RESULTS / PAGE / name / "result.json" for name in SETS}
    results = {name: read_json(file) for name, file in kept.items() if file.exists()}
    if not results:
        sys.exit("qkv: There is no result yet: run recipes/pictures.py, and name the folder of its runs.")
    print(f"Written: {write_whole(RESULTS / f'{PAGE}.md', page_text(results).encode())}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except QkvError as error:
        sys.exit(f"qkv: {error}")
