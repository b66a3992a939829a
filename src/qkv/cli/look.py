"""`qkv look`: where a model looks while it writes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.errors import QkvError


def look(
    model: Annotated[str, typer.Argument(help="Model folder, GGUF file, or owner/name[@revision].")],
    texts: Annotated[
        list[str], typer.Argument(help="Texts, or image or sound files, each an input of its own.", metavar="TEXT")
    ],
    html: Annotated[Path | None, typer.Option(help="Page to write; look.html where --png is not given either.")] = None,
    png: Annotated[Path | None, typer.Option(help="Image to write, numbered where there are several texts.")] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Show how the model would write this, or reads it as the second text; once for each text."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps, xpu or auto.")] = "auto",
) -> None:
    """Draw the attention of a model: which tokens it reads as it writes each token, or reads it.

    The page is one file that loads nothing from elsewhere, with every layer and head to choose from; an image shows
    the average. For a model of pictures or sounds the texts are the names of files, and attention is drawn over them:
    over the picture, over the spectrum of the sound, or for each word that was heard.

    \b
    Example (after the ones that `qkv train text-to-text --help` and `qkv train lm --help` show):
      qkv look runs/words cat dog --html look.html --png look.png
      qkv look runs/verses 'And God said, Let there be light' --html verses.html
    """
    from qkv.api.loading import load
    from qkv.api.looking import look_at, numbered
    from qkv.generate.image_readers import ImageReader
    from qkv.generate.listen import Listener
    from qkv.generate.sound_readers import SoundReader
    from qkv.generate.transcribe import Transcriber

    if target and len(target) != len(texts):
        raise QkvError(f"There are {len(texts)} texts and {len(target)} targets: give --target once for each text.")
    if html is None and png is None:
        html = Path("look.html")
    loaded = load(model, device)
    if isinstance(loaded, ImageReader | SoundReader | Listener | Transcriber):
        from qkv.api.looking_pictures import look_at_pictures
        from qkv.api.looking_sounds import look_at_sounds

        if target:
            raise QkvError("--target is for models of texts: leave it out for pictures and sounds.")
        look_into: Callable[..., Sequence[Any]] = look_at_sounds
        if isinstance(loaded, ImageReader):
            look_into = look_at_pictures
        for seen in look_into(loaded, texts, html=html, png=png):
            typer.echo(f"{seen.name}\t{seen.said}".rstrip("\t"))
    else:
        for record in look_at(loaded, texts, targets=target or None, html=html, png=png):
            typer.echo(f"{record.source}\t{record.target}".rstrip("\t"))
    written = [html] * (html is not None) + (numbered(png, len(texts)) if png is not None else [])
    typer.echo(f"Written: {', '.join(map(str, written))}", err=True)
