"""Write the results page of the instruments from the folder of its runs.

    python recipes/notes_report.py notes runs/notes

Copies what the page states to docs/results/ and writes the page and its curve beside it. Without a run folder the page
is written anew from what was copied before.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

import numpy as np
from pages import RESULTS, Page, made_by, recipe_of, write_pages

from qkv.look.axes import Axis
from qkv.look.curves import Curve, curve_png

SCRATCH, BEGUN = "AST, from scratch", "AST, begun with pictures"


def share(values: list[float]) -> str:
    """The mean of several seeds, and how far they lie apart."""
    if len(values) == 1:
        return f"{100 * values[0]:.1f}"
    return f"{100 * fmean(values):.1f} ({100 * min(values):.1f} to {100 * max(values):.1f})"


def against_regression(test: dict[str, Any]) -> str:
    """Whether the model was worth its while, from the figures."""
    simple = {name: fmean(scores["accuracy"]) for name, scores in test.items() if not name.startswith("AST")}
    best = max(simple, key=lambda name: simple[name])
    found = {name: fmean(scores["accuracy"]) for name, scores in test.items() if name.startswith("AST")}
    ahead = [name for name, score in found.items() if score > simple[best]]
    gap = 100 * (max(found.values()) - simple[best])
    if not ahead:
        return (
            f"No AST reaches the {best} ({100 * simple[best]:.1f}%): {-gap:.1f} points are missing. On so few notes a "
            "plain regression on a good summary of the spectrum is the better model."
        )
    also = "" if len(ahead) == len(found) else f", though only {' and '.join(ahead)}"
    return f"Against the {best} ({100 * simple[best]:.1f}%) the AST gains {gap:.1f} points{also}."


def of_pictures(result: dict[str, Any]) -> str:
    """Whether beginning with pictures helped, from the figures."""
    test = result["test"]
    if BEGUN not in test:
        return ""
    scratch, begun = test[SCRATCH]["accuracy"], test[BEGUN]["accuracy"]
    gain = 100 * (fmean(begun) - fmean(scratch))
    apart = min(begun) > max(scratch) if gain > 0 else max(begun) < min(scratch)
    surely = "more than the seeds differ" if apart else "no more than the seeds differ, so this does not decide it"
    way = "helps: it gains" if gain > 0 else "does not help: it loses"
    learned = result.get("pictures")
    told = ""
    if learned:
        told = (
            f" Those weights come from {learned['step']:,} steps on Fashion-MNIST, enlarged to four patches a side "
            f"(it names {100 * learned['figures']['accuracy']:.1f}% of held-out clothes)."
        )
    return (
        f"The paper's models begin with a ViT that learned a million photographs, and gain much by it. Here beginning with "
        f"a small ViT {way} {abs(gain):.1f} points, {surely}.{told}"
    )


def notes_page(result: dict[str, Any]) -> str:
    curve_png(
        [
            Curve(begins, [each["step"] for each in curve], [100 * each["accuracy"] for each in curve])
            for begins, curve in result["curves"].items()
        ],
        RESULTS / "notes" / "accuracy.png",
        Axis("steps"),
        Axis("% of held-out stretches named right"),
    )
    test, classes = result["test"], result["classes"]
    rows = "\n".join(
        f"| {name} | {share(scores['accuracy'])} | {share(scores['macro_f1'])} |" for name, scores in test.items()
    )
    models = [name for name in test if name.startswith("AST")]
    of_each = "\n".join(
        f"| {instrument} | {result['notes of a class'][number]} | "
        + " | ".join(f"{100 * hits(test[name]['said'], number):.0f}" for name in test)
        + f" | {mistaken(test[models[-1]]['said'], number, classes)} |"
        for number, instrument in enumerate(classes)
    )
    heads = " | ".join(test)
    sizes = result["sizes"]
    return f"""# Which instrument is it?

*Written by `recipes/notes_report.py` from the runs beside this page; the figures are their own.*

{result["notes"]["all"]} single notes of {len(classes)} instruments, the first three seconds of each. The pitches are dealt
into {len(result["notes"]["folds"])} folds, and each note is named by a model that heard no note of its pitch, from no
instrument. An AST of {result["parameters"] / 1e6:.1f}M parameters ({sizes["layers"]} layers of {sizes["width"]}) reads the mel
bands of a second as a picture of overlapping patches; of a whole note its answers are averaged. In all {result["steps"]:,}
updates on {result["tokens"]:,} sounds, {result["flops"] / 1e15:.1f} PFLOP. {made_by(result["versions"], result["device"])}

| model | accuracy %, each note tested once a seed | macro-F1 % |
|---|---|---|
{rows}

Of several seeds the mean, and in brackets the lowest and the highest. The most frequent instrument alone would give
{100 * max(result["notes of a class"]) / result["notes"]["all"]:.1f}%.

{against_regression(test)}

{of_pictures(result)}

![Held-out accuracy against steps](notes/accuracy.png)

The curve is of notes held out of the training folds, a second at a time; no run was stopped, chosen or repeated for it.

| instrument | notes | {heads} | what the last one takes it for |
|---|---|{"---|" * len(test)}---|
{of_each}

Percent of an instrument's notes that are named right.

The notes of an instrument were collected and edited together, so that what is learned may partly be the recording: a model
that names these notes need not name those of another violin.

## Recipe

{recipe_of(result)}

```
make corpora
python recipes/notes.py --corpora corpora --out runs/notes
python recipes/notes_report.py notes runs/notes
```
"""


def hits(said: list[list[int]], number: int) -> float:
    row = np.array(said[number])
    return float(row[number] / max(1, row.sum()))


def mistaken(said: list[list[int]], number: int, classes: list[str]) -> str:
    """The most frequent wrong answer."""
    row = np.array(said[number])
    share_of = row / max(1, row.sum())
    row[number] = 0
    return f"{classes[int(row.argmax())]}, {100 * share_of[int(row.argmax())]:.0f}%" if row.any() else "–"


if __name__ == "__main__":
    write_pages(
        {"notes": Page(notes_page, ("pictures", "from-scratch-seed0-fold0", "begun-with-pictures-seed0-fold0"))}
    )
