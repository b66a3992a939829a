"""The families by name: the only place where a string becomes a model, for saved files and the command line."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from qkv.errors import QkvError, nearest_or_all
from qkv.models.families import FAMILIES as FAMILIES
from qkv.models.family import Family
from qkv.models.head_choice import HeadChoice
from qkv.models.unfilled import Unfilled

if TYPE_CHECKING:
    from qkv.models.attention_choice import AttentionChoice
    from qkv.models.detection_model import DetectionModel
    from qkv.models.image_model import ImageModel
    from qkv.models.image_text_model import ImageTextModel
    from qkv.models.sequence_to_sequence import SequenceToSequence
    from qkv.models.sound_model import SoundModel
    from qkv.models.text_model import TextModel

    Model = SequenceToSequence | TextModel | ImageModel | DetectionModel | SoundModel | ImageTextModel
else:
    Model = Any  # a name for readers and for mypy, for which no program opens all these files


def find_family(name: str) -> Family:
    if name not in FAMILIES:
        raise QkvError(f"There is no family called {name}: {nearest_or_all(name, FAMILIES)}")
    return FAMILIES[name]


def build(family: str, sizes: Any, head: HeadChoice | None = None, attention: AttentionChoice | None = None) -> Any:
    """A new model with random weights, which remembers what it was built from; by default with the usual head and the
    family's own attention."""
    chosen = find_family(family)
    if attention is not None and chosen.reads != "text":
        raise QkvError(f"Family {family} reads {chosen.reads}: another attention can be chosen for models of text.")
    if not chosen.heads:
        if head is not None:
            raise QkvError(f"A model of the family {family} has no choice of heads.")
        model: Model = chosen.build(sizes)
    else:
        head = head or HeadChoice(chosen.heads[0])
        model = chosen.build(sizes, head)
        model.head_choice = head
    model.family, model.sizes, model.attention_choice = family, sizes, attention
    return model if attention is None else attention.put_into(model)


def config_of(model: Model) -> dict[str, Any]:
    """What `config.json` says of a model."""
    config: dict[str, Any] = {"format": "qkv-1", "family": model.family, "sizes": asdict(model.sizes)}
    head, attention = head_of(model), attention_of(model)
    config |= {} if head is None else {"head": head.config()}
    return config if attention is None else {**config, "attention": str(attention)}


def head_of(model: Model) -> HeadChoice | None:
    """The head that a model was given; None for one of a family without a choice."""
    found: HeadChoice | None = getattr(model, "head_choice", None)
    return found


def attention_of(model: Model) -> AttentionChoice | None:
    """The attention that a model was given in place of its family's own."""
    found: AttentionChoice | None = getattr(model, "attention_choice", None)
    return found


def count_parameters(
    family: str, sizes: Any, head: HeadChoice | None = None, attention: AttentionChoice | None = None
) -> int:
    """The number of parameters, counted on a model that occupies no memory."""
    with torch.device("meta"), Unfilled():
        model = build(family, sizes, head, attention)
    return sum(parameter.numel() for parameter in model.parameters())
