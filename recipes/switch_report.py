"""Write the results page of the Switch Transformer from the folder of its runs.

    python recipes/switch_report.py switch runs/switch

Copies what the page states to docs/results/ and writes the page and its curves beside it. Without a run folder the page
is written anew from what was copied before.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pages import RESULTS, Page, evaluations, made_by, recipe_of, write_pages

from qkv.files import read_json
from qkv.look.axes import Axis
from qkv.look.curves import Curve, curve_png

DENSE = 0  # experts of a model that has none


def named(experts: int) -> str:
    return f"{experts} experts" if experts else "dense"


def mean_loss(runs: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Updates, and the loss on held-out texts after so many: the mean of the seeds, without the losses of experts."""
    found = [evaluations("switch", run["folder"]) for run in runs]
    steps = [each["step"] for each in found[0]]
    at = zip(*([math.log(each["figures"]["perplexity"]) for each in some] for some in found), strict=True)
    return steps, [fmean(losses) for losses in at]


def steps_to(steps: Sequence[float], losses: Sequence[float], wanted: float) -> float | None:
    """The updates after which a loss was first as low as wanted, on straight lines between the evaluations."""
    for number, loss in enumerate(losses):
        if loss <= wanted:
            if number == 0:
                return steps[0]
            share = (losses[number - 1] - wanted) / (losses[number - 1] - loss)
            return steps[number - 1] + share * (steps[number] - steps[number - 1])
    return None


def last_figure(runs: Sequence[dict[str, Any]], figure: str) -> float:
    return fmean(evaluations("switch", run["folder"])[-1]["figures"][figure] for run in runs)


def verdict(curves: dict[int, tuple[list[float], list[float]]], apart: float) -> str:
    """What the experts saved, from the figures."""
    steps, losses = curves[DENSE]
    said = []
    for experts, curve in curves.items():
        if experts == DENSE:
            continue
        reached, gain = steps_to(*curve, losses[-1]), losses[-1] - curve[1][-1]
        if reached is None:
            said.append(f"{named(experts)} never reach the dense model's last loss ({-gain:.3f} are missing)")
        else:
            said.append(
                f"{named(experts)} reach the dense model's last loss after {reached:,.0f} of {steps[-1]:,} updates, "
                f"**{steps[-1] / reached:.2f} times** sooner, and end {gain:.3f} below it"
            )
    differ = f" Seeds of one model differ by at most {apart:.3f} at the end." if apart else " One seed each."
    return "; ".join(said) + "." + differ


def page(result: dict[str, Any]) -> str:
    by_experts: dict[int, list[dict[str, Any]]] = {}
    for run in result["runs"]:
        by_experts.setdefault(run["experts"], []).append(run)
    curves = {experts: mean_loss(runs) for experts, runs in by_experts.items()}
    curve_png(
        [Curve(named(experts), *curve) for experts, curve in curves.items()],
        RESULTS / "switch" / "loss.png",
        Axis("updates"),
        Axis("loss on held-out texts"),
    )
    dense_steps, dense = curves[DENSE]
    levels = [loss for step, loss in zip(dense_steps, dense, strict=True) if step >= dense_steps[-1] / 5]
    faster = [experts for experts in curves if experts != DENSE]
    curve_png(
        [
            Curve(
                named(experts),
                [steps_to(dense_steps, dense, level) or math.nan for level in levels],
                [
                    math.nan
                    if (own := steps_to(*curves[experts], level)) is None
                    else (steps_to(dense_steps, dense, level) or math.nan) / own
                    for level in levels
                ],
            )
            for experts in faster
        ],
        RESULTS / "switch" / "speed_up.png",
        Axis("updates of the dense model"),
        Axis("times fewer updates to the same loss"),
    )
    ends = {
        experts: [math.log(evaluations("switch", run["folder"])[-1]["figures"]["perplexity"]) for run in runs]
        for experts, runs in by_experts.items()
    }
    apart = max(max(each) - min(each) for each in ends.values())
    per_update = {experts: fmean(run["flops"] / run["steps"] for run in runs) for experts, runs in by_experts.items()}
    rows = "\n".join(
        f"| {named(experts)} | {runs[0]['parameters'] / 1e6:.1f}M | {per_update[experts] / 1e12:.3f} | "
        f"{curves[experts][1][-1]:.3f} | {reached(curves, experts)} |"
        for experts, runs in by_experts.items()
    )
    used = "\n".join(
        f"| {named(experts)} | {last_figure(by_experts[experts], 'balance'):.3f} | "
        f"{100 * last_figure(by_experts[experts], 'busiest_expert'):.1f} ({100 / experts:.1f}) | "
        f"{100 * last_figure(by_experts[experts], 'dropped'):.1f} |"
        for experts in faster
    )
    sizes = result["sizes"]
    return f"""# Experts against one feed-forward: a Switch Transformer in small

*Written by `recipes/switch_report.py` from the runs beside this page; the figures are theirs.*

{result["documents"]["train"]:,} documents (reviews, articles, addresses, novels) to go on with. All models have {sizes["layers"]}
layers of {sizes["width"]}; those with experts have them in every other block, each as large as the feed-forward of the dense model
(a GPT), and a token uses one of them. So all of them compute the same for a token, but for the router. {result["seeds"]} seeds
each; curves and figures are their means.
{made_by(result["versions"], result["device"])}

{verdict(curves, apart)}

| model | parameters | TFLOP of an update | loss at the end | updates to the dense model's last loss |
|---|---|---|---|---|
{rows}

![Loss against updates](switch/loss.png)

The paper counts the same way, at another scale and with gaps to fill (`[fedus2022 §3.1]`).

![How many times fewer updates a Switch needs for the loss that the dense model has after so many](switch/speed_up.png)

How the experts are used on held-out texts, mean of all layers: balance is 1 where all are used alike; beside the share of the
tokens that went to the busiest stands that of an even split; a token whose expert was full passes the layer unchanged.

| model | balance | busiest expert, % (even) | tokens that found theirs full, % |
|---|---|---|---|
{used}

## Recipe

{recipe_of(result)}

```
make corpora
python recipes/switch.py --corpora corpora --out runs/switch --steps {result["recipe"]["updates of a run"]} --seeds {result["seeds"]}
python recipes/switch_report.py switch runs/switch
```
"""


def reached(curves: dict[int, tuple[list[float], list[float]]], experts: int) -> str:
    steps, losses = curves[DENSE]
    if experts == DENSE:
        return f"{steps[-1]:,}"
    found = steps_to(*curves[experts], losses[-1])
    return "never" if found is None else f"{found:,.0f} ({steps[-1] / found:.2f} times fewer)"


def folders(asked: Sequence[str]) -> tuple[str, ...]:
    """Of the runs that a page states: those of the folder given, or those kept before."""
    where = Path(asked[1]) if len(asked) > 1 else RESULTS / "switch"
    kept = where / "result.json"
    return tuple(run["folder"] for run in read_json(kept)["runs"]) if kept.exists() else ()


if __name__ == "__main__":
    write_pages({"switch": Page(page, runs=folders(sys.argv[1:]))})
