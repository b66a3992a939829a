"""Write the results page of `recipes/emoji.py` from the folder of its runs.

    python recipes/emoji_report.py emoji runs/emoji

Copies what the page states (`result.json` and each `metrics.jsonl`) to docs/results/ and writes the page and its curves
beside it. Without a run folder the page is written anew from what was copied before.
"""

from __future__ import annotations

from typing import Any

from pages import RESULTS, Page, curve_by_steps, made_by, recipe_of, write_pages

from qkv.look.axes import Axis
from qkv.look.curves import curve_png

NAMES = {"emoji": "emoji alone", "all-drawings": "emoji and clip art"}
# What a column of the table is called, where its figure stands, and the guess it is held against.
COLUMNS = (
    ("name, top 1", ("names", "accuracy"), "names"),
    ("name, top 5", ("names", "top5"), "names top5"),
    ("category", ("categories",), "categories"),
    ("category, by known emoji", ("categories by known emoji",), "categories"),
    ("subcategory", ("subcategories",), "subcategories"),
    ("subcategory, by known emoji", ("subcategories by known emoji",), "subcategories"),
)


def emoji_page(result: dict[str, Any]) -> str:
    runs, chance = result["runs"], result["chance"]
    curve_png(
        [curve_by_steps("emoji", run["folder"], "top5", NAMES[name]) for name, run in runs.items()],
        RESULTS / "emoji" / "top5.png",
        Axis("updates"),
        Axis("own name among the five nearest, validation emoji"),
    )
    header = "| model | " + " | ".join(name for name, _, _ in COLUMNS) + " |"
    rows = [row(f"**{NAMES[name]}**", run["test"]) for name, run in runs.items()]
    rows.append(row("untrained", result["untrained"]))
    rows.append("| guessing | " + " | ".join(percent(chance[guess]) for _, _, guess in COLUMNS) + " |")
    table = "\n".join([header, "|---" * (len(COLUMNS) + 1) + "|", *rows])
    sizes, emoji = result["sizes"], result["emoji"]
    trained = "\n".join(
        f"- {NAMES[name]}: {run['things']:,} things, {run['step']:,} updates, {run['tokens'] / 1e6:.2f}M pairs seen, "
        f"{run['seconds'] / 60:.1f} GPU minutes, {run['flops'] / 1e15:.1f} PFLOP; {run['weights']}"
        for name, run in runs.items()
    )
    said = "\n".join(f"| {each['name']} | {' · '.join(each['said'])} |" for each in result["examples"])
    return f"""# CLIP in small: emoji by their names

*Written by `recipes/emoji_report.py` from the runs beside this page; the figures are theirs.*

Does a model that has only seen drawings with their captions find the name of a drawing it never saw, and sort it into classes
that it was never trained to tell? {emoji["train"]:,} emoji to learn from ({result["pictures of emoji"]["train"]:,} pictures: each
in all its skin tones), {emoji["valid"]} to choose weights by and {emoji["test"]} to test on. Tones, genders, hair and direction of one
emoji, and pictures that can hardly be told apart (such as flags that are the same), are on one side only. In a second run
{result["drawings"]:,} drawings of the Open Clip Art Library with their titles and keywords are learned from as well.

A CLIP of {result["parameters"] / 1e6:.1f}M parameters (pictures: {sizes["image_layers"]} layers of {sizes["image_width"]}, {sizes["image"]}
pixels in patches of {sizes["patch"]}; texts: {sizes["text_layers"]} layers of {sizes["text_width"]}, {sizes["vocabulary"]:,} tokens).
{made_by(result["versions"], result["device"])}

{trained}

Right answers on the {emoji["test"]} held-out emoji, in %:

{table}

*name*: the emoji's own among the names of all held-out emoji. *category*: one of {1 / chance["categories"]:.0f} by a few words such
as "an animal" and "a plant"; always answering with the largest category of the training emoji would be right for
{percent(chance["largest category"])}. *subcategory*: one of {chance["asked subcategories"]:.0f} by its bare name, such as
"animal mammal". *by known emoji*: a class is told by the names of training emoji that belong to it. In all cases the class is
the mean direction of its words, and no picture is used to define it. No emoji's caption gives its category; words such as "flag"
and "face" stand in many names, though, and words such as "animal" and "food" in keywords of the clip art.

{finding(runs, chance)}

![Names found against updates](emoji/top5.png)

The three likeliest names of some held-out emoji, by the model that saw all drawings, evenly spread over the list:

| emoji | said |
|---|---|
{said}

## Recipe

{recipe_of(result)}

```
make corpora
python recipes/emoji.py --corpora corpora --out runs/emoji
python recipes/emoji_report.py emoji runs/emoji
```
"""


def row(name: str, test: dict[str, Any]) -> str:
    return f"| {name} | " + " | ".join(percent(figure(test, path)) for _, path, _ in COLUMNS) + " |"


def figure(test: dict[str, Any], path: tuple[str, ...]) -> float | None:
    for name in path:
        test = test[name]
    return test  # type: ignore[return-value]


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def finding(runs: dict[str, Any], chance: dict[str, float]) -> str:
    """What the figures say, whatever they are."""
    alone, both = (runs[name]["test"]["names"]["accuracy"] for name in ("emoji", "all-drawings"))
    times = both / chance["names"]
    first = f"With all drawings {percent(both)}% of the names are found first, {times:.0f} times as many as by guessing"
    if both > alone:
        second = f"; with emoji alone it is {percent(alone)}%, so other drawings of other hands help."
    elif both < alone:
        second = f"; with emoji alone it is {percent(alone)}%: here the other drawings did not help."
    else:
        second = ", and with emoji alone it is the same."
    names, classes = ("categories", "categories by known emoji")
    told, known = (runs["all-drawings"]["test"][name] for name in (names, classes))
    third = ""
    if told is not None and known is not None:
        if known > told:
            better = "the names of known emoji describe a category better"
        else:
            better = "a few plain words describe a category no worse"
        third = (
            f" Of the two ways to tell a category, {better} (words {percent(told)}%, known emoji {percent(known)}%)."
        )
    return (
        first
        + second
        + third
        + (
            " A name whose words stand in no training caption cannot be known at all, which bounds what any such model can find."
        )
    )


if __name__ == "__main__":
    write_pages({"emoji": Page(emoji_page, ("emoji", "all-drawings"))})
