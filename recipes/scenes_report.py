"""Write the results page of `recipes/scenes.py` from the folder of its run.

    python recipes/scenes_report.py scenes runs/scenes

Copies what the page states (`result.json`, `metrics.jsonl` and the scenes that were drawn) to docs/results/ and writes
the page and its curves beside it. Without a run folder the page is written anew from what was copied before.
"""

from __future__ import annotations

from typing import Any

from pages import RESULTS, Page, curve_by_steps, made_by, recipe_of, write_pages

from qkv.look.axes import Axis
from qkv.look.curves import curve_png

SETS = {
    "test": "**test scenes: emoji never seen**",
    "known emoji": "emoji of training, new scenes and photos",
    "untrained": "test scenes, untrained model",
}
FIGURES = ("average", "at_half", "at_three_quarters", "recall")
SIZES = ("small", "medium", "large")


def scenes_page(result: dict[str, Any]) -> str:
    curve_png(
        [curve_by_steps("scenes", "detr", figure, name) for figure, name in (("map", "mAP"), ("map50", "mAP50"))],
        RESULTS / "scenes" / "map.png",
        Axis("updates"),
        Axis("average precision, validation scenes"),
    )
    sizes = [name for name in SIZES if name in result["test"]["by_size"]]
    header = "| scenes | mAP | mAP50 | mAP75 | recall | " + " | ".join(f"mAP {name}" for name in sizes) + " |"
    rows = [row(told, result[name], sizes) for name, told in SETS.items()]
    table = "\n".join([header, "|---" * (5 + len(sizes)) + "|", *rows])
    emoji, known, test = result["emoji"], result["known emoji"], result["test"]
    kinds = "\n".join(
        f"| {kind} | {emoji['train'][kind]} | {emoji['test'][kind]} | {percent(test['by_class'].get(kind))} | "
        f"{percent(known['by_class'].get(kind))} |"
        for kind in sorted(result["kinds"], key=lambda kind: -test["by_class"].get(kind, 0.0))
    )
    shape, run = result["sizes"], result["run"]
    pictures = "\n".join(f"![Scene {file.stem[6:]}](scenes/drawn/{file.name})" for file in drawn())
    return f"""# DETR in small: emoji on photos

*Written by `recipes/scenes_report.py` from the run beside this page; the figures are its own.*

Where are things in a picture, and what are they? A DETR is trained from scratch, its residual network too, on
{result["scenes"]["train"]:,} scenes of 128 × 128 pixels: emoji of {len(result["kinds"])} kinds, cut out and pasted in all sizes on photos of
CIFAR-10 that were made larger, {result["objects"]["train"] / result["scenes"]["train"]:.1f} to a scene. What the photos themselves show is
not asked for. The {result["scenes"]["test"]:,} test scenes hold emoji of which no variant (tone, gender, direction, or a picture that
looks the same) was trained on, on photos of the other part: kinds must be known by more than heart.

{result["parameters"] / 1e6:.1f}M parameters: a residual network with stages of {", ".join(map(str, shape["stage_widths"]))} channels,
{shape["encoder_layers"]} + {shape["decoder_layers"]} layers of {shape["width"]}, {shape["queries"]} queries. {run["step"]:,} updates,
{run["tokens"] / 1e6:.2f}M objects seen, {run["seconds"] / 60:.1f} GPU minutes, {run["flops"] / 1e15:.1f} PFLOP; {run["weights"]}.
{made_by(result["versions"], result["device"])}

COCO's average precision, in %: mAP is the mean over ten overlaps from 0.5 to 0.95, mAP50 and mAP75 are at one. *small* is below
32 × 32 pixels, *medium* up to 96 × 96.

{table}

{finding(result)}

![Average precision against updates](scenes/map.png)

The first test scenes, with what the model is at least half sure of:

{pictures}

By kind, mAP in %:

| kind | emoji to train on | emoji to test on | test scenes | emoji of training |
|---|---|---|---|---|
{kinds}

## Recipe

{recipe_of(result)}

```
make corpora
python recipes/scenes.py --corpora corpora --out runs/scenes
python recipes/scenes_report.py scenes runs/scenes
```
"""


def drawn() -> list[Any]:
    return sorted((RESULTS / "scenes" / "drawn").glob("*.png"))


def row(name: str, scores: dict[str, Any], sizes: list[str]) -> str:
    figures = [*(scores[figure] for figure in FIGURES), *(scores["by_size"].get(size) for size in sizes)]
    return f"| {name} | " + " | ".join(map(percent, figures)) + " |"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def finding(result: dict[str, Any]) -> str:
    """What the figures say, whatever they are."""
    test, known = result["test"], result["known emoji"]
    if known["average"] <= test["average"]:
        first = "Emoji that were never seen are found as well as those of training."
    else:
        first = (
            f"On emoji of training it reaches {percent(known['average'])}: the {100 * (known['average'] - test['average']):.1f} "
            "points between the two are owed to knowing the very emoji, the rest is knowing kinds and places."
        )
    loose, strict = test["at_half"], test["at_three_quarters"]
    second = (
        f" Between mAP50 and mAP75 lie {100 * (loose - strict):.1f} points: what is lost where boxes must be tight."
        if loose > strict
        else ""
    )
    return first + second


if __name__ == "__main__":
    write_pages({"scenes": Page(scenes_page, ("detr",), "drawn")})
