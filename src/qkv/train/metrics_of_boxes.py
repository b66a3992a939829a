"""How good found boxes are: average precision as COCO defines it. [lin2014]

Shapes: d boxes found of one class and picture, g boxes that are there, i thresholds of overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.data.boxes import Box
from qkv.errors import QkvError

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # overlaps from which on a box is found: COCO asks for all ten
RECALLS = np.linspace(0, 1, 101)  # where precision is read
MOST = 100  # boxes of a picture that count, the likeliest

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class BoxScores:
    """Average precisions from 0 to 1: the mean over ten overlaps from 0.5 to 0.95, and at two of them alone."""

    average: float
    at_half: float
    at_three_quarters: float
    recall: float  # the share of boxes that are found at all, over the same ten overlaps
    by_class: dict[str, float]  # the first for each class that there is


def score_boxes(found: Sequence[Sequence[Box]], wanted: Sequence[Sequence[Box]], most: int = MOST) -> BoxScores:
    """Average precision of the boxes found in pictures, given those that are there.

    A box counts as found by the likeliest of those that overlap it enough and are not taken yet; all others are wrong.
    A class that is nowhere does not count.
    """
    if len(found) != len(wanted):
        raise QkvError(f"Boxes were found in {len(found)} pictures, and {len(wanted)} are to be scored.")
    names = sorted({box.label for boxes in wanted for box in boxes})
    if not names:
        raise QkvError("There is no box to be found in any of the pictures, so nothing to score.")
    precisions, recalls = zip(*(_of_class(name, found, wanted, most) for name in names), strict=True)
    table = np.stack(precisions)  # [classes i]
    return BoxScores(
        average=float(table.mean()),
        at_half=float(table[:, 0].mean()),
        at_three_quarters=float(table[:, 5].mean()),
        recall=float(np.stack(recalls).mean()),
        by_class={name: float(row.mean()) for name, row in zip(names, table, strict=True)},
    )


def _of_class(
    name: str, found: Sequence[Sequence[Box]], wanted: Sequence[Sequence[Box]], most: int
) -> tuple[Floats, Floats]:
    """Average precision and recall of one class at each threshold. [i], [i]"""
    probabilities, hits, there = [], [], 0
    for some, truth in zip(found, wanted, strict=True):
        ranked = sorted((box for box in some if box.label == name), key=lambda box: -box.probability)[:most]
        real = [box for box in truth if box.label == name]
        there += len(real)
        probabilities += [box.probability for box in ranked]
        hits.append(matches(overlaps(ranked, real)))
    order = np.argsort(-np.array(probabilities), kind="stable")
    hit = np.concatenate(hits, 1)[:, order]  # [i all found]
    right = hit.cumsum(1)
    recall = right / there
    precision = right / np.arange(1, hit.shape[1] + 1)
    best = np.maximum.accumulate(precision[:, ::-1], 1)[:, ::-1]  # at this recall or a higher one
    averages = np.zeros(len(THRESHOLDS))
    for number in range(len(THRESHOLDS)):
        places = np.searchsorted(recall[number], RECALLS, side="left")
        reached = places < hit.shape[1]
        averages[number] = best[number][places[reached]].sum() / len(RECALLS)
    return averages, recall[:, -1] if hit.shape[1] else np.zeros(len(THRESHOLDS))


def matches(shares: Floats) -> NDArray[np.bool_]:
    """Which of the boxes found, the likeliest first, hit one that no other has taken. shares [d g] → [i d]"""
    hit = np.zeros((len(THRESHOLDS), len(shares)), bool)
    for number, threshold in enumerate(THRESHOLDS):
        free = np.ones(shares.shape[1], bool)
        for place, row in enumerate(shares):
            open_ones = np.where(free, row, -1.0)
            if free.any() and open_ones.max() >= min(threshold, 1 - 1e-10):
                # Of equals the last, as COCO's own code takes it.
                free[len(row) - 1 - int(open_ones[::-1].argmax())] = False
                hit[number, place] = True
    return hit


def overlaps(found: Sequence[Box], wanted: Sequence[Box]) -> Floats:
    """Intersection over union of each box found with each that is there. [d g]"""
    one = np.array([box.corners for box in found]).reshape(-1, 1, 4)
    other = np.array([box.corners for box in wanted]).reshape(1, -1, 4)
    sides = np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])
    shared = np.prod(sides.clip(min=0), -1)
    union = np.prod(one[..., 2:] - one[..., :2], -1) + np.prod(other[..., 2:] - other[..., :2], -1) - shared
    return shared / union
