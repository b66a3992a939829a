"""A few changes of a picture, drawn from a list, all as strong as one number says. [cubuk2020]"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from qkv.data.augment import colour, geometry
from qkv.data.augment.geometry import Floats
from qkv.data.augment.steps import beside
from qkv.errors import QkvError

STRONGEST = 10.0  # the magnitude of a change at its greatest extent [cubuk2020 §3.1]
SHEAR, TRANSLATE, ROTATE, ENHANCE = 0.3, 150 / 331, 30.0, 0.9  # that extent; translations as a share of the side

Change = Callable[[Tensor, Floats, Floats], Tensor]  # pixels, strength from 0 to 1 [b], sign [b]


def _enhanced(change: Callable[[Tensor, Tensor], Tensor]) -> Change:
    # DIFFERS [cubuk2020]: its code goes from 0.1 to 1.9 with the magnitude, so that 5 does nothing; here 0 does.
    return lambda pixels, strength, sign: change(pixels, beside(1 + sign * strength * ENHANCE, pixels))


CHANGES: Mapping[str, Change] = {
    "identity": lambda pixels, strength, sign: pixels,
    "autocontrast": lambda pixels, strength, sign: colour.autocontrast(pixels),
    "equalize": lambda pixels, strength, sign: colour.equalised(pixels),
    "rotate": lambda pixels, strength, sign: geometry.rotated(pixels, sign * strength * ROTATE),
    # DIFFERS [cubuk2020]: its code keeps more bits, and a higher threshold, as the magnitude grows; here fewer.
    "solarize": lambda pixels, strength, sign: colour.solarised(pixels, beside(256 * (1 - strength), pixels)),
    "color": _enhanced(colour.saturation),
    "posterize": lambda pixels, strength, sign: colour.posterised(pixels, beside(8 - np.rint(4 * strength), pixels)),
    "contrast": _enhanced(colour.contrast),
    "brightness": _enhanced(colour.brightness),
    "sharpness": _enhanced(colour.sharpness),
    "shear-x": lambda pixels, strength, sign: geometry.sheared(pixels, sign * strength * SHEAR, 0 * sign),
    "shear-y": lambda pixels, strength, sign: geometry.sheared(pixels, 0 * sign, sign * strength * SHEAR),
    "translate-x": lambda pixels, strength, sign: geometry.translated(
        pixels, sign * strength * TRANSLATE * pixels.shape[-1], 0 * sign
    ),
    "translate-y": lambda pixels, strength, sign: geometry.translated(
        pixels, 0 * sign, sign * strength * TRANSLATE * pixels.shape[-2]
    ),
}


@dataclass(frozen=True)
class RandAugment:
    """`changes` of the list for each picture, one after the other, each of this magnitude. [cubuk2020 §3]

    `spread` is the standard deviation of a magnitude that is drawn anew for each picture and change.
    """

    changes: int = 2
    magnitude: float = 9.0  # from 0 to 10
    spread: float = 0.0
    among: tuple[str, ...] = field(default=tuple(CHANGES))

    def __post_init__(self) -> None:
        if not 0 <= self.magnitude <= STRONGEST or self.changes < 0 or self.spread < 0:
            raise QkvError(f"A magnitude goes from 0 to {STRONGEST:g}; changes and spread from 0 on; not {self}.")
        if unknown := sorted(set(self.among) - set(CHANGES)):
            raise QkvError(f"There is no change {unknown[0]!r}; there are {', '.join(CHANGES)}.")

    def __call__(self, pixels: Tensor, draw: np.random.Generator) -> Tensor:
        for _ in range(self.changes):
            chosen = draw.integers(0, len(self.among), len(pixels))
            strengths = draw.normal(self.magnitude, self.spread, len(pixels)).clip(0, STRONGEST) / STRONGEST
            signs = draw.choice(np.array([-1.0, 1.0]), len(pixels))
            changed = pixels.clone()
            for number, name in enumerate(self.among):
                places = np.flatnonzero(chosen == number)
                if len(places) and name != "identity":
                    some = beside(places, pixels)
                    changed[some] = CHANGES[name](pixels[some], strengths[places], signs[places])
            pixels = changed
        return pixels
