"""Pictures of people or things in, their keypoints out.

Shapes: b things, p keypoints, h height and w width of the maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from qkv.data.box_rows import plain_picture
from qkv.data.framing import Corners, Frame, Keypoint, frame_of, framed
from qkv.data.images import Source
from qkv.data.preprocessing import Preprocessing
from qkv.data.preprocessing_files import write_preprocessing
from qkv.errors import QkvError
from qkv.generate.use import at_rest
from qkv.models.image_model import ImageModel
from qkv.weights.save import save_model

Floats = NDArray[np.float64]
BLUR = 0.8  # standard deviation, in pixels of a map, of the blur that takes its noise away
REACH = 5  # pixels that the blur looks at on each side
LEAST, MOST = 0.001, 50.0  # what a map's logarithm is taken of


class KeypointFinder:
    """Finds the keypoints of things, each in a box of its own.

    Of the preprocessing the size and the normalisation count: what lies in a frame is resized in one step.
    """

    def __init__(self, model: ImageModel, preprocessing: Preprocessing) -> None:
        if not isinstance(model, ImageModel) or model.head_choice.kind != "keypoints":
            raise QkvError("Keypoints are found by a model with a keypoints head, and this one has none.")
        if preprocessing.size is None:
            raise QkvError("What keypoints are looked for in has one size: prepare pictures to exactly that.")
        self.model, self.preprocessing = model, preprocessing
        self.size, self.normalise = preprocessing.size, preprocessing.normalise

    def save(self, folder: Path | str) -> None:
        """A folder that `qkv.load` opens: the model, and how pictures become its inputs."""
        save_model(self.model, Path(folder))
        write_preprocessing(self.preprocessing, folder)

    def run(
        self, images: Sequence[Source], boxes: Sequence[Sequence[Corners]] | None = None, *, batch: int = 16
    ) -> list[list[list[Keypoint]]]:
        """The keypoints of each thing of each picture, in pixels of the upright picture.

        `boxes` are the things of each picture (x0, y0, x1, y1); without them each picture is one thing.
        """
        if boxes is not None and len(boxes) != len(images):
            raise QkvError(f"There are {len(images)} pictures, but boxes for {len(boxes)}.")
        device = next(self.model.parameters()).device
        found: list[list[list[Keypoint]]] = []
        with at_rest(self.model):
            for number, source in enumerate(images):
                picture = np.asarray(plain_picture(source))
                things: Sequence[Corners | None] = [None] if boxes is None else boxes[number]
                frames = [frame_of(picture.shape[:2], box, self.size) for box in things]
                points: list[list[Keypoint]] = []
                for first in range(0, len(frames), batch):
                    some = frames[first : first + batch]
                    shown = [torch.from_numpy(framed(picture, frame, self.size)).permute(2, 0, 1) for frame in some]
                    maps = self.model(self.normalise(torch.stack(shown).to(device))).float().cpu().numpy()
                    places, peaks = read_maps(maps)
                    points += [self._points(*each) for each in zip(some, places, peaks, strict=True)]
                found.append(points)
        return found

    def _points(self, frame: Frame, places: Floats, peaks: Floats) -> list[Keypoint]:
        names = self.model.head_choice.labels
        return [
            Keypoint(name, float(peak), *frame.point(*place))
            for name, place, peak in zip(names, places.tolist(), peaks, strict=True)
        ]


def read_maps(maps: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Where the peak of each map is, as a place in the frame, and its height. [b p h w] → [b p 2], [b p]

    The pixel of the peak is refined by one step to the top of the hill that the logarithm of the blurred map has around
    it: for a round hill, exactly its middle. [zhang2020 §3.1]
    """
    if maps.ndim != 4 or min(maps.shape[2:]) < 2:
        raise QkvError(f"Maps must come as [b p h w], at least 2 × 2, not as {list(maps.shape)}.")
    height, width = maps.shape[2:]
    flat = maps.reshape(*maps.shape[:2], -1)
    best = flat.argmax(-1)  # [b p]
    rows, columns = best // width, best % width
    hills = np.log(blurred(maps.astype(np.float64)).clip(LEAST, MOST))
    hills = np.pad(hills, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    things, points = np.indices(best.shape)

    def at(down: int, across: int) -> Floats:
        found: Floats = hills[things, points, rows + 1 + down, columns + 1 + across]
        return found

    middle = at(0, 0)
    slope = np.stack(((at(0, 1) - at(0, -1)) / 2, (at(1, 0) - at(-1, 0)) / 2), -1)  # [b p 2]
    both = at(1, 1) - at(0, 1) - at(1, 0) + 2 * middle - at(0, -1) - at(-1, 0) + at(-1, -1)
    bend = np.empty((*best.shape, 2, 2))
    bend[..., 0, 0] = at(0, 1) - 2 * middle + at(0, -1)
    bend[..., 1, 1] = at(1, 0) - 2 * middle + at(-1, 0)
    bend[..., 0, 1] = bend[..., 1, 0] = both / 2
    bend += np.finfo(np.float32).eps * np.eye(2)  # a map without any hill bends nowhere
    step = np.linalg.solve(bend, slope[..., None])[..., 0]
    places = np.stack((columns, rows), -1) - step
    return places / np.array([width - 1, height - 1]), flat.max(-1).astype(np.float64)


def blurred(maps: Floats) -> Floats:
    """Each map under a round blur, its edges mirrored. [b p h w]"""
    shares = np.exp(-0.5 * (np.arange(-REACH, REACH + 1) / BLUR) ** 2)
    shares /= shares.sum()
    for axis in (2, 3):
        around = [(0, 0)] * 4
        around[axis] = (REACH, REACH)
        wide = np.pad(maps, around, mode="symmetric")
        side = maps.shape[axis]
        maps = np.zeros_like(maps)
        for at, share in enumerate(shares):
            maps += share * wide.take(range(at, at + side), axis)
    return maps
