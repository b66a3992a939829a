"""Numbers kept in 8 bits: blocks, each with a scale of its own, whose small numbers are kept as well as large ones."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 2048  # numbers that share a scale [dettmers2022 §2.1]
DECADES = 7  # 10⁰ to 10⁻⁶


def code_values(signed: bool) -> list[float]:
    """What the 256 codes stand for, from the lowest up. [dettmers2022 §1.3]

    The place of the first bit that is set tells the power of ten, the bits after it a linear fraction from 0.1 to 1: 64
    fractions in the highest decade, one in the lowest. What has no sign has a bit more for its fraction. A code stands
    for the middle of its share of a decade; 0 and 1 are themselves. [dettmers2022 §2.2]
    """
    values = [0.0, 1.0]
    for decade in range(DECADES):
        fractions = 2 ** (DECADES - 1 - decade) * (1 if signed else 2)
        middles = [10.0**-decade * (0.1 + 0.9 * (number + 0.5) / fractions) for number in range(fractions)]
        values += [*middles, *(-value for value in middles)] if signed else middles
    return sorted(values)


class Codebook:
    """Numbers to codes and back, for numbers with or without a sign."""

    def __init__(self, signed: bool) -> None:
        self.signed = signed
        self._known: tuple[Tensor, Tensor] | None = None

    def encode(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """The code nearest to each number, and the largest number of each block. [n 2048] → [n 2048], [n]"""
        scales = blocks.abs().amax(1)
        relative = blocks / torch.where(scales > 0, scales, 1.0)[:, None]
        _, between = self._on(blocks)
        return torch.bucketize(relative, between, out_int32=True).to(torch.uint8), scales  # [dettmers2022 §1.2]

    def decode(self, indices: Tensor, scales: Tensor) -> Tensor:
        """[n 2048], [n] → [n 2048] [dettmers2022 §1.2]"""
        values, _ = self._on(scales)
        return values[indices.int()] * scales[:, None]

    def _on(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Values and the borders between them, beside the numbers that they are for."""
        if self._known is None or (self._known[0].device, self._known[0].dtype) != (like.device, like.dtype):
            values = torch.tensor(code_values(self.signed), dtype=like.dtype, device=like.device)
            self._known = values, (values[1:] + values[:-1]) / 2
        return self._known


def in_blocks(tensor: Tensor) -> Tensor:
    """All numbers in order, with zeros behind them to fill the last block. [n 2048]"""
    flat = tensor.flatten()
    missing = -flat.numel() % BLOCK
    return (torch.nn.functional.pad(flat, (0, missing)) if missing else flat).view(-1, BLOCK)
