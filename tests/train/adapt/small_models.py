"""Small models of several make, and what they answer."""

import torch
from torch import Tensor

from qkv.models.catalogue import FAMILIES, Model, build
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from tests.models.small import perturb, shrunk

LABELS = ("bad", "good", "so-so")
# One of each make: joined maps as theirs, as one matrix, gated, with cross-attention, with one layer for all depths.
MAKES = ("bert", "gpt2", "llama", "t5", "transformer", "albert")


def make(family: str, kind: str | None = None, seed: int = 0, **sizes: object) -> Model:
    torch.manual_seed(seed)
    head = None if kind is None else HeadChoice(kind, LABELS if kind in ("classification", "tokens") else ())
    first = next(iter(FAMILIES[family].published.values()))
    model: Model = build(family, shrunk(first, **sizes), head)
    perturb(model)
    return model.eval()


def answer(model: Model) -> Tensor:
    """Of the same few tokens every time."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(0, 11, (2, 9), generator=generator)
    if isinstance(model, TextModel):
        found = model(ids, lengths=torch.tensor([9, 5]))
        return found[0] if isinstance(found, tuple) else found
    return model(ids, torch.tensor([9, 5]), ids[:, :6])
