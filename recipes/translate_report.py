"""Write the results page of the translation recipes from the folders of their runs.

    python recipes/translate_report.py runs/transformer runs/rnn

Copies what the page states (`result.json` and `metrics.jsonl`) to
docs/results/english-german/ and writes the page and its curves beside them. Without arguments it writes the page
anew from what was copied before.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkv.files import read_json, write_whole
from qkv.look.axes import Axis
from qkv.look.curves import Curve, curve_png

RESULTS = Path(__file__).parents[1] / "docs" / "results"
KEPT = ("result.json", "metrics.jsonl")
NAMES = {
    "transformer": "Transformer (base, norm before)",
    "transformer-2017": "Transformer (base, as published)",
    "rnn": "RNN with attention",
}
# A plain torch.nn.Transformer of base size in a textbook recipe, on the same data and GPU.
TEXTBOOK = {"minutes": 7, "target_tokens": 40e6, "BLEU": 18.5, "chrF": 50.1}


def keep(run: Path) -> None:
    model = read_json(run / "result.json")["model"]
    folder = RESULTS / "english-german" / model
    folder.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        shutil.copyfile(run / name, folder / name)


def evaluations(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == "evaluation"]


def curves(folders: dict[str, Path], x: Callable[[dict[str, Any]], float]) -> list[Curve]:
    return [
        Curve(
            NAMES[model],
            [x(record) for record in evaluations(folder)],
            [record["figures"]["bleu"] for record in evaluations(folder)],
        )
        for model, folder in folders.items()
    ]


def when_reached(folder: Path, score: float) -> dict[str, float] | None:
    """Minutes and FLOPs at which the validation curve first reaches a score, on straight lines between its points."""
    before = {"bleu": 0.0, "minutes": 0.0, "flops": 0.0}
    for record in evaluations(folder):
        now = {"bleu": record["figures"]["bleu"], "minutes": record["seconds"] / 60, "flops": record["flops"]}
        if now["bleu"] >= score:
            share = (score - before["bleu"]) / (now["bleu"] - before["bleu"])
            return {name: before[name] + share * (now[name] - before[name]) for name in now}
        before = now
    return None


def comparison() -> str:
    """The lectures' claim, put to the runs: the Transformer scores higher at a fraction of the cost."""
    folders = {model: RESULTS / "english-german" / model for model in ("transformer", "rnn")}
    if not all((folder / "metrics.jsonl").exists() for folder in folders.values()):
        return ""
    last = {model: evaluations(folder)[-1] for model, folder in folders.items()}
    bleu = {model: record["figures"]["bleu"] for model, record in last.items()}
    reached = when_reached(folders["transformer"], bleu["rnn"])
    if reached is None:
        return ""
    minutes, flops = last["rnn"]["seconds"] / 60, last["rnn"]["flops"]
    more = last["transformer"]["flops"] / flops
    share = reached["minutes"] / minutes
    return f"""
## Does the Transformer score higher at a fraction of the cost?

Higher, yes: at the same GPU minutes its validation BLEU is {bleu["transformer"]:.1f} against {bleu["rnn"]:.1f}.
It is at the recurrent model's last score after {reached["minutes"]:.1f} of the {minutes:.1f} minutes,
{share:.0%} of the time.
Counted in FLOPs there is hardly a difference: it had spent {reached["flops"] / 1e15:.0f} PFLOP by then, and the
recurrent model {flops / 1e15:.0f} in its whole run. What the Transformer saves is time, because it does more of its
arithmetic at once: it got {more:.1f} times the FLOPs out of the same minutes of the same GPU. These are
single runs; the learning rate falls to zero at the end of each, which flatters the last point of the recurrent curve.
"""


def page(results: dict[str, dict[str, Any]]) -> str:
    rows = [
        "| model | parameters | GPU minutes | updates | target tokens | PFLOP | BLEU, beam 5 (greedy) | chrF |",
        "|---|---|---|---|---|---|---|---|",
        f"| textbook `torch.nn.Transformer` | 52M | {TEXTBOOK['minutes']} | | {TEXTBOOK['target_tokens'] / 1e6:.0f}M "
        f"| | ({TEXTBOOK['BLEU']}) | ({TEXTBOOK['chrF']}) |",
    ]
    for model, result in results.items():
        beam, greedy = result["scores"]["test, beam 5"], result["scores"]["test, beam 1"]
        rows.append(
            f"| {NAMES[model]} | {result['parameters'] / 1e6:.1f}M | {result['minutes']:.1f} | {result['steps']:,} | "
            f"{result['target_tokens'] / 1e6:.0f}M | {result['flops'] / 1e15:.0f} | "
            f"**{beam['BLEU']:.1f}** ({greedy['BLEU']:.1f}) | **{beam['chrF']:.1f}** ({greedy['chrF']:.1f}) |"
        )
    first = next(iter(results.values()))
    versions = ", ".join(f"{name} {number}" for name, number in first["versions"].items())
    recipes = "\n".join(
        f"- {NAMES[model]}: " + ", ".join(f"{name} {value}" for name, value in result["recipe"].items())
        for model, result in results.items()
    )
    whole = ", ".join(
        f"{result['wall_minutes']:.1f} with it for the {NAMES[model]}" for model, result in results.items()
    )
    remarks = "".join(
        f"\n{NAMES[model]}: {result['remark']}\n" for model, result in results.items() if "remark" in result
    )
    return f"""# English to German: the Transformer and its predecessor

*Written by `recipes/translate_report.py` from the runs beside this page; qkv's figures are theirs.*

237,247 sentence pairs of software, manuals, package descriptions, game dialogue and general prose; 2,000 pairs each
to validate and to test, whose scores the table gives. One {first["device"]}; {versions}.
Minutes are training time, evaluation not counted ({whole}). FLOPs are those of matrix products,
forward and backward, padding included. BLEU is sacreBLEU's, `{first["scores"]["test, beam 5"]["signature"]}`.

{chr(10).join(rows)}

The textbook line is a plain `torch.nn.Transformer` recipe of about the same size on the same data and kind of GPU
(greedy only). It was measured apart from these runs, and no script here runs it again.
{remarks}{comparison()}
![Validation BLEU against training minutes](english-german/bleu-minutes.png)

![Validation BLEU against FLOPs](english-german/bleu-flops.png)

Validation BLEU here is greedy, on the first 500 sentences, of the moving average of the weights.

## Recipe

All models: one shared byte-level BPE vocabulary cut anew each epoch with dropout, label smoothing 0.1, dropout 0.3,
gradients clipped at 1, and what is said of each:

{recipes}

```
python recipes/translate.py transformer --data DATA --out runs/transformer
python recipes/translate.py rnn --data DATA --out runs/rnn
python recipes/translate_report.py runs/transformer runs/rnn
```
"""


def main(runs: list[Path]) -> None:
    for run in runs:
        keep(run)
    folders = {
        model: RESULTS / "english-german" / model
        for model in NAMES
        if (RESULTS / "english-german" / model / "result.json").exists()
    }
    score = Axis("validation BLEU")
    curve_png(
        curves(folders, lambda record: record["seconds"] / 60),
        RESULTS / "english-german" / "bleu-minutes.png",
        Axis("training minutes"),
        score,
    )
    curve_png(
        curves(folders, lambda record: record["flops"] / 1e15),
        RESULTS / "english-german" / "bleu-flops.png",
        Axis("PFLOP"),
        score,
    )
    results = {model: read_json(folder / "result.json") for model, folder in folders.items()}
    write_whole(RESULTS / "english-german.md", page(results).encode())


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
