"""What lies how deep in a model, and what follows for fine-tuning: frozen parts, and learning rates by depth."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from qkv.errors import QkvError
from qkv.models.attention_choice import weights_by_choice
from qkv.models.sequence_to_sequence import EncoderDecoder
from qkv.models.text_model import TextModel
from qkv.parts.stack import Stack

BLOCK = re.compile(r"(\w+)\.blocks\.(\d+)\.")


@dataclass(frozen=True)
class Tower:
    """One way up: embeddings below, blocks above them."""

    embed: str  # the names of its modules in the model
    stack: str
    layers: int  # blocks that have weights of their own: one that runs again and again counts once


def towers(model: nn.Module) -> list[Tower]:
    """One for a text model; for an encoder with a decoder one each."""
    if isinstance(model, TextModel):
        names = [("embed", "stack")]
    elif isinstance(model, EncoderDecoder):
        names = [("source", "encoder"), ("target", "decoder")]
    else:
        raise QkvError(f"A {type(model).__name__} has no blocks above embeddings, so nothing in it lies deeper.")
    found = []
    for embed, name in names:
        stack = model.get_submodule(name)
        if not isinstance(stack, Stack):
            raise QkvError(f"The {name} of this model is a {type(stack).__name__}: it has no blocks to count.")
        found.append(Tower(embed, name, len(stack.blocks)))
    return found


def freeze(model: nn.Module, *, embeddings: bool = False, layers: int = 0, decoder_layers: int | None = None) -> None:
    """Train no embeddings, or not the first `layers` blocks, or neither: they get no gradient and no optimizer state.

    Of an encoder with a decoder, the first `layers` of each, or of the decoder the first `decoder_layers`. Embeddings
    are all tables below the blocks, with their norm and projection, and a bias for distances that all blocks share; a
    token table that also gives the logits is frozen there too. What an attention by choice has of its own still learns.

    Dropout inside frozen blocks stays on while the model trains, as it was when they were trained: what stands above
    them then sees more than one version of each text. Call before the optimizer is made.
    """
    if not embeddings and not layers and not decoder_layers:
        raise QkvError("Nothing is to be frozen: ask for the embeddings or for a number of layers.")
    ways = towers(model)
    if decoder_layers is not None and len(ways) == 1:
        raise QkvError("This model has no decoder beside an encoder: give layers alone.")
    for tower, first in zip(ways, [layers, layers if decoder_layers is None else decoder_layers], strict=False):
        if not 0 <= first <= tower.layers:
            raise QkvError(f"{first} layers cannot be frozen: the {tower.stack} has {tower.layers}.")
        stack = model.get_submodule(tower.stack)
        assert isinstance(stack, Stack)
        for block in stack.blocks[:first]:
            block.requires_grad_(False)
        if embeddings:
            model.get_submodule(tower.embed).requires_grad_(False)
            if stack.bias is not None:
                stack.bias.requires_grad_(False)
    for parameter in weights_by_choice(model):
        parameter.requires_grad_(True)


@dataclass(frozen=True)
class LayerwiseRates:
    """Lower parts learn more slowly, since what they know is more general. [howard2018 §3.2]

    The head, and a norm above the last block, get the full rate; each block `decay` of what the one above it gets; the
    embeddings, and a bias for distances, `decay` of what the lowest block gets. [clark2020 app.B]

    DIFFERS [clark2020]: in its code the last block is two steps below the head and not one.
    Blocks of an encoder and of a decoder are each counted from their own top. For `adamw(rates=…)`.
    """

    decay: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1:
            raise QkvError(f"The decay of rates by layer must be above 0 and at most 1, but is {self.decay}.")

    def __call__(self, model: nn.Module, name: str) -> float:
        """The share of the learning rate that the parameter `name` gets."""
        for tower in towers(model):
            if (block := BLOCK.match(name)) and block[1] == tower.stack:
                return self.decay ** (tower.layers - int(block[2]))
            if name.startswith((f"{tower.embed}.", f"{tower.stack}.bias.")):
                return self.decay ** (tower.layers + 1)
        return 1.0
