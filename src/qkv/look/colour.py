"""The colour of a weight: one ramp for paper, one for a dark screen, both even in lightness.

A weight of 0..1 is drawn on a square-root scale, the same on every map, so that two maps can be compared by eye and a
weight of 1/50 can still be told from none.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

Rgb: TypeAlias = tuple[int, int, int]

LEVELS = 64

# Anchors of the two ramps, from no weight to all of it; the steps between are even in OKLab, where equal distances
# look equal. Each ramp moves in one direction of lightness, so it survives a grey printer and colour blindness.
_PAPER = ("#fdfcf8", "#cdebdc", "#84cbc8", "#3d9cc0", "#3565ae", "#2f2f80", "#170f3d")
_SCREEN = ("#17181d", "#232a55", "#35508f", "#3f83a8", "#4fb79b", "#a9dd7a", "#fdf6a4")

# OKLab (B. Ottosson, 2020): linear light -> cone-like responses -> lightness and two opponent axes.
_TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def oklab(colours: np.ndarray) -> np.ndarray:
    """sRGB bytes to OKLab: lightness 0..1 first. [n 3] -> [n 3]"""
    display = np.asarray(colours, dtype=np.float64) / 255
    linear = np.where(display <= 0.04045, display / 12.92, ((display + 0.055) / 1.055) ** 2.4)
    return np.cbrt(linear @ _TO_CONES.T) @ _TO_LAB.T


def _srgb(lab: np.ndarray) -> np.ndarray:
    """The inverse of `oklab`, rounded to bytes. [n 3] -> [n 3]"""
    linear = (lab @ np.linalg.inv(_TO_LAB).T) ** 3 @ np.linalg.inv(_TO_CONES).T
    linear = np.clip(linear, 0, 1)
    display = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.rint(display * 255).astype(np.uint8)


def _ramp(anchors: tuple[str, ...]) -> tuple[Rgb, ...]:
    points = oklab(np.array([list(bytes.fromhex(anchor[1:])) for anchor in anchors]))  # [n 3]
    walked = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])  # [n]
    steps = np.linspace(0, walked[-1], LEVELS)
    lab = np.stack([np.interp(steps, walked, points[:, axis]) for axis in range(3)], axis=1)  # [LEVELS 3]
    return tuple((int(red), int(green), int(blue)) for red, green, blue in _srgb(lab))


PAPER: tuple[Rgb, ...] = _ramp(_PAPER)
SCREEN: tuple[Rgb, ...] = _ramp(_SCREEN)


def level(weight: np.ndarray) -> np.ndarray:
    """The step of a ramp that shows a weight: 0 for none, LEVELS - 1 for all. Any shape."""
    return np.rint(np.sqrt(np.clip(weight, 0, 1)) * (LEVELS - 1)).astype(np.intp)


def hexadecimal(colour: Rgb) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def ink_on(colour: Rgb) -> Rgb:
    """Black or white, whichever can be read on `colour`."""
    return (16, 16, 24) if oklab(np.array([colour]))[0, 0] > 0.62 else (255, 255, 255)
