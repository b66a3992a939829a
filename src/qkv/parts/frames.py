"""Frames of sound in, stream out: convolutions over neighbouring frames, then positions.

Shapes: b rows, f features of a frame, t frames, s slots, d width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.position import halves
from qkv.parts.spec import Depends

STRIDE = 2  # frames a slot


def timescales(length: int, width: int) -> Tensor:
    """Sines, then cosines, of angles that turn from 1 to 1/10000 a position, both ends included. [length width]

    DIFFERS [vaswani2017 §3.5]: the paper's slowest pair stops just short of 1/10000; Whisper's does not
    [radford2023 §2.2].
    """
    if width % 2 or width < 4:
        raise QkvError(f"Positions of this kind need an even width of 4 at least, not {width}.")
    rates = 10000.0 ** (-torch.arange(width // 2, dtype=torch.float64) / (width // 2 - 1))  # [d/2]
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    return halves(angles.sin(), angles.cos()).float()


class Given(nn.Module):
    """A table of positions that is never learned, yet saved with the weights: files hold it and may differ."""

    depends_on = Depends("weight")

    weight: Tensor

    def __init__(self, length: int, width: int, table: Callable[[int, int], Tensor]) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(length, width))
        self.weight.copy_(table(length, width))

    def forward(self, positions: Tensor, longest: int) -> Tensor:
        if longest > len(self.weight):
            raise QkvError(f"This model knows {len(self.weight)} positions and the input needs {longest}.")
        return F.embedding(positions, self.weight)


class FrameStem(nn.Module):
    """Two convolutions over three frames each, the second at every other frame, and positions. [radford2023 §2.2]"""

    depends_on = Depends("near", "halving", "position", "dropout", unread=("features",))

    vocabulary = None  # what comes in is no text

    def __init__(self, features: int, width: int, position: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.features = features
        self.near = nn.Conv1d(features, width, kernel_size=3, padding=1)
        self.halving = nn.Conv1d(width, width, kernel_size=3, stride=STRIDE, padding=1)
        self.position, self.dropout = position, nn.Dropout(dropout)

    def slots(self, frames: Tensor, lengths: Tensor | None) -> Tokens:
        """Where the stream's tokens stand: one for every two frames [b f t]."""
        if frames.ndim != 3 or frames.shape[1] != self.features:
            raise QkvError(
                f"This model hears frames [rows features frames] of {self.features} features, not {list(frames.shape)}."
            )
        if lengths is not None and bool((lengths != frames.shape[2]).any()):
            raise QkvError("Frames are padded with silence, which is heard like any other sound: give no lengths.")
        return Tokens(-(-frames.shape[2] // STRIDE))

    def forward(self, frames: Tensor, ctx: Context) -> Tensor:
        x = F.gelu(self.near(frames))  # [b d t]
        x = F.gelu(self.halving(x)).transpose(1, 2)  # [b s d]
        x = x + self.position(ctx.position_ids(x.device), ctx.longest())
        return self.dropout(x)
