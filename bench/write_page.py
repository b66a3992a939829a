"""Write docs/performance.md from bench/results/: every figure there comes from a run.

python bench/write_page.py
"""

import json
from pathlib import Path
from typing import Any

from goals import beside_goals

from qkv.look.axes import Axis, Logarithmic
from qkv.look.curves import Curve, curve_png

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
SHOWN = {"measured": "tokens/s", "limit": "limit"}  # columns of a picture
WHY = {  # there is a cliff at a point of a curve
    ("decoding, by rows", 8): "up to 4 rows the whole step is one program, which keeps all that it computes inside; "
    "for more it is many programs that a CUDA graph launches, and those of 8 rows take as long as those of 16."
}
TITLES = {
    "decode_file_vs_marian": (
        "Translating a file on a CPU",
        "Sentences of real, unequal lengths in batches. The reference runs every row of a batch to the end of its "
        "longest; qkv orders sentences by length, lets each leave its batch when it ends, and keeps the encoder's "
        "memory once for all beams. `ordered` is the reference with the sentences put in order of length for it.",
    ),
    "decode_vs_marian": (
        "Decoding batches of equal length on a CPU",
        "No row ends early and no row is padded, so only the arithmetic counts. One sentence with one beam reads every "
        "weight once a step: memory sets the limit, and a share of it is stated. What our time goes to in settings "
        "like these is told under text to text.",
    ),
    "gpt2_decoding": (
        "Text by GPT-2 on a CPU",
        "One text at a time: every weight is read once a token, so memory sets the limit. A peer that reaches a good "
        "part of it, as all do in single precision, leaves no more than the rest to gain. In 8 bits (`precision=int8`) "
        "what stands between the products weighs more. Our steps are a program in C++, compiled on its first use; "
        "*products and steps* is the time in it and in torch's products. Each library runs in a process of its own: "
        "two in one slow each other down. Perplexity says what fewer bits cost. What is not installed where this was "
        "measured is named.",
    ),
    "encoders_cpu": (
        "Encoders on a CPU",
        "All libraries end in the same kind of matrix products: rows of one length take the time of those products, "
        "and what HF leaves of the limit, at which the cores multiply numbers that stay in registers, is all there is "
        "to gain. In a row all have the same precision, float32 where none is named. "
        "Texts of mixed lengths are read in line, without padding. Each library runs in a process of its own. "
        "Peers that are not installed where this was measured are named.",
    ),
    "encoder_steps_cpu": (
        "Where the time of an encoder goes on a CPU",
        "Ours alone: blocks without attentions, without feed-forwards and no blocks at all, each timed alone, in turns "
        "with the whole. What a part leaves of its limit is what there would be to gain in it: activations, norms, "
        "exponentials and matrices that come from memory take the rest.",
    ),
    "text_to_text_cpu": (
        "Text to text on a CPU",
        "One source at a time reads all weights of a decoder once a token, so memory is the limit; a file is where "
        "leaving the batch at one's end pays. Each library runs in a "
        "process of its own. In 8 bits a quarter of the bytes is read, and other tokens may be written; the limit is "
        "that of single precision.",
    ),
    "first_pictures": (
        "The first training on pictures, on a CPU",
        "`qkv train images` with nothing but --data, --out and --minutes: what it makes of pictures that it never saw, "
        "beside what scikit-learn makes of the same pixels without augmentation, which takes it seconds.",
    ),
    "first_text": (
        "The first training on text, on a CPU",
        "`qkv train lm` with nothing but --data, --valid, --out and --minutes: bits for each byte of a text that it "
        "never saw, beside nanoGPT's recipe for a CPU in plain torch, given as many minutes, and beside what lzma "
        "makes of it when it is shown the text to train on. Our recipe was picked on these held-out bytes: LOG.md has "
        "figures of others, where it is behind lzma after 200 kB.",
    ),
    "starting": (
        "From the start to the first answer, on a CPU",
        "Processes of their own, with nothing loaded before; what Python and torch take alone stands beside them, and "
        "is within what both take for an answer. An answer is timed to where it is read, and to the end of its "
        "process. What the reference library imports only where it is installed is hidden from it: it starts at its "
        "quickest.",
    ),
    "student_vs_teacher": (
        "A distilled student on a CPU",
        "The networks of [BERT in small](results/bert.md) alone, on rows of token numbers: half the layers, nearly "
        "half the time. The reference library's BERT of the teacher's sizes stands beside the teacher.",
    ),
    "gpt2_training_gpu": (
        "A training step of GPT-2 on a GPU",
        "Beside the model as one writes it by hand in torch, compiled whole, and the reference library's. The limit is "
        "that of the matrix products in bfloat16, for 8 bits too.",
    ),
    "gpt2_decoding_gpu": (
        "Text by GPT-2 on a GPU",
        "One text at a time reads every weight once a token: its limit is the memory. Beside the reference library's "
        "static cache, which it compiles, and a step by hand, recorded as a CUDA graph.",
    ),
    "t5_decoding_gpu": ("Text by T5 on a GPU", "Greedily and by beam search, beside the reference library's."),
    "images_gpu": (
        "ViT on a GPU",
        "Beside timm's models, or the reference library's where timm is not installed: the column says whose it is.",
    ),
    "encoding_gpu": (
        "Encoders on a GPU",
        "Rows of one length as token numbers, and texts of a book's lengths from text to vector. A program may begin "
        "before the last has ended: then what time goes to is more than 100% in all.",
    ),
    "sound_gpu": (
        "wav2vec 2.0 and AST on a GPU",
        "From samples and filter banks that are on the GPU, beside the reference library's models.",
    ),
    "attention_gpu": (
        "Attention on a GPU",
        "Our own FlashAttention ([derived here](flash-attention.md)) under a look-ahead mask beside torch's kernels, "
        "in windows of 512 and in the patterns of the Sparse Transformer and its kin beside dense attention over the "
        "same rows. cuDNN's kernel is faster than ours where nothing is hidden, so torch's kernels serve there. "
        "Patterns in factors were measured before their way back became one softmax.",
    ),
    "lsh_gpu": (
        "Hashed attention on a GPU",
        "The call alone and a whole layer of width 512, beside torch's fastest dense kernel and the reference "
        "library's Reformer; [curves](results/reformer.md). Short rows are bound by the host that "
        "launches the programs.",
    ),
    "reversible_gpu": (
        "Reversible layers on a GPU",
        "Memory of activations by depth, beside the same blocks with what autograd keeps; time is what it costs.",
    ),
    "linear_gpu": (
        "Attention that is linear in length, on a GPU",
        "Random features and Linformer from 4,096 to 262,144 tokens against torch's dense kernels, then Linformer's "
        "Table 3: a whole layer forward against one that forms its tables of weights, as the paper's did, with the "
        "paper's factors beside ours. Against a dense kernel that forms no table, what is left to save is less.",
    ),
    "scaling_gpu": (
        "How speed goes with size on a GPU",
        "A model of GPT-2's kind as one thing grows at a time. Limits are those of matrix products in training, and of "
        "the bytes of weights and slots in decoding. A point with less than two thirds of the share of the limit "
        "that the point before it has is called a cliff.",
    ),
    "cost_gpu": (
        "What `qkv cost` foretells of a training step on a GPU",
        "Time and peak memory of a step told beforehand, from shapes and a device measured once "
        "(`bench/measure_device_gpu.py`), beside the medians of real steps of our own training loop and the most that "
        "torch's allocator handed out.",
    ),
    "loop_gpu": (
        "The training loop on a GPU",
        "GPT-2 from shards on disk: the share of the time in which batches were made while the GPU had nothing to do, "
        "and steps of the loop beside bare ones, written by hand, of the same model, objective and optimizer.",
    ),
    "switch_gpu": (
        "A training step of Switch-base-8 on a GPU",
        "Against the reference library's, and against our own T5 with one feed-forward in place of the experts, which "
        "computes as much for a token: what is lost beside it are routing, gathers, and the optimizer's pass over "
        "eight times the feed-forwards. Recorded steps are one CUDA graph, as steps are by default; plain ones "
        "(`record=False`) wait for a slow host.",
    ),
    "grouped_gpu": (
        "The products of a layer of experts on a GPU",
        "torch's grouped kernel computes no row too many, whatever the spread; blocks are for every other device and "
        "kind of number; dense is one matrix for all rows.",
    ),
    "time_to_quality_gpu": (
        "Time to a quality on a GPU",
        "GPT-2 124M on real text, each token read once: a recipe as nanoGPT has it, and ours (Muon, a rate that stays "
        "and then falls), on the same tokens in the same order. What counts is when ours has the loss that the other "
        "ends with.",
    ),
    "train_step_vs_marian": (
        "A training step on a CPU",
        "Forward, backward and AdamW with the same loss. Nearly all of it is matrix products in the same library on "
        "both sides.",
    ),
}


def table(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    told = [[_told(row.get(column, "")) for column in columns] for row in rows]
    return "\n".join(lines + ["| " + " | ".join(cells) + " |" for cells in told])


def _told(value: Any) -> str:
    """Nobody reads more than four digits behind a point."""
    return str(round(value, 4)) if isinstance(value, float) else str(value)


def pictures(rows: list[dict[str, Any]], axes: dict[str, str]) -> str:
    """One for each curve, beside the page; what they are named by."""
    named = []
    for name, label in axes.items():
        points = [row for row in rows if row["curve"] == name and "tokens/s" in row]
        x = [row["x"] for row in points]
        drawn = [Curve(what, x, [row[column] for row in points]) for what, column in SHOWN.items()]
        file = Path(PAGE.stem) / f"{name.replace(', ', '-').replace(' ', '-')}.png"
        (PAGE.parent / file).parent.mkdir(exist_ok=True)
        curve_png(drawn, PAGE.parent / file, Axis(label, Logarithmic()), Axis("tokens/s", Logarithmic()), name)
        named.append(f"![{name}]({file.as_posix()})")
    return "\n\n".join(named)


def cliffs(rows: list[dict[str, Any]]) -> str:
    """Why each is there, as far as that is known."""
    found = [(row["curve"], row["x"]) for row in rows if row["remark"] == "a cliff"]
    return "".join(
        f"\n\nThe cliff at {x} of “{curve}”: {WHY.get((curve, x), 'not explained yet.')}" for curve, x in found
    )


def picture_of_runs(name: str, rows: list[dict[str, Any]]) -> str:
    """Losses by seconds, whose histories leave the rows for it."""
    drawn = []
    for row in rows:
        history = row.pop("history")
        seconds, losses = ([each[what] for each in history] for what in ("seconds", "loss"))
        drawn.append(Curve(row["run"], seconds, losses))
    file = Path(PAGE.stem) / f"{name}.png"
    (PAGE.parent / file).parent.mkdir(exist_ok=True)
    curve_png(drawn, PAGE.parent / file, Axis("seconds of training"), Axis("validation loss, nats", Logarithmic()))
    return f"![losses by seconds]({file.as_posix()})"


def section(name: str, title: str, text: str) -> str:
    result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    if "history" in result["rows"][0]:
        text += f"\n\n{picture_of_runs(name, result['rows'])}"
    if axes := result.pop("axes", None):
        text += f"\n\n{pictures(result['rows'], axes)}{cliffs(result['rows'])}"
    remarks = {**result.pop("machine"), **{key: value for key, value in result.items() if key != "rows"}}
    facts = "; ".join(f"{key}: {value}" for key, value in remarks.items())
    return f"## {title}\n\n{text}\n\n{table(result['rows'])}\n\n{facts}. Script: `bench/{name}.py`.\n"


def main() -> None:
    sections = [section(name, *words) for name, words in TITLES.items() if (RESULTS / f"{name}.json").exists()]
    head = (
        "# Performance\n\n*Written by `bench/write_page.py` from `bench/results/`; `make bench` and `make bench-gpu` "
        "measure anew.* Peers are models of the transformers library (HF in tables) of the same sizes, Marian where "
        "nothing else is said, measured in the same run, on a CPU in turns; figures are medians. Compare ratios, not "
        "machines. Where shares of a GPU's time add up to more than all of it, programs that had begun early were "
        "counted while they waited.\n\n"
    )
    every = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))}
    rows = beside_goals({name: result["rows"] for name, result in every.items() if name in TITLES})
    aims = (
        "## What was aimed at\n\nFigures are in the unit of their section below, where their peers stand beside them. "
        "*At the limit* is what the figure would be if we took no longer than the machine's memory and matrix products "
        "make it, or, from a process's start, than importing torch does: a goal above it cannot be had there. Where a "
        f"goal was missed, what our time goes to is told.\n\n{table(rows)}\n\n"
    )
    PAGE.write_text(head + aims + "\n".join(sections), encoding="utf-8")


if __name__ == "__main__":
    main()
