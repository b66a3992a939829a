"""What pixels alone tell of the class of a picture: what a model must beat, and which changes leave a picture itself.

Shapes: n pictures, m others, c channels, h height, w width, p numbers of a picture, k classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.augment import Augmentation
from qkv.data.image_rows import ImageRows
from qkv.data.token_rows import Ints

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
    places = _some(rows, MOST)
    scale, known = _scale(_pixels(rows, places))  # [n p]
    labels, classes = torch.from_numpy(rows.labels[places]), len(rows.names)
    weight = torch.zeros(known.shape[1], classes, requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=UPDATES, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = F.cross_entropy(known @ weight + bias, labels, reduction="sum") + PENALTY / 2 * (weight**2).sum()
        mean: Tensor = total / len(known)
        mean.backward()
        return mean

    with torch.enable_grad():
        optimizer.step(loss)
    right = 0
    with torch.no_grad():
        for part in np.array_split(np.arange(len(held)), -(-len(held) // PART)):
            said = (scale(_pixels(held, part)) @ weight + bias).argmax(1)
            right += int((said == torch.from_numpy(held.labels[part])).sum())
    return right / len(held)


@torch.no_grad()
def recognised(rows: ImageRows, changes: Mapping[str, Augmentation], seed: int = 0) -> dict[str, float]:
    """The share of changed pictures that are recognised by a judge that knows others, unchanged: "" is for no change.

    The judge is a kernel ridge regression of the pixels, which needs no training but the solution of one system, and
    knows nothing of mirrors or turns: what it takes a changed picture for is what the picture now looks like. Every
    picture is judged once, by a judge that was made without it.
    """
    places = _some(rows, MOST_JUDGED)
    count, labels = len(places), torch.from_numpy(rows.labels[places])
    shown = {"": _pixels(rows, places), **{name: _pixels(rows, places, each, seed) for name, each in changes.items()}}
    fold = torch.empty(count, dtype=torch.long)
    fold[torch.argsort(labels, stable=True)] = torch.arange(count) % FOLDS  # some of every class in each
    right = dict.fromkeys(shown, 0)
    for number in range(min(FOLDS, count)):
        asked = fold == number
        if asked.all():  # of a single picture nobody learns
            continue
        scale, known = _scale(shown[""][~asked])
        wanted = F.one_hot(labels[~asked], len(rows.names)).double()
        middle = wanted.mean(0)
        kernel = _alike(known, known)
        kernel.diagonal().add_(RIDGE)
        answers = torch.linalg.solve(kernel, wanted - middle)  # [n k]
        for name, pixels in shown.items():
            said = (_alike(scale(pixels[asked]), known) @ answers + middle).argmax(1)
            right[name] += int((said == labels[asked]).sum())
    return {name: each / count for name, each in right.items()}


def guessed(rows: ImageRows) -> float:
    """The share of the pictures that whoever always names the commonest class gets right."""
    return float(np.bincount(rows.labels).max() / len(rows))


def _some(rows: ImageRows, most: int) -> Ints:
    """The places of as many pictures as a probe needs, drawn evenly, always the same ones."""
    every = len(rows)
    return np.arange(every) if every <= most else np.sort(np.random.default_rng(0).permutation(every)[:most])


def _pixels(rows: ImageRows, places: Ints, change: Augmentation | None = None, seed: int = 0) -> Tensor:
    """Pictures as rows of numbers, changed at their own size and then made smaller where they are large. [n p]"""
    draw, parts = np.random.default_rng(seed), []
    for first in range(0, len(places), PART):
        some = np.array(rows.pixels[places[first : first + PART]])  # which may lie on the disk
        pixels = torch.from_numpy(some if some.ndim == 4 else some[..., None]).permute(0, 3, 1, 2)
        pixels = (pixels if change is None else change(pixels, draw)).float() / 255
        height, width = pixels.shape[2:]
        parts.append(F.adaptive_avg_pool2d(pixels, (min(height, SIDE), min(width, SIDE))).flatten(1))
    return torch.cat(parts)


def _scale(known: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Without the mean picture and divided by the mean length of those that are known, so that all data are alike."""
    mean = known.mean(0)
    length = (known - mean).square().sum(1).mean().sqrt().clamp(min=1e-6)

    def scale(pixels: Tensor) -> Tensor:
        return (pixels - mean) / length

    return scale, scale(known)


def _alike(some: Tensor, others: Tensor) -> Tensor:
    """exp(−distance²), where two pictures lie √2 apart on average. [m p] [n p] → [m n]"""
    return torch.exp(-torch.cdist(some.double(), others.double()).square())
