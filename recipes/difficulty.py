"""Why deep Transformers are hard to train: five wirings of their residuals, at several depths, on English to German.

    python recipes/difficulty.py --data DATA --out runs/difficulty
    python recipes/difficulty_report.py difficulty runs/difficulty

DATA is a folder as `recipes/translate.py` reads it, of which train and valid are used. Each wiring is measured at its
start (gradients by sub-layer, shares of the branches, change of the output when weights change) and then trained with
one rate for all, with warm-up and without, and the shallowest at a higher rate too. All figures are in `result.json`.
"""

from __future__ import annotations

import math
import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from difficulty_runs import FAMILIES, FIRST_RATE, NOISE, NOISES, SETTINGS, Setup, begin, measure_start, train_one
from translate import read_split

from qkv.api.choices import NewTokenizer, make_tokenizers
from qkv.data.pairs import Pairs
from qkv.errors import QkvError
from qkv.files import write_json
from qkv.generate.text import readers_of
from qkv.train.provenance import provenance
from qkv.train.settings import TrainSettings

VOCABULARY = 8000  # byte-level BPE, shared by both languages
LONGEST = 60  # tokens a side; longer pairs are left out
VALIDATED = 1000  # pairs


def main(
    data: Annotated[Path, typer.Option(help="folder with train and valid")],
    out: Annotated[Path, typer.Option(help="folder for the runs")],
    steps: Annotated[int, typer.Option(help="updates of each run")] = 500,
    depths: Annotated[str, typer.Option(help="layers of encoder and decoder that are trained")] = "6,12,18",
    measured: Annotated[str, typer.Option(help="layers at which the start is measured")] = "6,12,18,24,36,48",
    seeds: Annotated[int, typer.Option(help="starts that are measured at each depth")] = 3,
    width: int = 256,
    rate: Annotated[float, typer.Option(help="peak of the learning rate, for all")] = 1e-3,
    warmup: Annotated[int, typer.Option(help="updates over which the rate rises, where there is a warm-up")] = 200,
    batch_tokens: int = 8192,
    precision: Literal["float32", "bfloat16"] = "bfloat16",
    device: str = "auto",
    workers: Annotated[int, typer.Option(help="runs at a time")] = 4,
) -> None:
    begun = time.perf_counter()
    place = TrainSettings(steps=1, device=device).torch_device()
    train_texts, valid_texts = read_split(data, "train"), read_split(data, "valid")[:VALIDATED]
    tokenizers = make_tokenizers(train_texts, NewTokenizer("bpe", VOCABULARY), None)
    readers = readers_of(*tokenizers)
    pairs, valid = (
        Pairs.from_texts(*map(list, zip(*texts, strict=True)), *readers, max_length=LONGEST)
        for texts in (train_texts, valid_texts)
    )
    say(begun, f"{len(pairs):,} pairs to train on, {len(valid):,} to validate on")
    setup = Setup(
        pairs=pairs,
        valid=valid,
        out=out,
        width=width,
        hidden=4 * width,
        heads=max(1, width // 64),
        vocabulary=tokenizers[1].size,
        steps=steps,
        rate=rate,
        warmup=warmup,
        batch_tokens=batch_tokens,
        precision=precision,
        device=place,
    )
    trained, started = ([int(each) for each in told.split(",")] for told in (depths, measured))
    runs = [
        (wiring, layers, setting)
        for layers in sorted(trained, reverse=True)
        for setting in SETTINGS
        for wiring in FAMILIES
        if layers == min(trained) or setting != "three times the rate"
    ]
    starts = [
        (wiring, layers, seed, seed == 0 and layers == max(trained))
        for layers in sorted({*started, max(trained)}, reverse=True)
        for seed in range(seeds)
        for wiring in FAMILIES
    ]
    jobs = [(train_one, each) for each in runs] + [(measure_start, each) for each in starts]  # the longest first
    results = work(setup, workers, jobs, begun)
    write_json(
        out / "result.json",
        {
            "recipe": {
                "vocabulary": f"{VOCABULARY:,} byte pairs for both languages",
                "longest pair": f"{LONGEST} tokens a side",
                "batch": f"{batch_tokens:,} tokens a side, padding counted",
                "updates of a run": steps,
                "optimizer": f"AdamW, betas 0.9 and 0.98, rate {rate:g} at its peak, falling to 0 in a line",
                "warm-up": f"{warmup} updates, or none",
                "clipping": "none",
                "dropout": 0.1,
                "precision": precision,
                "noise": f"{NOISE:.0%} of the root mean square of each matrix of the blocks, {NOISES} draws",
                "first update": f"of Adam, rate {FIRST_RATE:g}",
            },
            **{name: provenance(place)[name] for name in ("versions", "hardware")},
            "sizes": {"width": width, "hidden": setup.hidden, "heads": setup.heads, "vocabulary": setup.vocabulary},
            "pairs": {"train": len(pairs), "valid": len(valid)},
            "unigram": unigram_loss(pairs, valid, setup.vocabulary),
            "trained": trained,
            "measured": sorted({*started, max(trained)}),
            "starts": results[len(runs) :],
            "runs": results[: len(runs)],
            "seconds": time.perf_counter() - begun,
        },
    )
    say(begun, f"Written: {out / 'result.json'}")


def work(setup: Setup, workers: int, jobs: list[tuple[Callable[..., Any], tuple[Any, ...]]], begun: float) -> list[Any]:
    """All answers in the order of the jobs. Workers are processes: small models leave a GPU waiting for Python."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawned, initializer=begin, initargs=(setup,)) as pool:
        waiting = [pool.submit(job, *given) for job, given in jobs]
        found = []
        for (job, given), each in zip(jobs, waiting, strict=True):
            found.append(rounded(each.result()))
            if job is train_one:
                end = found[-1]["valid"]
                told = found[-1]["diverged"] or ("not finite" if end is None else f"{end:.3f}")
                say(begun, f"{given[0]}, {given[1]} layers, {given[2]}: {told} ({found[-1]['seconds']:.0f} s)")
    return found


def unigram_loss(pairs: Pairs, valid: Pairs, vocabulary: int) -> float:
    """Nats a token for one who knows how often each token is written, and nothing of the source or what went before."""

    def counted(rows: Pairs) -> np.ndarray:
        predicted = np.ones(len(rows.target.ids), bool)
        predicted[rows.target.offsets[:-1]] = False  # <s>
        return np.bincount(rows.target.ids[predicted], minlength=vocabulary)

    known = counted(pairs) + 1
    written = counted(valid)
    return float(-(written * np.log(known / known.sum())).sum() / written.sum())


def rounded(value: Any) -> Any:
    """Four digits are all that a page shows."""
    match value:
        case float():
            return float(f"{value:.4g}") if math.isfinite(value) else None
        case dict():
            return {name: rounded(each) for name, each in value.items()}
        case list() | tuple():
            return [rounded(each) for each in value]
    return value


def say(begun: float, text: str) -> None:
    print(f"[{time.perf_counter() - begun:5.0f} s] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        typer.run(main)
    except QkvError as error:
        sys.exit(f"qkv: {error}")
