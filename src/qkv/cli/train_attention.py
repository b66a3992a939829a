"""Another attention than a family's own: the option that trainings of text share, and how it becomes a value."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from qkv.generate.reader import TextReader
    from qkv.generate.text import TextToText
    from qkv.models.attention_choice import AttentionChoice

Use = TypeVar("Use", bound="TextReader | TextToText")


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    attention: Annotated[
        str | None,
        typer.Option(
            help="Attention in place of the model's own: window:256, window:256+global:4, strided:128, fixed:128:8, "
            "big_bird:64, performer:256, rfa:128, linformer:256 or lsh:4:64."
        ),
    ] = None


def choice_of(options: AttentionOptions) -> "AttentionChoice | None":
    from qkv.models.attention_choice import AttentionChoice

    return AttentionChoice.of(options.attention)


def swapped(use: Use, options: AttentionOptions) -> Use:
    """What is trained further, with the attention that was asked for; what it loses by that is said."""
    from qkv.api.attention import with_attention

    choice = choice_of(options)
    return use if choice is None else with_attention(use, choice)
