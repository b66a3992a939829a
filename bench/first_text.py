"""The bare text command on a few megabytes: `qkv train lm`, nothing but --data, --valid, --out and --minutes.

    python bench/first_text.py --text FILE             # about 20 minutes on two quiet cores
    python bench/first_text.py --text FILE --work 2    # one of the three again; the other rows stay
    python bench/first_text.py --small        # a few updates on texts of its own; writes nothing

Of the text all up to the first blank line behind 95% of it is trained on, and the 200,000 bytes behind that are held
out; then the same with only the last bytes of what is trained on. Bits for each byte that is held out stand beside

- what `lzma` makes of it when it is shown the text to train on first,
- nanoGPT's recipe for a CPU in plain torch, in as many minutes: characters, 4 layers of width 128, 12 rows of 64,
  AdamW (0.9, 0.99) at 1e-3 falling to a tenth by a cosine, decay 0.1 of matrices, gradients clipped at 1.

The numbers of our recipe were picked by bits per byte on these very held-out bytes, those of the others were not:
LOG.md has figures of text that nothing was picked by, where ours after 200 kB is behind lzma.

Ours counts minutes of updates, nanoGPT's recipe those of the clock; reading, cutting and validating are ours besides.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, machine, report
from plain_gpt2 import PlainGPT2
from torch import Tensor, nn

from qkv.models.gpt2 import GPT2Sizes

HELD_OUT = 200_000  # bytes
FEW = 200_000  # bytes to train on
WORKS = ((0, 3.0), (0, 10.0), (FEW, 3.0))  # bytes to train on, 0: all; minutes
BESIDE = 3.0  # minutes of those that have nanoGPT's recipe beside them
TRAINED_ON = 0.95
NANO_ROWS, NANO_LENGTH, NANO_RATE, NANO_WARM_UP = 12, 64, 1e-3, 100
SMALL = "".join(f"And the evening and the morning were day {number}.\n\n" for number in range(2000)).encode()


def divided(text: bytes) -> tuple[bytes, bytes]:
    """To train on, and held out."""
    cut = text.index(b"\n\n", int(TRAINED_ON * len(text)))
    return text[:cut], text[cut + 2 :][:HELD_OUT]


def ours(train: bytes, held: bytes, budget: list[str]) -> dict[str, Any]:
    """What the command reaches, what it chose, and in how many updates."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "train.txt").write_bytes(train)
        (folder / "valid.txt").write_bytes(held)
        files = ["--data", folder / "train.txt", "--valid", folder / "valid.txt", "--out", folder / "run"]
        command = [sys.executable, "-m", "qkv", "train", "lm", *map(str, files), *budget]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            raise SystemExit("qkv train lm failed.")
        records = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        chosen = json.loads((folder / "run/run.json").read_text(encoding="utf-8"))["settings"]["chosen"]
    (final,) = [record for record in records if record["kind"] == "final"]
    sizes = chosen["sizes"]
    return {
        "qkv": round(final["figures"]["bits_per_byte"], 3),
        "lzma": round(final["figures"]["lzma_bits_per_byte"], 3),
        "chosen": f"{chosen['family']}, {sizes['layers']} × {sizes['width']}, {chosen['vocabulary']} pieces",
        "updates": final["step"],
        "seconds": round(final["seconds"]),
    }


def nano(train: bytes, held: bytes, minutes: float) -> float:
    """Bits a byte of nanoGPT's recipe, every byte a character; the clock decides how many updates there are."""
    torch.manual_seed(0)
    sizes = GPT2Sizes(vocabulary=256, positions=NANO_LENGTH, width=128, hidden=512, heads=4, layers=4)
    model = PlainGPT2(sizes)
    matrices = [each for each in model.parameters() if each.ndim > 1]
    others = [each for each in model.parameters() if each.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    for each in matrices:
        nn.init.normal_(each, std=0.02)
    optimizer = torch.optim.AdamW(groups, lr=NANO_RATE, betas=(0.9, 0.99), fused=True)
    text, began, step = torch.frombuffer(bytearray(train), dtype=torch.uint8).long(), time.perf_counter(), 0
    while (share := (time.perf_counter() - began) / (60 * minutes)) < 1:
        rate = NANO_RATE * (0.1 + 0.9 * (1 + math.cos(math.pi * share)) / 2) * min(1, (step + 1) / NANO_WARM_UP)
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(text) - NANO_LENGTH, (NANO_ROWS, 1))
        model.loss(text[starts + torch.arange(NANO_LENGTH + 1)]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
    return bits(model, torch.frombuffer(bytearray(held), dtype=torch.uint8).long())


@torch.no_grad()
def bits(model: PlainGPT2, held: Tensor) -> float:
    """For each byte, in windows that follow each other, as ours are."""
    rows = held[: (len(held) - 1) // NANO_LENGTH * NANO_LENGTH + 1].unfold(0, NANO_LENGTH + 1, NANO_LENGTH)
    total = sum(float(model.loss(some)) * len(some) for some in rows.split(256))
    return total / len(rows) / math.log(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="some megabytes, .txt or .txt.xz, with blank lines between parts")
    parser.add_argument("--work", type=int, action="append", choices=range(1, len(WORKS) + 1), help="may be repeated")
    parser.add_argument("--small", action="store_true", help="a few updates on texts of its own; nothing is written")
    given = parser.parse_args()
    if given.small:
        train, held = divided(SMALL)
        print({**ours(train, held, ["--steps", "3"]), "nanoGPT's recipe": round(nano(train, held, 0.01), 3)})
        return
    if given.text is None:
        parser.error("name a text with --text")
    read = given.text.read_bytes()
    train, held = divided(lzma.decompress(read) if given.text.suffix == ".xz" else read)
    rows = measured()
    for number in given.work or range(1, len(WORKS) + 1):
        size, minutes = WORKS[number - 1]
        part = train[-size:]
        row = {"text": f"{len(part):,} bytes of {given.text.name}", "minutes": minutes}
        row |= ours(part, held, ["--minutes", f"{minutes:g}"])
        row["nanoGPT's recipe"] = round(nano(part, held, minutes), 3) if minutes == BESIDE else "–"
        rows[number - 1] = row
        print(rows[number - 1], flush=True)
    report("first_text", [row for row in rows if row], {"figures": "bits for each byte of the held-out text"})


def measured() -> list[dict[str, Any]]:
    """The rows that were measured before on such a machine."""
    file = RESULTS / "first_text.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return known["rows"] if known.get("machine") == machine() else [{} for _ in WORKS]


if __name__ == "__main__":
    main()
