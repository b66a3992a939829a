"""How well pictures and texts find each other among all that are held out. [radford2021 §E.1]

Shapes: n pairs, t different texts, j width of the joint space.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from qkv.errors import QkvError

BEST = 5
AT_ONCE = 1024  # rows of a table of likenesses that are held at a time


def score_retrieval(images: Tensor, texts: Tensor, keys: Sequence[Hashable]) -> dict[str, float]:
    """Shares of right answers among all pairs; images and texts [n j] are of length 1, equal keys are equal texts.

    `accuracy` and `top5`: pictures whose own text is the nearest, or among the five nearest, of all different texts.
    `text_accuracy`: texts for which the nearest of all pictures is one of their own. Where others are exactly as near
    as the right one it does not count as found: a model that sees no difference finds nothing.
    """
    if not len(keys) == len(images) == len(texts) or not keys:
        raise QkvError(
            f"There are {len(images)} pictures, {len(texts)} texts and {len(keys)} keys: give as many of each."
        )
    first: dict[Hashable, int] = {}  # where each different text stands first
    for place, key in enumerate(keys):
        first.setdefault(key, place)
    numbers = {key: number for number, key in enumerate(first)}
    own = torch.tensor([numbers[key] for key in keys], device=images.device)  # [n]
    different = texts[torch.tensor(list(first.values()), device=texts.device)]  # [t j]
    every = torch.arange(len(different), device=own.device)
    pictures = zip(images.split(AT_ONCE), own.split(AT_ONCE), strict=True)
    ranks = torch.cat([_rank(some, different, mine) for some, mine in pictures])
    captions = zip(different.split(AT_ONCE), every.split(AT_ONCE), strict=True)
    found = torch.cat([_finds_own(some, images, mine, own) for some, mine in captions])
    return {
        "accuracy": (ranks < 1).float().mean().item(),
        "top5": (ranks < BEST).float().mean().item(),
        "text_accuracy": found.float().mean().item(),
    }


def _rank(images: Tensor, texts: Tensor, own: Tensor) -> Tensor:
    """How many other texts are as near as a picture's own, or nearer. [b j] [t j] [b] → [b]"""
    near = images @ texts.T  # [b t]
    return (near >= near.gather(1, own[:, None])).sum(1) - 1


def _finds_own(texts: Tensor, images: Tensor, numbers: Tensor, own: Tensor) -> Tensor:
    """Whether the nearest picture of each text is one of its own. [b j] [n j] [b] [n] → [b]"""
    near = texts @ images.T  # [b n]
    mine = numbers[:, None] == own  # [b n]
    best = near.masked_fill(~mine, -torch.inf).amax(1)
    other = near.masked_fill(mine, -torch.inf).amax(1)
    return best > other
