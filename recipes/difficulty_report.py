"""Write the results page of `recipes/difficulty.py` from the folder of its runs.

    python recipes/difficulty_report.py difficulty runs/difficulty

Copies `result.json` to docs/results/difficulty/ and writes the page and its plots beside it. Without a run folder the
page is written anew from what was copied before. What the page says of an effect follows from the figures.
"""

from __future__ import annotations

import math

from difficulty_figures import (
    MARGIN,
    VANISHED,
    Found,
    grows_like,
    growth,
    learned,
    listed,
    lowest_share,
    mean_over_seeds,
    table,
    told_share,
    wirings_of,
)
from difficulty_text import HEAD, MEANING, RECIPE
from pages import RESULTS, Page, recipe_of, write_pages

from qkv.look.axes import Axis, Linear, Logarithmic
from qkv.look.curves import Curve, curve_png

FOLDER = RESULTS / "difficulty"
STACKS = ("encoder", "decoder")


# --- at the start: gradients -------------------------------------------------------------------------------------------


def gradients(result: Found) -> str:
    starts = {each["wiring"]: each for each in result["starts"] if "stream_gradients" in each}
    layers = next(iter(starts.values()))["layers"]
    rows, small = [], []
    for stack in STACKS:
        curves = []
        for wiring, start in starts.items():
            values = list(start["stream_gradients"][stack].values())
            if max(values) > 0:
                shares = [value / max(values) or math.nan for value in values]
                curves.append(
                    Curve(wiring, [(1 + number) * layers / len(values) for number in range(len(values))], shares)
                )
        curve_png(
            curves,
            FOLDER / f"gradients-{stack}.png",
            Axis(f"layer of the {stack}"),
            Axis("gradient of the stream / the largest", Logarithmic()),
        )
    for wiring, start in starts.items():
        shares = [lowest_share(list(start["stream_gradients"][stack].values())) for stack in STACKS]
        own = [lowest_share(start["parameter_gradients"][stack]) for stack in STACKS]
        rows.append([wiring, *map(told_share, [*shares, *own])])
        small += [
            f"the {stack} of {wiring}"
            for stack, share in zip(STACKS, shares, strict=True)
            if share is not None and share < VANISHED
        ]
    expected = "the decoder of post-norm"
    if expected in small:
        least = lowest_share(list(starts["post-norm"]["stream_gradients"]["decoder"].values()))
        verdict = (
            f"**Unbalanced gradients: seen.** In the decoder of post-norm the smallest gradient is {told_share(least)} of the "
            "largest."
        )
        others = [name for name in small if name != expected]
        verdict += f" Below {VANISHED:.0%} are also {listed(others)}." if others else " No other stack comes near it."
    else:
        verdict = "**Unbalanced gradients: not seen here.** " + (
            f"Below {VANISHED:.0%} of the largest fall {listed(small)}."
            if small
            else f"No stack falls below {VANISHED:.0%}."
        )
    head = ["wiring", *(f"stream, {stack}" for stack in STACKS), *(f"weights, {stack}" for stack in STACKS)]
    return f"""## Unbalanced gradients, at the start, {layers} layers each

The norm of the loss's gradient, of the stream after each sub-layer and of all weights of each layer; the smallest as a share of the
largest within a stack.

{table(head, rows)}

{verdict}{nothing_yet(starts)}

![Gradients in the decoder](difficulty/gradients-decoder.png)

![Gradients in the encoder](difficulty/gradients-encoder.png)
"""


def nothing_yet(starts: dict[str, Found]) -> str:
    none = [wiring for wiring, start in starts.items() if max(start["stream_gradients"]["encoder"].values()) == 0]
    return (
        f" The encoder of {listed(none)} has no gradient yet: nothing reads it before the first α has moved."
        if none
        else ""
    )


# --- at the start: amplification ---------------------------------------------------------------------------------------


def amplification(result: Found) -> str:
    depths = result["measured"]
    names = {"noise": "change under noise", "update": "change by a first update", "shares": "sum of the shares β²"}
    sections = []
    for figure, name in names.items():
        curves, rows = [], []
        for wiring in wirings_of(result):
            values = mean_over_seeds(result, wiring, figure, "encoder")
            curves.append(Curve(wiring, depths, values))
        found = growth(result, figure, "encoder")
        curve_png(curves, FOLDER / f"{figure}.png", Axis("layers of the encoder"), Axis(f"{name}, encoder", Linear()))
        for wiring, each in found.items():
            rows.append([wiring, f"{each['times']:.2f}", f"{each['power']:.2f}", f"{each['line']:.3f}", f"{each['logarithm']:.3f}", grows_like(each)])  # fmt: skip
        still = [wiring for wiring in wirings_of(result) if wiring not in found]
        head = [
            name,
            f"{depths[-1]} over {depths[0]} layers",
            "power of the depth",
            "R² of a line",
            "R² of a logarithm",
            "grows",
        ]
        why = "nothing reads its encoder yet" if figure == "update" else "its stack is the identity at its start"
        rest = f"\n{listed(still)}: 0 at every depth, since {why}.\n" if still else ""
        sections.append(f"{table(head, rows)}\n{rest}\n![{name}](difficulty/{figure}.png)\n")
    return f"""## Amplification, at the start, {depths[0]} to {depths[-1]} layers

How much the output of the encoder changes when its weights do, by random noise and by one update of Adam; and the sum over all
sub-layers of β², what a sub-layer's own answer makes up of what it hands on. The paper says that the change follows that sum, which is
O(N) in post-norm and O(log N) in pre-norm. Means over {len({each["seed"] for each in result["starts"]})} starts.

{verdict_of_amplification(result)}

{chr(10).join(sections)}"""


def verdict_of_amplification(result: Found) -> str:
    said = []
    for figure, name in (
        ("shares", "The sum of shares"),
        ("noise", "The change under noise"),
        ("update", "The change by a first update"),
    ):
        found = growth(result, figure, "encoder")
        post, pre = found["post-norm"], found["pre-norm"]
        seen = grows_like(post) in ("as a line", "faster than a line") and grows_like(pre) == "as a logarithm"
        weaker = post["times"] > pre["times"]
        mark = "seen" if seen else "seen in part" if weaker else "not seen"
        said.append(
            f"- **{name}: {mark}.** From {result['measured'][0]} to {result['measured'][-1]} layers it grows {post['times']:.1f} times in "
            f"post-norm ({grows_like(post)}) and {pre['times']:.1f} times in pre-norm ({grows_like(pre)})."
        )
    return "\n".join(said)


# --- training ----------------------------------------------------------------------------------------------------------


def state_of(run: Found, unigram: float) -> str:
    if run["diverged"] or run["valid"] is None:
        return "diverged"
    return f"{run['valid']:.2f}" if learned(run, unigram) else f"{run['valid']:.2f} (stuck)"


def training(result: Found) -> str:
    wirings, unigram = wirings_of(result), result["unigram"]
    rows, plots, sentences = [], [], []
    cases = sorted(
        {(run["setting"], run["layers"]) for run in result["runs"]}, key=lambda case: (order_of(case[0]), case[1])
    )
    for setting, layers in cases:
        name = f"{layers}-{layers}, {setting}"
        runs = {run["wiring"]: run for run in result["runs"] if (run["setting"], run["layers"]) == (setting, layers)}
        rows.append([name, *(state_of(runs[wiring], unigram) for wiring in wirings)])
        curves = [
            Curve(
                wiring,
                [step for step, _ in run["curve"]],
                [math.nan if loss is None else loss for _, loss in run["curve"]],
            )
            for wiring, run in runs.items()
            if any(loss is not None for _, loss in run["curve"])
        ]
        last = max(step for run in runs.values() for step, _ in run["curve"])
        curves.append(Curve("frequencies alone", [1, last], [unigram, unigram]))
        file = f"loss-{layers}-{setting}.png".replace(" ", "-")
        curve_png(curves, FOLDER / file, Axis("updates"), Axis("training loss, nats a token"))
        plots.append(f"![{name}](difficulty/{file})\n*{name}*\n")
        fine = [wiring for wiring in wirings if learned(runs[wiring], unigram)]
        bad = [wiring for wiring in wirings if wiring not in fine]
        best = min(fine, key=lambda wiring: runs[wiring]["valid"]) if fine else None
        told = f"- {name}: {f'{listed(bad)} hardly learned' if bad else 'all learned'}"
        sentences.append(told + (f"; lowest is {best} at {runs[best]['valid']:.2f}." if best else "."))
    return f"""## Training

Validation loss in nats a token after {result["recipe"]["updates of a run"]} updates, in each row with the same rate and schedule. Who knows how often each
token is written, and nothing else, gets {unigram:.2f}; *stuck* is less than {MARGIN} below that. Layers of encoder and decoder:

{table(["", *wirings], rows)}

{chr(10).join(sentences)}

These are single and short runs, at rates that were chosen for none of the wirings: they show which of them get going.

{chr(10).join(plots)}
{while_training(result)}"""


def order_of(setting: str) -> int:
    return ("with warm-up", "without warm-up", "three times the rate").index(setting)


def while_training(result: Found) -> str:
    deepest = max(result["trained"])
    rows = []
    for run in result["runs"]:
        if run["layers"] != deepest or run["setting"] != "with warm-up" or not run["by_layer"]:
            continue
        cells = []
        for figure in ("gradient_norms", "relative_updates"):
            for record in (run["by_layer"][0], run["by_layer"][-1]):
                values = [value for value in record[figure]["decoder"] if value is not None]
                share = lowest_share(values) if values else None
                cells.append(f"{told_share(share)} (step {record['step']})")
        rows.append([run["wiring"], *cells])
    head = ["decoder", "gradients, first", "gradients, last", "updates, first", "updates, last"]
    even = "Adam divides by the size of gradients: updates are far more even than what they are made of."
    return f"""### Gradients and updates by layer, {deepest}-{deepest} with warm-up

The smallest over the largest of the layers of the decoder, as `TrainSettings(gradient_norms=True)` records them; an update is counted
as a share of a layer's weights. {even if evened(result, deepest) else ""}

{table(head, rows)}
"""


def evened(result: Found, deepest: int) -> bool:
    """Whether post-norm's first update is more even over the layers than its first gradient."""
    looked_for = ("post-norm", deepest, "with warm-up")
    for run in result["runs"]:
        if (run["wiring"], run["layers"], run["setting"]) == looked_for and run["by_layer"]:
            first = run["by_layer"][0]
            gradients, updates = (first[figure]["decoder"] for figure in ("gradient_norms", "relative_updates"))
            if None not in (*gradients, *updates):
                return (lowest_share(updates) or 0.0) > 2 * (lowest_share(gradients) or 0.0)
    return False


def difficulty_page(result: Found) -> str:
    sizes, versions = result["sizes"], result["versions"]
    by = ", ".join(f"{name} {number}" for name, number in versions.items())
    return f"""{HEAD}
{result["pairs"]["train"]:,} English–German pairs, {result["pairs"]["valid"]:,} to validate on; encoder-decoders of width {sizes["width"]} ({sizes["hidden"]} hidden
units, {sizes["heads"]} heads). One {result["hardware"]["device"]}; {by}. All runs took {result["seconds"] / 60:.1f} minutes, several at a time.

{gradients(result)}
{amplification(result)}
{training(result)}
{MEANING}
## Recipe

{recipe_of(result)}

{RECIPE.format(steps=result["recipe"]["updates of a run"], depths=",".join(map(str, result["trained"])))}"""


if __name__ == "__main__":
    write_pages({"difficulty": Page(difficulty_page, runs=())})
