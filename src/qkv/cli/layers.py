"""`qkv layers`: what each layer of a training run did."""

from pathlib import Path
from typing import Annotated

import typer


def layers(
    run: Annotated[Path, typer.Argument(help="Folder of a run, trained with --gradient-norms.")],
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts to measure how a small change of the weights grows.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the page and its plots; layers inside the run.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps, xpu or auto.")] = "auto",
) -> None:
    """Draw the norms of gradients and of updates, layer by layer, from the first step to the last.

    Where the gradients of some layers are far smaller than those of others, or where a small change of the weights
    grows from layer to layer, a deep model is hard to train: another family of wiring may help (`qkv models` lists
    them), or a longer warm-up.

    \b
    Example (with the data that `qkv train text-to-text --help` makes):
      qkv train text-to-text --data words.tsv --source word --target phonemes --family transformer-admin \\
        --size width=32,hidden=64,layers=4 --tokenizer characters --steps 100 --hold-out 0 \\
        --gradient-norms --out runs/deep
      qkv layers runs/deep cat dog --out runs/deep/layers
    """
    from qkv.api.looking_layers import look_at_layers

    for file in look_at_layers(run, texts or (), out=out, device=device):
        typer.echo(str(file))
