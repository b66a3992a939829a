"""How good found keypoints are: the share of those that lie near enough. [yang2013]

Shapes: n things, p keypoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.errors import QkvError


@dataclass(frozen=True)
class PointScores:
    share: float  # of all points that are there, those found near enough
    by_name: dict[str, float]  # of the points that are there at all


def score_points(
    found: NDArray[np.floating],
    wanted: NDArray[np.floating],
    seen: NDArray[np.bool_],
    sizes: NDArray[np.floating],
    names: Sequence[str],
    near: float = 0.2,
) -> PointScores:
    """PCK: a point is right if it lies at most `near` times the thing's size from where it is.

    found and wanted [n p 2] in pixels, seen [n p], and the size of each thing [n], say the longer side of its box.
    """
    if found.shape != wanted.shape or seen.shape != wanted.shape[:2] or sizes.shape != wanted.shape[:1]:
        raise QkvError("Keypoints to score must be [n p 2] twice, with [n p] that are seen and the sizes [n].")
    if len(names) != wanted.shape[1] or not seen.any():
        raise QkvError("Scores need a name for each keypoint and at least one that is seen.")
    if not (sizes > 0).all() or near <= 0:
        raise QkvError("The size of every thing, and what counts as near, must be above 0.")
    right = (np.linalg.norm(found - wanted, axis=-1) <= near * sizes[:, None]) & seen
    there, hit = seen.sum(0), right.sum(0)
    by_name = {name: float(hit[place] / there[place]) for place, name in enumerate(names) if there[place]}
    return PointScores(float(hit.sum() / there.sum()), by_name)
