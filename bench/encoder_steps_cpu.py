"""Where the time of our encoders goes on two CPU cores: feed-forwards, attentions and all else, each timed alone.

    python bench/encoder_steps_cpu.py              # about four minutes
    python bench/encoder_steps_cpu.py --small

It is for the rows of one length of `encoders_cpu.py`, where HF leaves little to gain: what of the limit is missing, and
where. Blocks without attentions, blocks without feed-forwards and no blocks at all run in turns with the whole model,
each in a process of its own. The limit of a part is what its matrix products take at the speed at which the cores
multiply numbers that stay in registers, measured in the same turns.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from apart import Apart, stay_single
from common import THREADS, interleaved, report
from encoders_cpu import CLASSES, LENGTH, NEAR, PICTURES, TINY_VIT, told
from encoding_gpu import TINY
from peers import rounded
from torch import Tensor
from turns import Most

from qkv.generate.use import at_rest
from qkv.models.bert import SIZES
from qkv.models.catalogue import build
from qkv.models.head_choice import HeadChoice
from qkv.models.vit import SIZES as VIT_SIZES
from qkv.parts.attention.attention import Attention
from qkv.weights.precision import in_precision

ROWS = 8


class Encoder(NamedTuple):
    title: str
    model: Any
    given: Tensor
    slots: int
    read: int  # slots that the answer is made of: of the last block no others are computed


class Part(NamedTuple):
    kept: Callable[[Any], bool]  # which steps of a block
    needed: float  # operations of it in a whole pass
    done: float  # and where it runs alone


def bert(small: bool) -> Encoder:
    sizes, slots = replace(SIZES["base"], **(TINY if small else {})), 8 if small else LENGTH
    ids = torch.randint(0, sizes.vocabulary, (ROWS, slots))
    model = build("bert", sizes, HeadChoice("pooled")).eval()
    return Encoder(f"BERT-base, {ROWS} rows of {slots} tokens", model, ids, slots, slots)


def vit(small: bool) -> Encoder:
    sizes = replace(VIT_SIZES["base-16"], **(TINY_VIT if small else {}))
    model = build("vit", sizes, HeadChoice("classification", labels=tuple(map(str, range(CLASSES))))).eval()
    pictures = torch.randn(PICTURES, sizes.channels, sizes.image, sizes.image)
    title = f"ViT-B/16, {PICTURES} pictures of {sizes.image}²"
    return Encoder(title, model, pictures, (sizes.image // sizes.patch) ** 2 + 1, 1)


def parts_of(encoder: Encoder) -> dict[str, Part]:
    """By hand: two operations for every weight that a token meets and, twice, for a pair of tokens and a number."""
    sizes, slots, rows = encoder.model.sizes, encoder.slots, len(encoder.given)
    width, hidden, before = sizes.width, sizes.hidden, sizes.layers - 1

    def attention(asking: int) -> int:
        return rows * (4 * slots * width**2 + 4 * asking * width**2 + 4 * asking * slots * width)

    def feed_forward(asking: int) -> int:
        return rows * 4 * asking * width * hidden

    of_attention = before * attention(slots) + attention(encoder.read)
    of_feed_forward = before * feed_forward(slots) + feed_forward(encoder.read)
    return {
        "feed-forwards": Part(lambda step: not _attends(step), of_feed_forward, sizes.layers * feed_forward(slots)),
        "attentions": Part(_attends, of_attention, of_attention),
        "all else": Part(lambda step: False, 0, 0),
    }


def _attends(step: Any) -> bool:
    return isinstance(step.mixer, Attention)


def alone(model: Any, kept: Callable[[Any], bool]) -> Any:
    """The model with those steps of its blocks alone."""
    made = copy.deepcopy(model)
    for block in made.stack.blocks:
        for name, step in list(block.named_children()):
            if not kept(step):
                delattr(block, name)
    return made


def ready(model: Any, precision: str, given: Tensor) -> Callable[[], None]:
    made = in_precision(model, precision)
    narrow = given.bfloat16() if given.is_floating_point() and precision == "bfloat16" else given

    def call() -> None:
        with at_rest(made):
            made(narrow)

    return call


def measured(encoder: Encoder, precision: str, seconds: float) -> dict[str, Any]:
    parts = parts_of(encoder)
    models = {"whole": encoder.model, **{name: alone(encoder.model, part.kept) for name, part in parts.items()}}
    calls = {name: Apart(partial(ready, model, precision, encoder.given), THREADS) for name, model in models.items()}
    cores = Apart(lambda: Most.measured, THREADS)
    found: list[Most] = []
    in_turns = {**calls, "the cores themselves": lambda: found.append(cores())}
    times = interleaved(in_turns, seconds=seconds, at_least=3 if seconds else 1)
    for each in (cores, *calls.values()):
        each.end()
    speed = reduce(Most.better, found).flops[precision]
    spent = {name: statistics.median(times[name]) for name in calls}
    embedding = spent["all else"]  # which all of them have
    own = {name: spent[name] - embedding for name in parts if parts[name].done}
    row: dict[str, Any] = {"work": encoder.title + told(precision)}
    needed = sum(part.needed for part in parts.values())
    row["of the limit"] = f"{needed / speed / spent['whole']:.0%}"
    for name, time in own.items():
        part = parts[name]
        row[f"{name}, of the time"] = f"{time * part.needed / part.done / spent['whole']:.0%}"
        row[f"{name}, of the limit"] = f"{part.done / speed / time:.0%}"
    row["all else, of the time"] = f"{embedding / spent['whole']:.1%}"
    row["GFLOP/s at the limit"] = rounded(speed / 1e9)
    row["turns"] = len(times["whole"])
    row["where our time goes"] = ", ".join(
        [f"{name} {row[f'{name}, of the time']} (at {row[f'{name}, of the limit']} of the limit)" for name in own]
        + [f"all else {row['all else, of the time']}"]
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs; nothing is written")
    parser.add_argument("--seconds", type=float, default=30.0, help="of timing for each row")
    given = parser.parse_args()
    stay_single()
    rows = []
    for made in (bert, vit):
        for precision in NEAR:
            torch.manual_seed(0)
            rows.append(measured(made(given.small), precision, 0.0 if given.small else given.seconds))
            print(rows[-1], file=sys.stderr, flush=True)
    if not given.small:
        report("encoder_steps_cpu", rows, {"weights": "random"})


if __name__ == "__main__":
    main()
