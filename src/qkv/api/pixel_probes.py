"""What pixels alone tell of the class of a picture: what a model must beat, and which changes leave a picture itself.

Shapes: n pictures, m others, c channels, h height, w width, p numbers of a picture, k classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.augment import Augmentation
from qkv.data.image_rows import ImageRows

SIDE = 32  # a probe looks at no more pixels a side
MOST = 10_000  # pictures that a linear probe learns from
MOST_JUDGED = 2_000  # pictures that a judge of changes learns from and judges
PART = 256  # pictures that are changed at a time
FOLDS = 5
PENALTY = 0.1  # of a linear probe, for pictures whose mean length is 1
RIDGE = 0.01  # what a judge adds to the diagonal of its kernel, which is 1
UPDATES = 100  # of L-BFGS


def linear_score(rows: ImageRows, held: ImageRows) -> float:
    """The share of held-out pictures that a logistic regression of the pixels names rightly.

    It has no idea of places, edges or shapes: a model that does not beat it has learned nothing that is worth a model.
    """
    rows = _some(rows, MOST)
    known, asked = _scaled(_pixels(rows), _pixels(held))  # [n p] [m p]
    labels, classes = torch.from_numpy(rows.labels), len(rows.names)
    weight = torch.zeros(known.shape[1], classes, requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=UPDATES, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = F.cross_entropy(known @ weight + bias, labels, reduction="sum") + PENALTY / 2 * (weight**2).sum()
        mean: Tensor = total / len(known)
        mean.backward()  # type: ignore[no-untyped-call]
        return mean

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        said = (asked @ weight + bias).argmax(1)
    return float((said == torch.from_numpy(held.labels)).double().mean())


@torch.no_grad()
def recognised(rows: ImageRows, changes: Mapping[str, Augmentation], seed: int = 0) -> dict[str, float]:
    """The share of changed pictures that are recognised by a judge that knows others, unchanged: "" is for no change.

    The judge is a kernel ridge regression of the pixels, which needs no training but the solution of one system, and
    knows nothing of mirrors or turns: what it takes a changed picture for is what the picture now looks like. Every
    picture is judged once, by a judge that was made without it.
    """
    rows = _some(rows, MOST_JUDGED)
    plain, labels = _pixels(rows), torch.from_numpy(rows.labels)
    shown = {"": plain, **{name: _pixels(rows, change, seed) for name, change in changes.items()}}
    fold = torch.empty(len(rows), dtype=torch.long)
    fold[torch.argsort(labels, stable=True)] = torch.arange(len(rows)) % FOLDS  # some of every class in each
    right = dict.fromkeys(shown, 0)
    for number in range(min(FOLDS, len(rows))):
        known, asked = fold != number, fold == number
        if not known.any() or not asked.any():
            continue
        base, *others = _scaled(plain[known], *(each[asked] for each in shown.values()))
        wanted = F.one_hot(labels[known], len(rows.names)).double()
        kernel = _alike(base, base)
        kernel.diagonal().add_(RIDGE)
        middle = wanted.mean(0)
        answers = torch.linalg.solve(kernel, wanted - middle)  # [n k]
        for name, other in zip(shown, others, strict=True):
            said = (_alike(other, base) @ answers + middle).argmax(1)
            right[name] += int((said == labels[asked]).sum())
    return {name: count / len(rows) for name, count in right.items()}


def guessed(rows: ImageRows) -> float:
    """The share of the pictures that whoever always names the commonest class gets right."""
    return float(np.bincount(rows.labels).max() / len(rows))


def _some(rows: ImageRows, most: int) -> ImageRows:
    """As many pictures as a probe needs, drawn evenly, always the same ones."""
    if len(rows) <= most:
        return rows
    return rows.some(np.sort(np.random.default_rng(0).permutation(len(rows))[:most]))


def _pixels(rows: ImageRows, change: Augmentation | None = None, seed: int = 0) -> Tensor:
    """Pictures as rows of numbers, changed at their own size and then made smaller where they are large. [n p]"""
    draw, parts = np.random.default_rng(seed), []
    for first in range(0, len(rows), PART):
        some = np.array(rows.pixels[first : first + PART])  # which may lie on the disk
        pixels = torch.from_numpy(some if some.ndim == 4 else some[..., None]).permute(0, 3, 1, 2)
        pixels = (pixels if change is None else change(pixels, draw)).float() / 255
        size = [min(side, SIDE) for side in pixels.shape[2:]]
        parts.append(F.adaptive_avg_pool2d(pixels, size).flatten(1))
    return torch.cat(parts)


def _scaled(known: Tensor, *others: Tensor) -> list[Tensor]:
    """Without the mean picture, and divided by the mean length, of those that are known: the same for all data."""
    mean = known.mean(0)
    length = (known - mean).square().sum(1).mean().sqrt().clamp(min=1e-6)
    return [(each - mean) / length for each in (known, *others)]


def _alike(some: Tensor, others: Tensor) -> Tensor:
    """exp(−distance²), where two pictures lie √2 apart on average. [m p] [n p] → [m n]"""
    return torch.exp(-torch.cdist(some.double(), others.double()).square())
