"""What was aimed at, beside what was measured: one table over all results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Rows = list[dict[str, Any]]
OURS = "qkv"  # what our columns begin with
BEST = "times the best peer"
SHARES = ("of the limit", "of what memory allows")  # columns that tell which part of a machine's limit ours reaches
PRODUCTS, ALONE, TAKES = "time in products and steps", "torch alone, s", "qkv, s"


@dataclass(frozen=True)
class Goal:
    """At least so much in a column of the rows whose first column begins so; without a column, of our own figures."""

    results: str
    begins: str
    least: float
    column: str | None = None

    def told(self) -> str:
        if self.column is None:
            return f"{self.least:,g}"
        return f"{self.least:g} {self.column}"


GOALS = (
    Goal("gpt2_training_gpu", "GPT-2 124M, training step, ", 600_000),
    Goal("gpt2_training_gpu", "GPT-2 124M, training step in 8 bits, ", 700_000),
    Goal("gpt2_decoding_gpu", "GPT-2 XL, one text", 1_000),
    Goal("gpt2_decoding_gpu", "GPT-2 124M, one text", 4_000),
    Goal("gpt2_decoding_gpu", "GPT-2 XL, 64 texts", 8, BEST),
    Goal("t5_decoding_gpu", "T5-base, greedy", 10, BEST),
    Goal("t5_decoding_gpu", "T5-base, 4 beams", 8, BEST),
    Goal("images_gpu", "ViT base-16, inference", 15_700),
    Goal("images_gpu", "ViT large-16, inference", 4_800),
    Goal("images_gpu", "ViT base-16, training", 4_800),
    Goal("encoding_gpu", "BERT-base, 256 rows", 26_000),
    Goal("encoding_gpu", "MiniLM", 2.5, BEST),
    Goal("encoding_gpu", "BERT-base, 4,096 sentences", 2.5, BEST),
    Goal("sound_gpu", "wav2vec2-base", 1.5, BEST),
    Goal("sound_gpu", "AST", 1.4, BEST),
    Goal("time_to_quality_gpu", "qkv's recipe", 1.5, "times sooner than nanoGPT's recipe"),
    Goal("gpt2_decoding", "qkv, float32", 2, "times HF"),
    Goal("gpt2_decoding", "qkv, bfloat16", 2, "times HF"),
    Goal("gpt2_decoding", "qkv, int8", 1, "times CTranslate2"),
    Goal("gpt2_decoding", "qkv, int8", 1, "times llama.cpp"),
    Goal("encoders_cpu", "BERT-base", 1.5, "times HF"),
    Goal("encoders_cpu", "ViT-B/16", 1.5, "times HF"),
    Goal("text_to_text_cpu", "T5-small", 3, "times HF"),
    Goal("text_to_text_cpu", "T5-small", round(1 / 1.3, 2), "times CTranslate2"),
    Goal("text_to_text_cpu", "Marian", 3, "times HF"),
    Goal("text_to_text_cpu", "Marian", round(1 / 1.3, 2), "times CTranslate2"),
    Goal("starting", "import qkv", 3, "times quicker"),
    Goal("starting", "GPT-2 writes", 3, "times quicker"),
    Goal("starting", "BERT fills", 3, "times quicker"),
    Goal("starting", "BERT classifies", 3, "times quicker"),
)


def beside_goals(results: Mapping[str, Rows]) -> Rows:
    """A row for each goal and each measured row that it speaks of, or one; results by the names of their scripts."""
    profiled = {row["work"]: row["where our time goes"] for row in results.get("encoder_steps_cpu", [])}
    return [line for goal in GOALS for line in _lines(goal, results.get(goal.results, []), profiled)]


def _lines(goal: Goal, rows: Rows, profiled: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """One line with no figure where nothing was measured: a goal is not forgotten because its row is missing.

    Of some works it is told in results of their own where our time goes.
    """
    named = [(str(next(iter(row.values()))), row) for row in rows]
    for name, row in [each for each in named if each[0].startswith(goal.begins)] or [(goal.begins.strip(" ,"), {})]:
        figure = row.get(goal.column) if goal.column else best_of_ours(row)
        told = "not measured" if not isinstance(figure, int | float) else f"{figure:,g}"
        met = isinstance(figure, int | float) and figure >= goal.least
        most = _most(row, figure) if isinstance(figure, int | float) else None
        yield {
            "script": goal.results,
            "work": name,
            "goal": goal.told(),
            "measured": told,
            "reached": "yes" if met else "no" if most is None or goal.least <= most else "no, above the limit",
            "at the limit": "" if most is None else f"{most:,.4g}" if most < 1e4 else f"{most:,.0f}",
            "where our time goes": "" if met else profiled.get(name) or _spent(row),
        }


def _most(row: Mapping[str, Any], figure: float) -> float | None:
    """What the figure would be if ours took no longer than the machine's limits, or than torch alone, make it take."""
    for column in SHARES:
        if row.get(column):
            return figure / (float(str(row[column]).rstrip("%")) / 100)
    if row.get(ALONE) and row.get(TAKES, 0) > row[ALONE]:  # without torch it would be another tool
        return float(figure * row[TAKES] / row[ALONE])
    return None


def _spent(row: Mapping[str, Any]) -> str:
    if PRODUCTS in row:
        return f"products and steps {row[PRODUCTS]}"
    if row.get(ALONE) and TAKES in row:
        return f"importing torch {row[ALONE] / row[TAKES]:.0%}"
    return str(row.get("where our time goes", ""))


def best_of_ours(row: Mapping[str, Any]) -> float | None:
    found = [each for name, each in row.items() if name.startswith(OURS) and isinstance(each, int | float)]
    return max(found, default=None)
