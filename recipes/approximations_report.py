"""Write the results page of `approximations.py` from the folder of its run.

    python recipes/approximations_report.py approximations runs/approximations

Without a folder the page is written anew from what was copied before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pages import RESULTS, Page, made_by, recipe_of, write_pages

from qkv.look.axes import Axis, Logarithmic
from qkv.look.curves import Curve, curve_png

NAME = "approximations"


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of a straight line through the logarithms."""
    a, b = ([math.log(value) for value in values] for values in (x, y))
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    return sum((p - mean_a) * (q - mean_b) for p, q in zip(a, b, strict=True)) / sum((p - mean_a) ** 2 for p in a)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def over_layers(errors: list[list[float]]) -> list[float]:
    return [mean(column) for column in zip(*errors, strict=True)]


def product_rows(pairs: dict[str, Any]) -> str:
    rows = []
    for name, pair in pairs.items():
        for way, measured in pair["measured"].items():
            predicted = pair["predicted"].get(way)
            held = (
                ""
                if predicted is None
                else f"{min(ratios(measured, predicted)):.2f} to {max(ratios(measured, predicted)):.2f}"
            )
            centre, spread = pair["means"][way]
            off = f"{abs(centre - pair['exp']) / spread:.1f}"
            rows.append(
                f"| {name} ({pair['exp']:.2f}) | {way} | {measured[0]:.2g} | {measured[-1]:.2g} | {slope(pair['counts'], measured):.2f} | {held} | {off} |"
            )
    return "\n".join(rows)


def ratios(measured: Sequence[float], predicted: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(measured, predicted, strict=True)]


def plots(result: dict[str, Any]) -> None:
    folder = RESULTS / NAME
    for name, pair in result["products"].items():
        curves = [Curve(way, pair["counts"], errors) for way, errors in pair["measured"].items()]
        curves += [Curve(f"{way}, by lemma 2", pair["counts"], errors) for way, errors in pair["predicted"].items()]
        curve_png(
            curves,
            folder / f"{name}.png",
            Axis("directions m", Logarithmic()),
            Axis("mean squared error", Logarithmic()),
            f"exp(q·k) = {pair['exp']:.2f}",
        )
    shorter = result["shorter"]["errors"]
    counts = result["attention"]["counts"]
    curve_png(
        [Curve(f"times {size}", counts, errors) for size, errors in shorter.items()],
        folder / "features.png",
        Axis("features m", Logarithmic()),
        Axis("relative error of attention", Logarithmic()),
        f"Layer {result['shorter']['layer']}, queries and keys as they are and shorter",
    )
    ranks, learned = result["ranks"], result["learned"]
    curve_png(
        [
            Curve("drawn, P Rᵀ R V", ranks["counts"], over_layers(ranks["errors"]["drawn"])),
            Curve("best of this rank", ranks["counts"], over_layers(ranks["errors"]["best"])),
            *(
                Curve(f"Linformer, E and F {kind}, layer {learned['layer']}", learned["counts"], errors)
                for kind, errors in learned["errors"].items()
            ),
        ],
        folder / "projected.png",
        Axis("k", Logarithmic()),
        Axis("relative error of attention", Logarithmic()),
    )
    spectrum = result["spectrum"]
    curve_png(
        [Curve(f"layer {number}", spectrum["index"], shares) for number, shares in enumerate(spectrum["by layer"], 1)],
        folder / "spectrum.png",
        Axis("singular values, largest first"),
        Axis("share of their sum"),
    )


def page(result: dict[str, Any]) -> str:
    plots(result)
    recipe, attention, ranks, learned = result["recipe"], result["attention"], result["ranks"], result["learned"]
    orthogonal, independent = (over_layers(attention["errors"][name]) for name in ("orthogonal", "independent"))
    counts, last = attention["counts"], attention["counts"][-1]
    squares = [mean(pair) for pair in attention["squares"]]
    shorter = result["shorter"]["errors"]
    drawn, best = (over_layers(ranks["errors"][name]) for name in ("drawn", "best"))
    quarter = result["spectrum"]["a quarter of them, by head"]
    kept = recipe["length"] // 4
    heads = "\n".join(
        f"| {number} | " + " | ".join(f"{share:.2f}" for share in layer) + f" | **{mean(layer):.2f}** |"
        for number, layer in enumerate(quarter, 1)
    )
    everything = [share for layer in quarter for share in layer]
    feature_rows = "\n".join(
        f"| {count} | {a:.2f} | {b:.2f} |" for count, a, b in zip(counts, orthogonal, independent, strict=True)
    )
    short_rows = "\n".join(
        f"| {float(size):g} | " + " | ".join(f"{error:.3f}" for error in errors) + f" | {slope(counts, errors):.2f} |"
        for size, errors in shorter.items()
    )
    rank_rows = "\n".join(
        f"| {count} | {a:.2f} | {b:.3f} |" for count, a, b in zip(ranks["counts"], drawn, best, strict=True)
    )
    learned_rows = "\n".join(
        f"| {count} | {a:.2f} | {b:.2f} |"
        for count, a, b in zip(
            learned["counts"], learned["errors"]["averaged"], learned["errors"]["learned"], strict=True
        )
    )
    return f"""# How near random features and Linformer come to exact attention

*Written by `recipes/approximations_report.py` from the run beside this page; the figures are its own.* {made_by(result["versions"], "CPU core")}

## Single products, against the papers

φ(q)·φ(k) has exp(q·k) as its mean, whatever directions are drawn. How far single draws lie from it, lemma 2 of
[the Performer's paper](../../papers/choromanski2021.md) states for independent directions, m of them: positive features
are off by exp(|q+k|²) exp(q·k)² (1 - exp(-|q+k|²)) / m in the mean square, waves (sines and cosines, those of
[random feature attention](../../papers/peng2021.md)) by exp(|q|²+|k|²) (1 - exp(-|q-k|²))² / 2m. {recipe["draws of a product"]:,} draws
each, of {result["products"]["alike"]["counts"][0]} to {result["products"]["alike"]["counts"][-1]} directions of width 16:

| vectors (exp(q·k)) | features | error, fewest | error, most | power of m | measured / lemma 2 | mean is off by, standard errors |
|---|---|---|---|---|---|---|
{product_rows(result["products"])}

![Errors for vectors that point the same way](approximations/alike.png)
![Errors for vectors that point against each other](approximations/opposed.png)

Small weights, of which a softmax has many, are for positive features, large ones for waves: that is why Performers have the
former. Few draws of positive features carry much of the mean where vectors are alike, so that measured errors scatter there.

## Attention of a trained model

The heads of {recipe["model"]} ({recipe["width of a head"]} wide) on {recipe["text"]}, rows of {recipe["length"]} tokens. The error of an
approximation is the length of the difference to exact attention over that of exact attention itself, the mean over heads.
Positive random features in place of the softmax, nothing trained, the mean of all layers:

| features | orthogonal | independent |
|---|---|---|
{feature_rows}

That is far off, even with {last:,} features for {recipe["width of a head"]} dimensions, and lemma 2 says why: the error grows with
exp(|q+k|²), and the scaled queries and keys of these layers have squared lengths of {min(squares):.0f} to {max(squares):.0f}. The same heads of
layer {result["shorter"]["layer"]} with queries and keys made shorter, against exact attention of the shorter ones:

| times | {" | ".join(f"m = {count}" for count in counts)} | power of m |
|---|{"---|" * (len(counts) + 1)}
{short_rows}

![Error against number of features](approximations/features.png)

A model that is to run on random features should be trained with them, or be trained further after the swap.

## Low rank

[Linformer](../../papers/wang2020.md) stands on tables of weights being nearly of low rank. P V against P Rᵀ R V with R of rank k
drawn at random (theorem 1), and against the best table of that rank, by singular values; the mean of all layers and heads:

| k | drawn | best |
|---|---|---|
{rank_rows}

The drawn one falls with k to the power {slope(ranks["counts"], drawn):.2f} (the theorem: -0.5). Linformer itself projects keys and values before
the softmax, by E and F that know slots and not what stands in them. For layer {learned["layer"]} alone, on rows held out: averages
of neighbouring slots, and E and F after {recipe["updates of E and F"]} updates on {recipe["rows"] - 2} rows to answer as the layer's heads do, its other weights as they were. (Their rate was chosen on the rows that are reported, so the last column is
slightly flattered.)

| k | averaged | learned |
|---|---|---|
{learned_rows}

![Error against k](approximations/projected.png)

## The spectrum, as in Linformer's figure 1

Singular values of the tables of weights, added up from the largest, over the sum of all:

![Share of the spectrum](approximations/spectrum.png)

The largest {kept} of {recipe["length"]}, by layer and head (the mean of all: {mean(everything):.2f}, from {min(everything):.2f} to {max(everything):.2f}):

| layer | {" | ".join(f"head {number}" for number in range(1, len(quarter[0]) + 1))} | mean |
|---|{"---|" * (len(quarter[0]) + 1)}
{heads}

The paper finds higher layers of RoBERTa more skewed than lower ones; here the last layer has {mean(quarter[-1]):.2f} and the first {mean(quarter[0]):.2f}.

## Recipe

{recipe_of(result)}

```
make corpora checkpoints
python recipes/approximations.py --corpora corpora --model checkpoints/{recipe["model"]} --out runs/approximations
python recipes/approximations_report.py approximations runs/approximations
```
"""


if __name__ == "__main__":
    write_pages({NAME: Page(page, runs=())})
