"""From a wave to a stream: convolutions turn samples into frames, and a convolution tells frames where they stand.

Shapes: b rows, t samples, c channels, n frames, d width of the stream, k kernel, g groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.context import Context
from qkv.parts.feedforward import Activation
from qkv.parts.frame_products import grouped_convolution, strided_convolution
from qkv.parts.gradients import scale_gradient
from qkv.parts.norm import LayerNorm
from qkv.parts.precision import widened
from qkv.parts.programs import runs_our_own
from qkv.parts.spec import Depends

MOST_ROWS = 65535  # of a grid, in its second direction


class ChannelNorm(nn.GroupNorm):
    """Mean 0 and variance 1 of each channel over the real frames of a row, then a learned scale and shift.

    It is a group norm with one channel a group [wu2018 eq.7], but that padding is no part of it: a row is normed alike
    alone and in any batch.
    """

    depends_on = Depends("num_groups", "eps", "weight", "bias", unread=("num_channels", "affine"))

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """[b n c] → [b n c]"""
        if lengths is not None:
            return self._of_real(x, lengths)
        if x.is_cuda and x.dtype in (torch.bfloat16, torch.float16):
            return self._by_sums(x)
        return super().forward(x.transpose(1, 2)).transpose(1, 2)

    def _by_sums(self, x: Tensor) -> Tensor:
        """With channels last, read twice and written once: for narrow numbers, beside which the difference of their
        squares is fine enough."""
        mean = x.mean(1, keepdim=True, dtype=torch.float32)
        square = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float32).square() / x.shape[1]
        scale = torch.rsqrt((square - mean.square()).clamp(min=0) + self.eps) * self.weight
        learns = torch.is_grad_enabled() and (x.requires_grad or scale.requires_grad)
        if runs_our_own(x) and not learns and x.numel() > 0 and len(x) <= MOST_ROWS:
            from qkv.parts.frame_triton import scaled  # Triton comes with torch's builds for GPUs only

            return scaled(x, scale, self.bias - mean * scale)
        return torch.addcmul((self.bias - mean * scale).to(x.dtype), x, scale.to(x.dtype))

    def _of_real(self, x: Tensor, lengths: Tensor) -> Tensor:
        real = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]  # [b n 1]
        wide, count = widened(x), lengths[:, None, None].clamp(min=1)
        mean = (wide * real).sum(1, keepdim=True) / count
        centred = wide - mean
        variance = (centred.square() * real).sum(1, keepdim=True) / count
        y = centred * torch.rsqrt(variance + self.eps)
        return (y * self.weight + self.bias).to(x.dtype)


class FrameNorm(LayerNorm):
    """Layer norm over the channels of each frame."""

    depends_on = LayerNorm.depends_on.also()

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """[b n c] → [b n c]"""
        return super().forward(x)


class FrameLayer(nn.Module):
    """activation(norm(convolution(x))), where there is a norm."""

    depends_on = Depends("activation", "convolution", norm=None)

    def __init__(self, convolution: nn.Conv1d, norm: ChannelNorm | FrameNorm | None, activation: Activation) -> None:
        super().__init__()
        self.convolution, self.norm, self.activation = convolution, norm, activation
        nn.init.kaiming_normal_(convolution.weight)

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """[b n c] → [b n′ c′]; `lengths` [b] are those of the frames that come out."""
        x = strided_convolution(x, self.convolution.weight, self.convolution.bias, *self.convolution.stride)
        return self.activation(x if self.norm is None else self.norm(x, lengths))

    def lengths(self, before: Tensor) -> Tensor:
        """How many frames these many become."""
        (kernel,), (stride,) = self.convolution.kernel_size, self.convolution.stride
        return (before - kernel).div(stride, rounding_mode="floor").add(1).clamp(min=0)


class WaveFrames(nn.Module):
    """The feature encoder: a few strided convolutions over the samples. [baevski2020 §2]"""

    depends_on = Depends("layers", "gradient_share", unread=("shortest", "hop"))

    def __init__(self, layers: Sequence[FrameLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.gradient_share = 1.0  # of what goes back into the convolutions; less while learning from sound alone
        self.shortest, self.hop = 1, 1  # samples that one frame sees, and from one frame to the next
        for layer in layers:
            (kernel,), (stride,) = layer.convolution.kernel_size, layer.convolution.stride
            self.shortest += (kernel - 1) * self.hop
            self.hop *= stride

    def frames_of(self, lengths: Tensor) -> Tensor:
        """How many frames see only samples of a row, for rows of so many samples. [b] → [b]"""
        for layer in self.layers:
            assert isinstance(layer, FrameLayer)
            lengths = layer.lengths(lengths)
        return lengths

    def count(self, samples: int) -> int:
        """The same for one number."""
        return max(0, (samples - self.shortest) // self.hop + 1)

    def forward(self, waves: Tensor, lengths: Tensor | None = None) -> Tensor:
        """[b t], padded on the right from `lengths` [b] on → [b n c]"""
        if waves.ndim != 2:
            raise QkvError(f"Sounds come as rows of samples [b t], not with the shape {list(waves.shape)}.")
        x = waves[..., None].to(next(self.parameters()).dtype)  # [b t 1]
        for layer in self.layers:
            assert isinstance(layer, FrameLayer)
            lengths = None if lengths is None else layer.lengths(lengths)
            x = layer(x, lengths)
        return scale_gradient(x, self.gradient_share)


class ConvolvedPosition(nn.Module):
    """activation(convolution(x)) over the frames around each, in groups: where a frame stands. [baevski2020 §2]

    Length and direction of the weights are learned apart, one length for each place in the kernel. [salimans2016 eq.2]
    """

    depends_on = Depends("kernel", "groups", "activation", "direction", "length", "bias")

    def __init__(self, width: int, kernel: int, groups: int, activation: Activation) -> None:
        super().__init__()
        if width % groups:
            raise QkvError(f"A width of {width} does not divide into {groups} groups.")
        self.kernel, self.groups, self.activation = kernel, groups, activation
        self.direction = nn.Parameter(torch.empty(width, width // groups, kernel))
        nn.init.normal_(self.direction, std=2 * (kernel * width) ** -0.5)
        self.length = nn.Parameter(torch.linalg.vector_norm(self.direction.detach(), dim=(0, 1)))  # [k]
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """[b n d] → [b n d]"""
        norm = torch.linalg.vector_norm(widened(self.direction), dim=(0, 1))
        weight = self.direction * (self.length / norm).to(self.direction.dtype)  # [d d/g k]
        return self.activation(grouped_convolution(x, weight, self.bias, self.groups))


class FrameEmbed(nn.Module):
    """Frames made ready for a stack: normed, widened to the stream, some hidden, each told where it stands.

    Hidden frames are replaced by one learned vector, `hidden`, where the model has one. [baevski2020 §3.1]
    """

    depends_on = Depends("hidden", "features", "project", "position", "project_dropout", "dropout", norm=None)

    def __init__(
        self,
        channels: int,
        width: int,
        epsilon: float,
        position: ConvolvedPosition,
        *,
        hides: bool,
        norm: nn.Module | None = None,
        project_dropout: float = 0.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.features, self.project = LayerNorm(channels, epsilon), nn.Linear(channels, width)
        self.hidden = nn.Parameter(torch.rand(width)) if hides else None
        self.position, self.norm = position, norm
        self.project_dropout, self.dropout = nn.Dropout(project_dropout), nn.Dropout(dropout)

    def forward(
        self, features: Tensor, ctx: Context, hidden_frames: Tensor | None = None, hidden_channels: Tensor | None = None
    ) -> Tensor:
        """Normed frames [b n c] → [b n d]; what is True in hidden_frames [b n] and hidden_channels [b d] is hidden."""
        x = self.project_dropout(self.project(features))
        if hidden_frames is not None:
            if self.hidden is None:
                raise QkvError("This model has no vector for hidden frames: give it a share of frames to hide.")
            x = torch.where(hidden_frames[..., None], self.hidden, x)
        if hidden_channels is not None:
            x = x.masked_fill(hidden_channels[:, None], 0.0)
        if ctx.tokens.documents is not None:
            x = x * (ctx.tokens.documents > 0)[..., None]  # what stands in padding must not reach its neighbours
        x = x + self.position(x)
        return self.dropout(x if self.norm is None else self.norm(x, ctx))
