"""What a training on pictures does where nobody says otherwise: chosen by the pictures, and recorded with the run.

A person's first training is on a few thousand small pictures, on a CPU, for minutes. What suits a published model and a
month on many devices fails there: patches as large as strokes, mirrored digits, a rise of the rate that never ends.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from qkv.api.choices import DESK, named_sizes
from qkv.api.class_training import JUDGED
from qkv.api.pixel_probes import guessed, linear_score, recognised
from qkv.data.augment import Augmentation, Flip, InTurn, Moved
from qkv.data.image_rows import ImageRows
from qkv.errors import QkvError
from qkv.files import read_json
from qkv.models.catalogue import find_family
from qkv.train.parallel.world import current_world

MOST_CONVOLUTIONS = 4  # [xiao2021]
# Of a model that learns on a CPU in minutes: few places, so that there is time for many updates.
SMALL_PLACES, PLACES = 4, 8  # a side
SMALL = {"width": 96, "hidden": 384, "heads": 3, "layers": 4}
DROPOUT = 0.1

TURN, ZOOM, SHIFT = 10.0, 0.1, 1 / 16  # degrees, share of the size, share of the side
MIRRORED = "mirrored"
# Each as strong as it is in a training, and drawn for every picture.
CHANGES: Mapping[str, Augmentation] = {
    "turned": Moved(turn=TURN),
    "zoomed": Moved(zoom=ZOOM),
    "shifted": Moved(shift=SHIFT),
    MIRRORED: Flip(1.0),
}
KEPT = 0.75  # of what a judge knows better than by guessing, which it must know of changed pictures too


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What probes of the pixels said of the pictures, before anything was trained."""

    pictures: int
    guessed: float  # the share of the commonest class
    recognised: Mapping[str, float]  # by the change; "" is for none
    linear: float | None = None  # what a linear probe gets right of the held-out pictures

    @property
    def knows(self) -> bool:
        """Whether the judge sees anything at all: more than two deviations above guessing."""
        chance = math.sqrt(self.guessed * (1 - self.guessed) / self.pictures)
        return self.recognised[""] > self.guessed + 2 * chance

    def kept(self, change: str) -> float:
        """The share of its knowledge that the judge keeps of changed pictures."""
        return (self.recognised[change] - self.guessed) / (self.recognised[""] - self.guessed)

    def allows(self, change: str) -> bool:
        """Whether pictures stay what they are.

        A judge that knows nothing has no say in small moves; a mirror, which makes a d of a b, needs its word.
        """
        return self.kept(change) >= KEPT if self.knows else change != MIRRORED

    def changes(self) -> tuple[str, ...]:
        return tuple(change for change in CHANGES if self.allows(change))

    def record(self) -> dict[str, Any]:
        return asdict(self)


def judged(rows: ImageRows, held: ImageRows | None, folder: Path | None = None, *, changes: bool = True) -> Judged:
    """Ask the probes which `changes` leave pictures what they are, and what pixels tell of those that are held out.

    A run that is resumed in a `folder` was asked before, and every rank of one is told what the first one found.
    """
    world = current_world()
    if world.first:
        found = None if folder is None else recorded(folder)
        found = found or Judged(
            pictures=len(rows),
            guessed=guessed(rows),
            recognised=recognised(rows, CHANGES) if changes else {},
            linear=None if held is None else linear_score(rows, held),
        )
    told = world.from_first(json.dumps(found.record()).encode() if world.first and found else None)
    return Judged(**json.loads(told))


def recorded(folder: Path) -> Judged | None:
    """What probes said when the run of a folder began, if they were asked."""
    try:
        told = read_json(folder / "run.json")["settings"][JUDGED]
        return Judged(**told) if set(told) == {field.name for field in fields(Judged)} else None
    except (QkvError, KeyError, TypeError):  # what is wrong with a run.json is told by who resumes it
        return None


def augmentation_of(changes: Sequence[str]) -> Augmentation | None:
    """Pictures changed in these ways, anew in every epoch."""
    moved = {"turn": ("turned", TURN), "zoom": ("zoomed", ZOOM), "shift": ("shifted", SHIFT)}
    taken = {name: most for name, (change, most) in moved.items() if change in changes}
    steps: list[Augmentation] = [Moved(**taken)] if taken else []
    if MIRRORED in changes:
        steps.append(Flip())
    return InTurn(tuple(steps)) if steps else None


def sizes_for(family: str, side: int, *, small: bool) -> dict[str, Any]:
    """Of a new model for pictures of this side; a `small` one where minutes of a CPU are what there is.

    As many convolutions halve a picture as it takes to leave about so many places a side: each sees strokes as they are
    drawn, where a patch as large as a stroke sees none, and large pictures do not become thousands of tokens.
    """
    chosen = find_family(family)
    if "stem" not in {field.name for field in fields(chosen.sizes_type)}:
        raise QkvError(f"Family {family} does not decide about single pictures: take vit or deit.")
    sizes = {**named_sizes(chosen, DESK), "patch": 1, "dropout": DROPOUT}
    halvings = round(math.log2(side / (SMALL_PLACES if small else PLACES)))
    convolutions = min(MOST_CONVOLUTIONS, max(1, halvings))
    return {**sizes, "stem": convolutions, **(SMALL if small else {})}
