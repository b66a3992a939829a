"""Write the results page of `recipes/recover.py` from the folder of its runs.

    python recipes/recover_report.py recover runs/recover

Copies what the page states (`result.json`) to docs/results/ and writes the page. Without a run folder the page is written
anew from what was copied before.
"""

from __future__ import annotations

import math
from typing import Any

from pages import Page, made_by, recipe_of, write_pages


def recover_page(result: dict[str, Any]) -> str:
    published, held, recipe = result["published"], result["held"], result["recipe"]
    rows = "\n".join(row(spelled, run, published) for spelled, run in result["runs"].items())
    return f"""# Another attention in a published model, and what distillation brings back

*Written by `recipes/recover_report.py` from the runs beside this page; the figures are theirs.*

{result["model"]}, {result["parameters"] / 1e6:.0f}M parameters, reads {held["length"]:,} tokens at once. Its attention is swapped
(`qkv.with_attention`), and the swapped model learns for {recipe["steps"]} updates or a minute, of {recipe["rows"]} rows of
{recipe["length"]:,} tokens, to say what the whole model says: nothing is learned from the texts themselves, so that what comes back
is the model's own. {result["documents"]["train"]} addresses to the Congress to learn from; the loss is measured on {held["rows"]} rows
of {held["length"]:,} tokens of {result["documents"]["test"]} others, {held["tokens"]:,} predictions in all.
{made_by(result["versions"], result["device"])}

| attention | loss, as swapped | after distillation | bits per byte | of the loss, brought back | updates |
|---|---|---|---|---|---|
| the model's own | {published["loss"]:.3f} | | {published["bits_per_byte"]:.3f} | | |
{rows}

{finding(result)}

Learned in rows of {recipe["length"]:,} tokens and measured in rows of {held["length"]:,}: what lies farther back than a row to learn
from was never practised.

## Recipe

{recipe_of(result)}

```
make corpora checkpoints
python recipes/recover.py --corpora corpora --out runs/recover \\
    --model checkpoints/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf
python recipes/recover_report.py recover runs/recover
```
"""


def row(spelled: str, run: dict[str, Any], published: dict[str, float]) -> str:
    lost = run["swapped"]["loss"] - published["loss"]
    back = (run["swapped"]["loss"] - run["recovered"]["loss"]) / lost if lost > 0 else math.nan
    return (
        f"| `{spelled}` | {run['swapped']['loss']:.3f} | **{run['recovered']['loss']:.3f}** | "
        f"{run['recovered']['bits_per_byte']:.3f} | {100 * back:.0f}% | {run['steps']} |"
    )


def finding(result: dict[str, Any]) -> str:
    """In one sentence, which attention ends nearest to the model's own and which farthest."""
    runs, own = result["runs"], result["published"]["loss"]
    order = sorted(runs, key=lambda spelled: runs[spelled]["recovered"]["loss"])
    nearest, farthest = (runs[order[place]]["recovered"]["loss"] - own for place in (0, -1))
    return (
        f"Nearest to the model's own comes `{order[0]}` ({nearest:+.3f} nats a token), farthest stays `{order[-1]}` "
        f"({farthest:+.3f})."
    )


if __name__ == "__main__":
    write_pages({"recover": Page(recover_page, runs=())})
