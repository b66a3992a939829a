"""A residual network for small pictures, the one a ViT is measured against. [he2016 §4.2]

It is written from torch's own layers and is no part of qkv: a peer, trained by the same loop on the same batches.

Shapes: b pictures, c channels, h height, w width.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.files import write_json, write_tensors
from qkv.weights.save import tensors_of


class Block(nn.Module):
    """relu(x + two 3 × 3 convolutions of x); where the size changes, x is thinned out and filled up with zeros."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.stride, self.more = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        # A shortcut without parameters. [he2016 §3.3 option A]
        short = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        return F.relu(y + short)


class SmallResNet(nn.Module):
    """A convolution, three stages of `depth` blocks, each half as large and twice as wide, and a mean over the map."""

    def __init__(self, channels: int, classes: int, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        widths = [width, width, 2 * width, 4 * width]
        self.stem, self.norm = nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.blocks = nn.ModuleList(
            Block(
                widths[stage] if number == 0 else widths[stage + 1], widths[stage + 1], 2 if stage and not number else 1
            )
            for stage in range(3)
            for number in range(depth)
        )
        self.out = nn.Linear(widths[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """[b c h w] → [b classes]"""
        x = images.contiguous(memory_format=torch.channels_last)  # in which a GPU convolves fastest
        x = F.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.out(x.mean((2, 3)))
        return logits


class ResNetFolder:
    """A network with the way it is saved, as a run of the training loop asks for."""

    def __init__(self, model: SmallResNet, labels: tuple[str, ...]) -> None:
        self.model, self.labels = model.to(memory_format=torch.channels_last), labels

    def save(self, folder: Path | str) -> None:
        write_tensors(Path(folder) / "model.safetensors", tensors_of(self.model))
        write_json(Path(folder) / "labels.json", list(self.labels))
