"""Which attention for long texts: one model, nine ways to attend, the same seconds for each.

    make corpora
    python recipes/long_text.py --corpora corpora --out runs/long-text --length 4096 --seconds 6 --seeds 2
    python recipes/long_text.py --corpora corpora --out runs/long-text --length 16384 --seconds 10
    python recipes/compare_report.py runs/long-text

Bytes of whole addresses to the Congress and whole novels, in rows of 4,096 or 16,384. Given again, a command goes on
where it was stopped: finished runs are kept, and one that was killed begins anew. With `--only dense,window:256` these
variants alone are run, and stand beside those that are finished. Variants that cannot look back only are refused; what
they say is kept for the page.
"""

from __future__ import annotations

import hashlib
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import qkv
from qkv.api.comparing import AGAIN, MEASURED, SETTINGS
from qkv.api.comparison import FILE, Comparison
from qkv.data.documents import read_documents
from qkv.errors import QkvError, nearest_or_all
from qkv.files import write_json
from qkv.models.attention_choice import AttentionChoice
from qkv.models.catalogue import build, find_family
from qkv.models.head_choice import HeadChoice

HELD_OUT = 0.035  # share of the addresses
REFUSED = ("linformer:256", "big_bird:64")  # which mix all tokens of a row, so that none can be hidden from another


def main(
    corpora: Annotated[Path, typer.Option(help="folder that `make corpora` filled")],
    out: Annotated[Path, typer.Option(help="folder for the comparisons, one for each length")],
    length: int = 4096,
    seconds: float = 6.0,
    seeds: int = 1,
    tokens: Annotated[int, typer.Option(help="of a batch")] = 16_384,
    width: int = 512,
    layers: int = 6,
    learning_rate: float = 1e-3,
    warmup: int = 40,
    evaluations: int = 4,
    precision: str = "bfloat16",
    speeds: Annotated[str, typer.Option(help="lengths of which a step is timed, with commas")] = "",
    only: Annotated[str, typer.Option(help="names of variants, with commas; by default all")] = "",
    most: Annotated[int, typer.Option(help="documents that are read, for a trial")] = 10_000,
    device: str = "auto",
) -> None:
    texts, valid = addresses_and_novels(corpora, most)
    out.mkdir(parents=True, exist_ok=True)
    chosen = asked_for(variants(length, width, layers), only, out / str(length), seeds)
    sizes: dict[str, Any] = {"width": width, "hidden": round(width * 2.75), "heads": width // 64, "layers": layers}
    sizes |= {"key_value_heads": width // 64, "tied": True}
    common = qkv.Setup(
        family="llama",
        sizes=sizes,
        learning_rate=learning_rate,
        warmup=warmup,
        batch_rows=max(1, tokens // length),
        precision=precision,
    )
    # A run of seconds is begun anew rather than saved on its way.
    settings = replace(SETTINGS, minutes=seconds / 60, evaluations=evaluations, save_every=None, device=device)
    qkv.compare(
        texts,
        out / str(length),
        chosen,
        common=common,
        settings=settings,
        seeds=seeds,
        valid=valid,
        tokenizer=qkv.NewTokenizer("bytes"),
        length=length,
        speed_lengths=[int(each) for each in speeds.split(",") if each],
        write=Comparison.save,  # `compare_report.py` draws it, where no GPU waits for that
    )
    write_json(out / "refused.json", refusals(common))
    print(f"Written: {out / str(length) / FILE}. To go on after a stop, {AGAIN}.")


def asked_for(every: list[qkv.Variant], only: str, folder: Path, seeds: int) -> list[qkv.Variant]:
    """All variants, or those of these names and the finished ones, in their order."""
    names = [name for name in only.split(",") if name] or [each.name for each in every]
    for name in names:
        if name not in [each.name for each in every]:
            raise QkvError(f"There is no variant {name}: {nearest_or_all(name, [each.name for each in every])}")

    def finished(variant: qkv.Variant) -> bool:
        return all((folder / variant.folder / str(seed) / MEASURED).exists() for seed in range(seeds))

    return [each for each in every if each.name in names or finished(each)]


def variants(length: int, width: int, layers: int) -> list[qkv.Variant]:
    """Strides are about the square root of the length, as in [child2019 §4]."""
    stride = 2 ** round(math.log2(length) / 2)
    chosen = [
        "window:256",
        f"strided:{stride}",
        f"fixed:{stride}:8",
        "window:256+global:16",
        "performer:256",
        "rfa:128",
        "lsh:4:64",
    ]
    lines = 2 ** (length.bit_length() // 2)
    reformer = {"width": width, "hidden": 4 * width, "heads": width // 64, "head_width": 64, "layers": layers}
    reformer |= {"lines": lines, "columns": length // lines, "line_width": width // 4, "positions": length, "rounds": 4}
    reformer |= {"dropout": 0.0, "local_dropout": 0.0}
    return [
        qkv.Variant("dense"),
        *(qkv.Variant(each, {"attention": each}) for each in chosen),
        qkv.Variant("reformer", {"family": "reformer", "sizes": reformer}),
    ]


def addresses_and_novels(corpora: Path, most: int) -> tuple[list[str], list[str]]:
    """(to train on, held out): whole documents; the held-out ones are addresses, chosen by their text alone."""
    if not (corpora / "sotu").is_dir():
        raise QkvError(f"There is no folder {corpora / 'sotu'}: fetch the texts with `make corpora`.")
    addresses = list(dict.fromkeys(read_documents(corpora / "sotu" / "sotu.jsonl").texts))
    held = [text for text in addresses if hashlib.sha256(text.encode()).digest()[0] / 256 < HELD_OUT]
    kept = [text for text in addresses if text not in set(held)]
    books = [corpora / "moby-dick" / "moby-dick.txt", *sorted((corpora / "austen").glob("*.txt"))]
    novels = [text for book in books for text in read_documents(book).texts]
    return [*kept, *novels][:most], held[: max(1, most // 20)]


def refusals(common: qkv.Setup) -> dict[str, str]:
    """What the attentions say that cannot be chosen for a model that looks back only."""
    said = {}
    family = find_family(common.family)
    for spelled in REFUSED:
        assert not isinstance(common.sizes, str)
        sizes = family.sizes({**common.sizes, "vocabulary": 260, "positions": 256})
        try:
            build(common.family, sizes, HeadChoice("language"), AttentionChoice.parse(spelled))
        except QkvError as error:
            said[spelled] = str(error)
    return said


if __name__ == "__main__":
    try:
        typer.run(main)
    except QkvError as error:
        sys.exit(f"qkv: {error}")
