"""`qkv look`: where a model looks while it writes."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.errors import QkvError


def look(
    model: Annotated[str, typer.Argument(help="Model folder, GGUF or llama2.c file, or owner/name[@revision].")],
    texts: Annotated[list[str], typer.Argument(help="Texts, each an input of its own.", metavar="TEXT")],
    html: Annotated[Path | None, typer.Option(help="Page to write; look.html where --png is not given either.")] = None,
    png: Annotated[Path | None, typer.Option(help="Image to write, numbered where there are several texts.")] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Show how the model would write this, or reads it as the second text; once for each text."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Draw the attention of a model: which tokens it reads as it writes each token, or reads it.

    The page is one file that loads nothing from elsewhere, with every layer and head to choose from; an image shows
    the average.

    \b
    Example (after the ones that `qkv train text-to-text --help` and `qkv train lm --help` show):
      qkv look runs/words cat dog --html look.html --png look.png
      qkv look runs/verses 'And God said, Let there be light' --html verses.html
    """
    from qkv.api.loading import load
    from qkv.api.looking import look_at, numbered

    if target and len(target) != len(texts):
        raise QkvError(f"There are {len(texts)} texts and {len(target)} targets: give --target once for each text.")
    if html is None and png is None:
        html = Path("look.html")
    records = look_at(load(model, device), texts, targets=target or None, html=html, png=png)
    for record in records:
        typer.echo(f"{record.source}\t{record.target}".rstrip("\t"))
    written = [html] * (html is not None) + (numbered(png, len(records)) if png is not None else [])
    typer.echo(f"Written: {', '.join(map(str, written))}", err=True)
