"""How good found boxes are: average precision as COCO defines it. [lin2014]

Shapes: d boxes found of one class and picture, g boxes that are there, i thresholds of overlap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.data.boxes import Box
from qkv.errors import QkvError

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # overlaps from which on a box is found: COCO asks for all ten
RECALLS = np.linspace(0, 1, 101)  # where precision is read
MOST = 100  # boxes of a picture that count, the likeliest
SIDES = {"small": (0.0, 32.0), "medium": (32.0, 96.0), "large": (96.0, math.inf)}  # of squares as large, in pixels

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class BoxScores:
    """Average precisions from 0 to 1: the mean over ten overlaps from 0.5 to 0.95, and at two of them alone."""

    average: float
    at_half: float
    at_three_quarters: float
    recall: float  # the share of boxes that are found at all, over the same ten overlaps
    by_class: dict[str, float]  # the first for each class that there is


def score_boxes(
    found: Sequence[Sequence[Box]],
    wanted: Sequence[Sequence[Box]],
    most: int = MOST,
    sides: tuple[float, float] = (0.0, math.inf),
) -> BoxScores:
    """Average precision of the boxes found in pictures, given those that are there.

    A box counts as found by the likeliest of those that overlap it enough and are not taken yet; all others are wrong.
    A class that is nowhere does not count. With `sides` only boxes as large as squares from one side to the other, in
    pixels, are asked for: what is found of others is neither right nor wrong.
    """
    if len(found) != len(wanted):
        raise QkvError(f"Boxes were found in {len(found)} pictures, and {len(wanted)} are to be scored.")
    names = sorted({box.label for boxes in wanted for box in boxes if _within(box, sides)})
    if not names:
        raise QkvError("There is no box to be found in any of the pictures, so nothing to score.")
    precisions, recalls = zip(*(_of_class(name, found, wanted, most, sides) for name in names), strict=True)
    table = np.stack(precisions)  # [classes i]
    return BoxScores(
        average=float(table.mean()),
        at_half=float(table[:, 0].mean()),
        at_three_quarters=float(table[:, 5].mean()),
        recall=float(np.stack(recalls).mean()),
        by_class={name: float(row.mean()) for name, row in zip(names, table, strict=True)},
    )


def score_by_size(found: Sequence[Sequence[Box]], wanted: Sequence[Sequence[Box]]) -> dict[str, float]:
    """Average precision of the small, the medium and the large objects by themselves, of those that there are any."""
    there = [box for boxes in wanted for box in boxes]
    return {
        name: score_boxes(found, wanted, sides=sides).average
        for name, sides in SIDES.items()
        if any(_within(box, sides) for box in there)
    }


def _within(box: Box, sides: tuple[float, float]) -> bool:
    area = (box.x1 - box.x0) * (box.y1 - box.y0)
    return sides[0] ** 2 <= area <= sides[1] ** 2


def _of_class(
    name: str,
    found: Sequence[Sequence[Box]],
    wanted: Sequence[Sequence[Box]],
    most: int,
    sides: tuple[float, float],
) -> tuple[Floats, Floats]:
    """Average precision and recall of one class at each threshold. [i], [i]"""
    probabilities, hits, misses, there = [], [], [], 0
    for some, truth in zip(found, wanted, strict=True):
        ranked = sorted((box for box in some if box.label == name), key=lambda box: -box.probability)[:most]
        real = [box for box in truth if box.label == name]
        asked = np.array([_within(box, sides) for box in real], bool)
        there += int(asked.sum())
        probabilities += [box.probability for box in ranked]
        hit, other = matches(overlaps(ranked, real), asked)
        hits.append(hit)
        misses.append(~hit & ~other & np.array([_within(box, sides) for box in ranked], bool))
    order = np.argsort(-np.array(probabilities), kind="stable")
    right = np.concatenate(hits, 1)[:, order].cumsum(1)  # [i all found]
    wrong = np.concatenate(misses, 1)[:, order].cumsum(1)
    recall = right / there
    precision = right / np.maximum(right + wrong, 1)
    best = np.maximum.accumulate(precision[:, ::-1], 1)[:, ::-1]  # at this recall or a higher one
    averages = np.zeros(len(THRESHOLDS))
    for number in range(len(THRESHOLDS)):
        places = np.searchsorted(recall[number], RECALLS, side="left")
        reached = places < right.shape[1]
        averages[number] = best[number][places[reached]].sum() / len(RECALLS)
    return averages, recall[:, -1] if right.shape[1] else np.zeros(len(THRESHOLDS))


def matches(shares: Floats, asked: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which of the boxes found, the likeliest first, hit one that no other has taken: one of those that are asked for,
    or where there is none of them one of the others. shares [d g], asked [g] → [i d], [i d]"""
    hit, other = np.zeros((2, len(THRESHOLDS), len(shares)), bool)
    for number, threshold in enumerate(THRESHOLDS):
        free = np.ones(shares.shape[1], bool)
        for place, row in enumerate(shares):
            for kind, open_ones in ((hit, free & asked), (other, free & ~asked)):
                near = np.where(open_ones, row, -1.0)
                if open_ones.any() and near.max() >= min(threshold, 1 - 1e-10):
                    # Of equals the last, as COCO's own code takes it.
                    free[len(row) - 1 - int(near[::-1].argmax())] = False
                    kind[number, place] = True
                    break
    return hit, other


def overlaps(found: Sequence[Box], wanted: Sequence[Box]) -> Floats:
    """Intersection over union of each box found with each that is there. [d g]"""
    one = np.array([box.corners for box in found]).reshape(-1, 1, 4)
    other = np.array([box.corners for box in wanted]).reshape(1, -1, 4)
    sides = np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])
    shared = np.prod(sides.clip(min=0), -1)
    union = np.prod(one[..., 2:] - one[..., :2], -1) + np.prod(other[..., 2:] - other[..., :2], -1) - shared
    return shared / union
