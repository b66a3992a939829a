"""Residual networks: what a picture becomes before it is a stream. [he2016 §3]

Shapes: b pictures, c channels, h height and w width of a map, which a stride makes smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError, nearest_or_all
from qkv.parts.precision import widened
from qkv.parts.spec import Depends


class FrozenBatchNorm(nn.Module):
    """A batch norm that learned elsewhere: its statistics, scale and shift are fixed numbers. [carion2020 §A.4]"""

    depends_on = Depends("epsilon", "weight", "bias", "running_mean", "running_variance")

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, channels: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_variance", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[b c h w] → [b c h w]"""
        scale = widened(self.weight) * (widened(self.running_variance) + self.epsilon).rsqrt()  # [c]
        shift = widened(self.bias) - widened(self.running_mean) * scale
        return x * scale[:, None, None].to(x.dtype) + shift[:, None, None].to(x.dtype)


class BatchNorm(nn.Module):
    """Mean 0 and variance 1 of each channel over a batch, then a learned scale and shift. [ioffe2015 alg.2]

    Its tensors are called as those of the frozen one, so that what was learned here can be fixed there.
    """

    depends_on = Depends("epsilon", "momentum", "weight", "bias", "running_mean", "running_variance")

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, channels: int, epsilon: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.epsilon, self.momentum = epsilon, momentum
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_variance", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[b c h w] → [b c h w]"""
        running = self.running_mean, self.running_variance
        return F.batch_norm(x, *running, self.weight, self.bias, self.training, self.momentum, self.epsilon)


# By the names that saved configurations use.
NORMS: dict[str, Callable[[int], nn.Module]] = {"frozen": FrozenBatchNorm, "batch": BatchNorm}


def find_norm(name: str) -> Callable[[int], nn.Module]:
    if name not in NORMS:
        raise QkvError(f"There is no norm of maps called {name}: {nearest_or_all(name, NORMS)}")
    return NORMS[name]


class Convolution(nn.Module):
    """norm(W ∗ x), as large as x where it does not stride."""

    depends_on = Depends("convolution", "norm")

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        norm: Callable[[int], nn.Module],
        *,
        stride: int = 1,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        around = dilation * (kernel - 1) // 2
        self.convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=around, dilation=dilation, bias=False)
        nn.init.kaiming_normal_(self.convolution.weight, mode="fan_out", nonlinearity="relu")
        self.norm = norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.convolution(x))
        return y


class Residual(nn.Module):
    """relu(shortcut(x) + steps(x)), with a relu between the steps. [he2016 eq.1]

    The shortcut is x itself, or a projection where the steps change its size. [he2016 eq.2]
    """

    depends_on = Depends("steps", shortcut=None)

    def __init__(self, steps: Sequence[nn.Module], shortcut: nn.Module | None) -> None:
        super().__init__()
        self.steps, self.shortcut = nn.ModuleList(steps), shortcut

    def forward(self, x: Tensor) -> Tensor:
        """[b c h w] → [b c' h' w']"""
        y = x
        for number, step in enumerate(self.steps):
            y = step(y if number == 0 else F.relu(y))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class BlockMaker(Protocol):
    """A residual block; `first_dilation` is that of what reads its input, where it looks around at all."""

    def __call__(
        self,
        inputs: int,
        outputs: int,
        norm: Callable[[int], nn.Module],
        stride: int = 1,
        first_dilation: int = 1,
        dilation: int = 1,
    ) -> Residual: ...


def bottleneck(
    inputs: int,
    outputs: int,
    norm: Callable[[int], nn.Module],
    stride: int = 1,
    first_dilation: int = 1,
    dilation: int = 1,
) -> Residual:
    """Narrow, look around, widen: 1 × 1, 3 × 3 and 1 × 1, the first two of a quarter of the width. [he2016 fig.5]

    DIFFERS [he2016]: the stride is that of the 3 × 3, where less is thrown away; so are all published weights of today.
    """
    if outputs % 4:
        raise QkvError(f"A bottleneck is a quarter as wide as what leaves it, so {outputs} channels must divide by 4.")
    narrow = outputs // 4
    steps = [
        Convolution(inputs, narrow, 1, norm),
        Convolution(narrow, narrow, 3, norm, stride=stride, dilation=first_dilation),
        Convolution(narrow, outputs, 1, norm),
    ]
    return Residual(steps, _shortcut(inputs, outputs, norm, stride))


def basic(
    inputs: int,
    outputs: int,
    norm: Callable[[int], nn.Module],
    stride: int = 1,
    first_dilation: int = 1,
    dilation: int = 1,
) -> Residual:
    """Two 3 × 3 convolutions. [he2016 fig.5]"""
    steps = [
        Convolution(inputs, outputs, 3, norm, stride=stride, dilation=first_dilation),
        Convolution(outputs, outputs, 3, norm, dilation=dilation),
    ]
    return Residual(steps, _shortcut(inputs, outputs, norm, stride))


def _shortcut(inputs: int, outputs: int, norm: Callable[[int], nn.Module], stride: int) -> Convolution | None:
    """A projection where the size changes and nowhere else. [he2016 §3.3]"""
    if stride == 1 and inputs == outputs:
        return None
    return Convolution(inputs, outputs, 1, norm, stride=stride)


# By the names that saved configurations use.
BLOCKS: dict[str, BlockMaker] = {"bottleneck": bottleneck, "basic": basic}


def find_block(name: str) -> BlockMaker:
    if name not in BLOCKS:
        raise QkvError(f"There is no residual block called {name}: {nearest_or_all(name, BLOCKS)}")
    return BLOCKS[name]


class ResNet(nn.Module):
    """A stem that makes a picture four times smaller, and stages that halve it again, all but the first. [he2016 tab.1]

    With `last_stride` 1 the last stage keeps its size, and looks around at every other place instead, so that it sees
    as much as before: DC5. [carion2020 §4]
    """

    depends_on = Depends("stem", "stages", unread=("channels", "outputs"))

    def __init__(
        self,
        channels: int,
        stem: int,
        widths: Sequence[int],
        depths: Sequence[int],
        block: BlockMaker,
        norm: Callable[[int], nn.Module],
        last_stride: int = 2,
    ) -> None:
        super().__init__()
        if not widths or len(widths) != len(depths):
            raise QkvError(f"Each stage has a width and a depth, but there are {len(widths)} and {len(depths)}.")
        if last_stride not in (1, 2):
            raise QkvError(
                f"The last stage halves a map (2) or keeps its size (1), and has no stride of {last_stride}."
            )
        self.channels, self.outputs = channels, widths[-1]
        self.stem = Convolution(channels, stem, 7, norm, stride=2)
        stages, inputs = [], stem
        for number, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            last = number == len(widths) - 1
            stride = 1 if number == 0 else (last_stride if last else 2)
            # The first block of a stage still reads the map before it, which is as dense as ever.
            dilation = 2 if last and last_stride == 1 else 1
            blocks = [block(inputs, width, norm, stride, 1, dilation)]
            blocks += [block(width, width, norm, 1, dilation, dilation) for _ in range(depth - 1)]
            stages.append(nn.ModuleList(blocks))
            inputs = width
        self.stages = nn.ModuleList(stages)

    def forward(self, images: Tensor) -> Tensor:
        """[b c h w] → [b outputs h' w'], the last map"""
        if images.ndim != 4 or images.shape[1] != self.channels:
            raise QkvError(
                f"Pictures must come as [rows, {self.channels} channels, height, width], not as {list(images.shape)}."
            )
        images = images.to(self.stem.convolution.weight.dtype)
        x = F.max_pool2d(F.relu(self.stem(images)), 3, stride=2, padding=1)
        for stage in self.stages:
            assert isinstance(stage, nn.ModuleList)
            for block in stage:
                x = block(x)
        return x
