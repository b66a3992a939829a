"""`qkv export` and `qkv convert`: model folders as others publish them."""

import re
from pathlib import Path
from typing import Annotated

import typer

from qkv.errors import QkvError

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def export(
    model: Annotated[str, typer.Argument(help="Model folder, or owner/name[@revision] on the hub.")],
    out: Annotated[Path, typer.Argument(help="New folder.")],
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    shard_size: Annotated[str, typer.Option(help="Most bytes of one file of weights, such as 500MB or 5GB.")] = "5GB",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the model in a folder that has one.")] = False,
) -> None:
    """Write a model as a folder that the reference library opens, with its tokenizer and special tokens.

    \b
    Example (after one that trained a model of a published family, such as t5):
      qkv export runs/t5 published/t5 --dtype bfloat16
    """
    from qkv.weights.export import export as write

    typer.echo(f"Written: {write(model, out, dtype=dtype, shard_bytes=bytes_of(shard_size), overwrite=overwrite)}")


def convert(
    source: Annotated[str, typer.Argument(help="Folder with a .bin, GGUF file, or owner/name.")],
    out: Annotated[Path, typer.Argument(help="New folder.")],
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; by default as it is.")] = None,
    model_type: Annotated[
        str | None, typer.Option(help="Kind of model, where an old config.json does not say it, such as bert.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="How texts are cut, where a vocabulary needs it and its files are silent: smiles")
    ] = None,
    shard_size: Annotated[str, typer.Option(help="Most bytes of one file of weights, such as 500MB or 5GB.")] = "5GB",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the model in a folder that has one.")] = False,
) -> None:
    """Rewrite model files of older or other forms as a published folder with safetensors.

    Old .bin files are pickles, which can hold programs. They are opened by a process of their own with bounded time and
    memory, through a loader that rebuilds tensors and refuses everything else.

    \b
    Example:
      qkv convert checkpoints/rxnfp-bert published/rxnfp-bert --model-type bert --split smiles
    """
    from qkv.weights.convert import convert as rewrite

    size = bytes_of(shard_size)
    written = rewrite(
        source, out, dtype=dtype, model_type=model_type, split=split, shard_bytes=size, overwrite=overwrite
    )
    typer.echo(f"Written: {written}")


def bytes_of(spelled: str) -> int:
    """`500MB` as a number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]B)?", spelled.strip().upper())
    size = int(float(match[1]) * UNITS[match[2] or ""]) if match else 0
    if size < 1:
        raise QkvError(f"The size {spelled!r} should be spelled like 500MB or 5GB.")
    return size
