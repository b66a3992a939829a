"""Write the results page of the speech recipe from the folder of its run.

    python recipes/speech_report.py speech runs/speech

Copies what the page states (`result.json` and each `metrics.jsonl`) to docs/results/ and writes the page and its curves
beside it. Without a run folder the page is written anew from what was copied before.
"""

from __future__ import annotations

from typing import Any

from pages import RESULTS, Page, curve_by_steps, made_by, recipe_of, write_pages

from qkv.look.axes import Axis
from qkv.look.curves import curve_png

LANGUAGES = {"bg": "Bulgarian", "es": "Spanish", "fr": "French", "ro": "Romanian", "ru": "Russian"}
FIRST, SECOND, THIRD = "pre-trained", "from scratch", "pre-trained, all learns"
RUNS = ("pre-trained", "pre-trained-all-learns", "from-scratch")


def speech_page(result: dict[str, Any]) -> str:
    taught = result["taught"]
    curve_png(
        [curve_by_steps("speech", "pretrained", "accuracy", "hidden frames")],
        RESULTS / "speech" / "found.png",
        Axis("updates"),
        Axis("hidden frames found, held-out sounds"),
    )
    for figure, what in (("wer", "words"), ("cer", "letters")):
        curve_png(
            [curve_by_steps("speech", run["folder"], figure, name) for name, run in taught.items()],
            RESULTS / "speech" / f"{figure}.png",
            Axis("updates"),
            Axis(f"wrong {what}, validation sentences, greedy"),
        )
    rows = "\n".join(
        f"| {name} | {run['minutes_of_speech']:.0f} | {way} | {rate(run, way, 'wer')} | {rate(run, way, 'cer')} | "
        f"{100 * run['test'][way]['whole']:.0f} |"
        for name, run in taught.items()
        for way in ("greedy", "beam")
    )
    first, sizes, speech = result["pretraining"], result["sizes"], result["speech"]
    seconds = sum(run["seconds"] for run in taught.values())
    alone = result["minutes_alone"]
    language = LANGUAGES[result["language"]]
    return f"""# wav2vec 2.0 in small: sound alone, then minutes of speech

*Written by `recipes/speech_report.py` from the runs beside this page; the figures are theirs.*

**Asked.** Is sound without texts worth anything to a model that then learns to write from little speech? The same model is taught
with as many updates on the same sentences, after it has learned from sound alone and from random weights.

**Found.** {finding(taught)}

**Sound alone.** {sum(alone.values()) / 60:.1f} hours, {result["sounds_alone"]:,} real recordings; minutes by source and language:
{", ".join(f"{name} {minutes:.0f}" for name, minutes in alone.items())} (asterisk is what telephones say, at 8 kHz; tuxpaint is
captions of pictures). {result["parameters"] / 1e6:.1f}M parameters
({sizes["layers"]} layers of {sizes["width"]} above {len(sizes["channels"])} convolutions), {first["step"]:,} updates,
{first["seconds"] / 60:.1f} GPU minutes, {first["flops"] / 1e15:.1f} PFLOP. On held-out sounds it finds
{100 * first["figures"]["accuracy"]:.1f}% of the hidden frames among 100 distractors each, and
{first["figures"]["entries_used"]:.0f} of {sizes["codebooks"] * sizes["entries"]} codebook entries are in use.
{made_by(result["versions"], result["device"])}

**Speech with texts.** Captions of pictures, read aloud in {language} by one person: {speech["train"]["sounds"]:,} to train on
({speech["train"]["minutes"]:.1f} minutes, {speech["train"]["words"]:,} words), {speech["valid"]["sounds"]:,} to choose weights and
the language model's weight on, and {speech["test"]["sounds"]:,} to test on ({speech["test"]["words"]:,} words), once, at the end.
Equal texts are on one side, and no recording to validate or test on was learned from, not even without its text.
{100 * result["unseen_words"]:.0f}% of the test words stand in no training text. All teachings together took {seconds / 60:.1f} GPU
minutes.

| model | minutes taught | letters read | word error rate % (95% range) | letter error rate % (95% range) | sentences all right % |
|---|---|---|---|---|---|
{rows}

*beam* keeps {next(iter(taught.values()))["beam"]["width"]} texts and weighs them by 3-grams of words, counted in the training texts alone.
The range says what other test sentences of this kind might have given; it says nothing of other seeds, of which each run had one.

![Wrong words of validation sentences against updates](speech/wer.png)

![Wrong letters of validation sentences against updates](speech/cer.png)

![Hidden frames found against updates](speech/found.png)

What they wrote, letters read greedily:

{examples(taught)}

## How far this carries

One speaker, short captions, a small model and few updates: the rates are those of this task and not of speech at large. The paper
learned from 960 hours for 400,000 updates. From scratch nothing is frozen, since convolutions that know nothing must learn;
after sound alone they stay as they are, as in the paper, and the new head learns alone at first. *all learns* freezes no
convolution.

## Recipe

{recipe_of(result)}

```
make corpora
python recipes/speech.py --corpora corpora --out runs/speech --steps {first["step"]} \\
    --taught-steps {next(iter(result["taught"].values()))["step"]}
python recipes/speech_report.py speech runs/speech
```
"""


def rate(run: dict[str, Any], way: str, figure: str) -> str:
    found = run["test"][way]
    low, high = found[f"{figure}_range"]
    return f"{100 * found[figure]:.1f} ({100 * low:.0f} to {100 * high:.0f})"


def finding(taught: dict[str, Any]) -> str:
    """What the greedy word error rates say, whatever they are."""
    one, other = taught[FIRST]["test"]["greedy"], taught[SECOND]["test"]["greedy"]
    apart = one["wer_range"][1] < other["wer_range"][0] or other["wer_range"][1] < one["wer_range"][0]
    rates = f"{100 * one['wer']:.1f}% of the words are wrong after sound alone, {100 * other['wer']:.1f}% from scratch"
    letters = f"{100 * one['cer']:.1f}% and {100 * other['cer']:.1f}% of the letters"
    all_learns = f"With convolutions that learn too it is {100 * taught[THIRD]['test']['greedy']['wer']:.1f}%."
    if one["wer"] < other["wer"] and apart:
        return f"Yes: {rates} ({letters}), read greedily, on sentences that neither ever heard. {all_learns}"
    if one["wer"] < other["wer"]:
        return (
            f"Perhaps: {rates} ({letters}), read greedily, but the test sentences are too few to be sure of the "
            f"difference. {all_learns}"
        )
    return (
        f"Not here: {rates} ({letters}), read greedily. With this little sound and this few updates the paper's finding "
        f"does not show. {all_learns}"
    )


def examples(taught: dict[str, Any]) -> str:
    pairs = zip(taught[FIRST]["examples"], taught[SECOND]["examples"], strict=True)
    lines = [f"| {one['wanted']} | {one['greedy'] or '–'} | {other['greedy'] or '–'} |" for one, other in pairs]
    return "\n".join(["| said | pre-trained | from scratch |", "|---|---|---|", *lines])


if __name__ == "__main__":
    write_pages({"speech": Page(speech_page, ("pretrained", *RUNS, *(f"{run}-less" for run in RUNS)))})
