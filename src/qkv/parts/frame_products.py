"""Convolutions over frames as matrix products: what a GPU is fastest at, with channels last as a stack wants them.

On a CPU the vendor's convolutions are as fast and want channels first, so there they are taken, and in single
precision anywhere.

Shapes: b rows, n frames, c channels, o output channels, k kernel, g groups, s stride.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.parts.precision import narrowed

FEW = 64  # numbers under a kernel, up to which windows are copied out of the row
ALIGNED = 8  # tensor cores read rows of so many numbers
SIDE_BY_SIDE = 16  # frames that one product with a banded matrix answers


def strided_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """[b n c], weight [o c k] → [b n′ o]"""
    if _suits_products(x):
        return strided_products(narrowed(x), weight, bias, stride)
    return F.conv1d(x.transpose(1, 2), weight, bias, stride).transpose(1, 2)


def strided_products(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """The same by products of the row itself: as many places of the kernel at a time as the stride passes over, so that
    windows do not overlap and are views of it."""
    rows, frames, channels = x.shape
    outputs, _, kernel = weight.shape
    if channels * kernel <= FEW:
        windows, matrix = _windows(x, kernel, stride), weight.transpose(1, 2).flatten(1)  # [b n′ k·c] [o k·c]
        short = -windows.shape[2] % ALIGNED
        return F.linear(F.pad(windows, (0, short)), F.pad(matrix, (0, short)), bias)
    count = (frames - kernel) // stride + 1
    y: Tensor | None = None
    for first in range(0, kernel, stride):
        last = min(first + stride, kernel)
        windows = _windows(x[:, first:], last - first, stride)[:, :count]
        matrix = weight[:, :, first:last].permute(2, 1, 0).reshape(1, -1, outputs).to(x.dtype)  # [1 k·c o]
        matrix = matrix.expand(rows, -1, -1)
        if y is not None:
            y.baddbmm_(windows, matrix)  # no gradient asks for the sum so far
        else:
            y = torch.bmm(windows, matrix) if bias is None else torch.baddbmm(bias.to(x.dtype), windows, matrix)
    assert y is not None
    return y


def _suits_products(x: Tensor) -> bool:
    """On a GPU, in half precision. In single precision its convolutions round more than products, and are faster."""
    if not x.is_cuda:
        return False
    kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    return kind in (torch.bfloat16, torch.float16)


def _windows(x: Tensor, size: int, stride: int) -> Tensor:
    """[b n c] → [b n′ size·c], a view where windows do not overlap."""
    return x.unfold(1, size, stride).transpose(2, 3).flatten(2)


def grouped_convolution(x: Tensor, weight: Tensor, bias: Tensor, groups: int) -> Tensor:
    """As many frames as come, each seeing k/2 before it and the rest behind. [b n c], weight [c c/g k] → [b n c]"""
    if _suits_products(x):
        return grouped_products(narrowed(x), weight, bias, groups)
    around = weight.shape[2] // 2
    y = F.conv1d(x.transpose(1, 2), weight, bias, padding=around, groups=groups)
    return y[..., : x.shape[1]].transpose(1, 2)  # an even kernel gives one too many


def grouped_products(x: Tensor, weight: Tensor, bias: Tensor, groups: int, together: int = SIDE_BY_SIDE) -> Tensor:
    """The same by one product a group. A long kernel over few channels is a thin product for each frame; frames side by
    side see nearly the same, so some are answered `together` by a matrix that holds the kernel once for each of them,
    one place further down each time."""
    rows, frames, _ = x.shape
    each, kernel = weight.shape[1:]
    reach, parts = kernel + together - 1, -(-frames // together)
    by_place = weight.view(groups, each, each, kernel).permute(0, 3, 2, 1)  # [g k in out]
    banded = weight.new_zeros(groups, reach, each, together, each)
    for place in range(together):
        banded[:, place : place + kernel, :, place] = by_place
    before = kernel // 2
    padded = F.pad(x, (0, 0, before, parts * together + kernel - 1 - before - frames))
    seen = padded.unfold(1, reach, together).unflatten(2, (groups, each)).permute(2, 0, 1, 4, 3)  # [g b parts reach in]
    y = seen.reshape(groups, rows * parts, -1) @ banded.view(groups, reach * each, -1)  # [g b·parts together·out]
    y = y.view(groups, rows, parts * together, each).permute(1, 2, 0, 3).flatten(2)[:, :frames]
    return y + bias.to(y.dtype)
