"""Write the results pages of the text recipes from the folders of their runs.

    python recipes/text_report.py gpt runs/gpt
    python recipes/text_report.py bert runs/bert
    python recipes/text_report.py verses runs/verses

Copies what a page states (`result.json` and each `metrics.jsonl`) to docs/results/ and writes the page and its curves
beside it. Without a run folder a page is written anew from what was copied before.
"""

from __future__ import annotations

from typing import Any

from pages import RESULTS, Page, curve_by_minutes, made_by, recipe_of, write_pages

from qkv.look.axes import Axis
from qkv.look.curves import curve_png


def gpt_page(result: dict[str, Any]) -> str:
    curve_png(
        [curve_by_minutes("gpt", "", "bits_per_byte", "GPT")],
        RESULTS / "gpt" / "bits.png",
        Axis("training minutes"),
        Axis("bits per byte, held-out documents"),
    )
    packed = "\n".join(f"| {name} -9, the same bytes | {bits:.2f} |" for name, bits in result["compressed"].items())
    written = "\n\n".join(f"> **{prompt}**{text}" for prompt, text in result["continuations"].items())
    sizes = result["sizes"]
    return f"""# A GPT pre-trained on real text

*Written by `recipes/text_report.py` from the run beside this page; the figures are its own.*

{result["documents"]["train"]:,} documents: film reviews, newspaper articles, addresses to the Congress and novels, packed
into rows of {result["recipe"]["length"]} tokens in which no token sees another document. {result["parameters"] / 1e6:.1f}M
parameters ({sizes["layers"]} layers of {sizes["width"]}), {result["tokens"] / 1e6:.0f}M tokens in {result["steps"]:,} updates,
{result["minutes"]:.1f} GPU minutes, {result["flops"] / 1e15:.0f} PFLOP. {made_by(result["versions"], result["device"])}

| on {result["documents"]["test"]} documents it never saw | bits per byte |
|---|---|
| GPT ({result["weights"]}), perplexity {result["test"]["perplexity"]:.1f} a token | **{result["test"]["bits_per_byte"]:.3f}** |
{packed}

![Bits per byte against training minutes](gpt/bits.png)

Continuations, top-p 0.9, the first seed tried:

{written}

## Recipe

{recipe_of(result)}

```
make corpora
python recipes/language_model.py --corpora corpora --out runs/gpt --minutes {result["recipe"]["minutes"]}
python recipes/text_report.py gpt runs/gpt
```
"""


def bert_page(result: dict[str, Any]) -> str:
    curve_png(
        [curve_by_minutes("bert", "pretrained", "perplexity", "hidden tokens")],
        RESULTS / "bert" / "perplexity.png",
        Axis("training minutes"),
        Axis("perplexity of hidden tokens"),
    )
    tuned = result["fine-tuned"]
    curve_png(
        [curve_by_minutes("bert", run["folder"], "accuracy", name) for name, run in tuned.items() if name != "student"],
        RESULTS / "bert" / "accuracy.png",
        Axis("fine-tuning minutes"),
        Axis("accuracy on held-out reviews"),
    )
    teacher = tuned["pre-trained"]
    rows = "\n".join(
        f"| {name} | {run['parameters'] / 1e6:.1f}M | {run['seconds'] / 60:.1f} | {100 * run['test']['accuracy']:.1f} | "
        f"{100 * run['test']['macro_f1']:.1f} | {run['texts_per_second'] / teacher['texts_per_second']:.2f} |"
        for name, run in tuned.items()
    )
    first, sizes = result["pretraining"], result["sizes"]
    tuning = f" --fine-tuning-minutes {result['recipe']['fine-tuning'].split()[0]}"
    return f"""# BERT in small: two questions about text, then the sentiment of reviews

*Written by `recipes/text_report.py` from the runs beside this page; the figures are theirs.*

Pre-trained on {result["documents"]["train"]:,} documents with both of BERT's questions: {result["parameters"] / 1e6:.1f}M
parameters ({sizes["layers"]} layers of {sizes["width"]}), {first["seconds"] / 60:.1f} GPU minutes, {first["step"]:,} updates,
{first["flops"] / 1e15:.0f} PFLOP. On held-out documents: perplexity of hidden tokens {first["figures"]["perplexity"]:.1f},
second segment told right {100 * first["figures"]["next_sentence_accuracy"]:.1f}% of the time.
{made_by(result["versions"], result["device"])}

Fine-tuned on {result["reviews"]["train"]:,} film reviews (IMDB), tested on {result["reviews"]["test"]:,}; reviews that stand
on both sides as published were taken out of the training half, and no test review was used for pre-training.

| model | parameters | fine-tuning minutes | test accuracy % | macro-F1 % | reviews a second, against the first |
|---|---|---|---|---|---|
{rows}

*from scratch* is the same fine-tuning from random weights; *student* has half the layers, begins with every other one of the
fine-tuned model's, and learns from its predictions as well as from the labels. Reviews a second are measured once, cutting
text into tokens included, so a tenth more or less means nothing; `bench/student_vs_teacher.py` times the networks alone.

![Accuracy against fine-tuning minutes](bert/accuracy.png)

![Perplexity of hidden tokens against pre-training minutes](bert/perplexity.png)

## Recipe

{recipe_of(result)}

```
make corpora
python recipes/sentiment.py --corpora corpora --out runs/bert --minutes {result["recipe"]["minutes"]}{tuning}
python recipes/text_report.py bert runs/bert
```
"""


def verses_page(result: dict[str, Any]) -> str:
    curve_png(
        [
            curve_by_minutes("verses", "paraphrase", "accuracy", "paraphrases"),
            curve_by_minutes("verses", "embeddings", "accuracy", "vectors"),
        ],
        RESULTS / "verses" / "accuracy.png",
        Axis("fine-tuning minutes"),
        Axis("accuracy on held-out verses"),
    )
    vectors, pairs = result["embeddings"], result["paraphrase"]
    peer = result.get("peer")
    line = "" if peer is None else f"| {peer['name']}, as published | {100 * peer['found_first']:.1f} |\n"
    session = result["session"]
    return f"""# Paraphrases and sentence embeddings: verses in two translations

*Written by `recipes/text_report.py` from the runs beside this page; the figures are theirs.*

{result["verses"]["train"]:,} verses of the King James and the World English Bible to learn from, and {result["verses"]["test"]:,}
of whole books that were held out. The encoder is that of [BERT in small](bert.md).
{made_by(session["versions"], session["hardware"]["device"])}

**Paraphrase.** Is a verse the translation of another, or of a verse near it in the chapter? **{100 * pairs["test_accuracy"]:.1f}%**
right on the held-out books (guessing: 50%), after {pairs["seconds"] / 60:.1f} GPU minutes.

**Embeddings.** Vectors learned by contrast with all other verses of a batch. The share of held-out verses whose translation is
the nearest of all {result["verses"]["test"]:,}:

| model | found first, % |
|---|---|
| before it learned from verses | {100 * vectors["found_first_before"]:.1f} |
| after {vectors["seconds"] / 60:.1f} GPU minutes | **{100 * vectors["found_first"]:.1f}** |
{line}
The published model has never seen this task; ours has seen other books of the same two translations.

![Accuracy against fine-tuning minutes](verses/accuracy.png)

## Recipe

{recipe_of(result)}

```
python recipes/verses.py --verses VERSES --model runs/bert/pretrained --out runs/verses --minutes {result["recipe"]["minutes"]} \\
    --peer checkpoints/all-minilm-l6-v2
python recipes/text_report.py verses runs/verses
```
"""


if __name__ == "__main__":
    write_pages(
        {
            "gpt": Page(gpt_page),
            "bert": Page(bert_page, ("pretrained", "pre-trained", "from-scratch", "student")),
            "verses": Page(verses_page, ("paraphrase", "embeddings")),
        }
    )
