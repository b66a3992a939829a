"""Heads that say what is where: the class and the box of each object, or a map of each keypoint.

Shapes: b pictures, n object queries, s tokens, d width of the stream, c classes, p keypoints.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.context import Context
from qkv.parts.convolution import BatchNorm
from qkv.parts.precision import widened, without_autocast
from qkv.parts.spec import Depends


class Detections(NamedTuple):
    logits: Tensor  # [b n c+1]; the last class is "no object"
    boxes: Tensor  # [b n 4]: centre x, centre y, width and height, as shares of the picture's own


class DetectionHead(nn.Module):
    """The class of each query's object or that there is none, and its box. [carion2020 §3.2]"""

    depends_on = Depends("classes", "box")

    def __init__(self, width: int, classes: int, box_layers: int = 3) -> None:
        super().__init__()
        self.classes = nn.Linear(width, classes + 1)
        self.box = nn.ModuleList(nn.Linear(width, width) for _ in range(box_layers - 1))
        self.box.append(nn.Linear(width, 4))

    def forward(self, x: Tensor, ctx: Context | None = None) -> Detections:
        """[… n d] → [… n c+1], [… n 4]"""
        with without_autocast(x):  # in bfloat16 places would be as coarse as the pixels of a small picture
            y = x if x.dtype == self.box[0].weight.dtype else widened(x)
            for number, layer in enumerate(self.box):
                y = layer(y if number == 0 else F.relu(y))
        return Detections(self.classes(x), y.sigmoid())


def as_map(x: Tensor, ctx: Context) -> Tensor:
    """The patches of a stream [b s d] where they stand in the picture. [b d r k]"""
    if ctx.grid is None:
        raise QkvError("A head that draws maps needs to know how patches stand in the picture: give Context(grid=...).")
    rows, columns = ctx.grid
    return x[:, x.shape[1] - rows * columns :].transpose(1, 2).unflatten(2, (rows, columns))


class Upsampling(nn.Module):
    """relu(norm(deconvolution(x))): a map twice as large either way. [xu2022 eq.2]"""

    depends_on = Depends("deconvolution", "norm")

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.deconvolution = nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1, bias=False)
        nn.init.normal_(self.deconvolution.weight, std=0.001)
        self.norm = BatchNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[b c h w] → [b c' 2h 2w]"""
        return F.relu(self.norm(self.deconvolution(x)))


class HeatmapHead(nn.Module):
    """A map of each keypoint, four times as fine as the patches, by two deconvolutions. [xu2022 eq.2]"""

    depends_on = Depends("first", "second", "out")

    def __init__(self, width: int, points: int, inner: int = 256) -> None:
        super().__init__()
        self.first, self.second = Upsampling(width, inner), Upsampling(inner, inner)
        self.out = nn.Conv2d(inner, points, 1)
        nn.init.normal_(self.out.weight, std=0.001)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """[b s d] → [b p 4r 4k]"""
        maps: Tensor = self.out(self.second(self.first(as_map(x, ctx))))
        return maps


class PlainHeatmapHead(nn.Module):
    """The same without learning how to enlarge: bilinearly, then one convolution. [xu2022 eq.3]"""

    depends_on = Depends("out", "factor")

    def __init__(self, width: int, points: int, factor: int = 4) -> None:
        super().__init__()
        self.factor = factor
        self.out = nn.Conv2d(width, points, 3, padding=1)
        nn.init.normal_(self.out.weight, std=0.001)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """[b s d] → [b p 4r 4k]"""
        large = F.interpolate(F.relu(as_map(x, ctx)), scale_factor=self.factor, mode="bilinear", align_corners=False)
        maps: Tensor = self.out(large)
        return maps
