"""Quantised vectors: one entry of each codebook, side by side. [baevski2020 §2]

Shapes: b rows, n frames, c channels, g codebooks, v entries of a codebook, e width of an entry.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.precision import widened
from qkv.parts.spec import Depends


def gumbel_choice(logits: Tensor, temperature: float) -> Tensor:
    """A random choice as a one-hot vector, with the gradient of a softmax. [… v] → [… v]

    The larger a logit, the more often its entry is chosen [jang2017 eq.1]; the choice itself has no gradient, so that
    of the softmax of the same noise takes its place [jang2017 §2.2].
    """
    noise = -torch.empty_like(logits).exponential_().log()
    soft = ((logits + noise) / temperature).softmax(-1)  # [jang2017 eq.2]
    return one_hot(soft) - soft.detach() + soft


def one_hot(scores: Tensor) -> Tensor:
    """1 at the largest and 0 elsewhere. [… v] → [… v]"""
    return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)


class Quantised(NamedTuple):
    vectors: Tensor  # [b n g·e]
    shares: Tensor  # [b n g v]: how likely each entry was; without learning, which one it is


class ProductQuantiser(nn.Module):
    """Each frame chooses one entry from each codebook: at random while learning, else the likeliest."""

    depends_on = Depends("codebooks", "temperature", "entries", "choose")

    def __init__(self, channels: int, codebooks: int, entries: int, width: int) -> None:
        super().__init__()
        if width % codebooks:
            raise QkvError(f"A quantised vector of {width} does not divide into {codebooks} codebooks.")
        self.codebooks = codebooks
        self.choose = nn.Linear(channels, codebooks * entries)
        self.entries = nn.Parameter(torch.rand(codebooks * entries, width // codebooks))  # codebook after codebook
        self.temperature = 2.0  # of the choice; it falls while learning [baevski2020 §4.2]

    def forward(self, features: Tensor) -> Quantised:
        """[b n c] → [b n g·e]"""
        logits = widened(self.choose(features)).unflatten(-1, (self.codebooks, -1))  # [b n g v]
        chosen = gumbel_choice(logits, self.temperature) if self.training else one_hot(logits)
        shares = logits.softmax(-1) if self.training else chosen
        entries = self.entries.unflatten(0, (self.codebooks, -1))  # [g v e]
        vectors = torch.einsum("bngv,gve->bnge", chosen.to(entries.dtype), entries)
        return Quantised(vectors.flatten(2), shares)


def perplexity(shares: Tensor, counted: Tensor | None = None) -> Tensor:
    """How many entries are used, all codebooks together: Σ exp of the entropy of their mean shares. []

    shares [b n g v], of which only frames that are True in `counted` [b n] count.
    """
    if counted is None:
        mean = shares.mean((0, 1))  # [g v]
    else:
        mean = (shares * counted[..., None, None]).sum((0, 1)) / counted.sum()
    return torch.special.entr(mean).sum(-1).exp().sum()
