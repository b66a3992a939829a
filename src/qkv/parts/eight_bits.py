"""Linear maps in 8 bits, for answers on a CPU: a quarter of the bytes to read, and products of whole numbers.

A weight is a whole number from -127 to 127 times a scale of its row; what it is multiplied with is rounded to whole
numbers when it comes, with a scale and a zero of each token's own, so that a token is the same in any company.

Shapes: r rows of the input (all but the last dimension), i its width, o outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts import cpu_steps
from qkv.parts.cpu_level import has_vnni
from qkv.parts.narrow_maps import NarrowLinear, by_pieces, with_narrow_maps

LEVELS = 127  # of a weight, on either side of 0
STEPS = 255  # from the least number of a row to its greatest
ENGINE = "fbgemm"  # torch's kernels for whole numbers on x86 processors
FINEST = 6.1e-5  # a step is no finer than this in the kernel: inputs that are smaller all over hardly count
TINY = torch.finfo(torch.float32).tiny

Model = TypeVar("Model", bound=nn.Module)


class Int8Linear(NarrowLinear):
    """With W in 8 bits and x rounded to 8 bits row by row."""

    depends_on = NarrowLinear.depends_on.also(
        unread=(
            "sums_and_bias",
            "_packed",
            "_by_torch",
            "_halves",
            "_whole",
            "_scales",
            "_round_and_multiply",
            "_multiply",
        )
    )
    kind, called = torch.int8, "8 bits"
    sums_and_bias: Tensor

    def hold(self, weight: Tensor, bias: Tensor) -> None:
        scales = (weight.abs().amax(1) / LEVELS).clamp(min=TINY)  # [o]
        whole = (weight / scales[:, None]).round().to(torch.int8)
        if cpu_steps.fits(whole, torch.int8):
            self.map = cpu_steps.PackedMap(whole, bias, scales, whole.sum(1, dtype=torch.int32))
            return
        self._by_torch = ENGINE in torch.backends.quantized.supported_engines
        if not self._by_torch:
            self._whole, self._scales, self._bias = whole, scales, bias
            return
        with _engine():
            narrow = torch.quantize_per_channel(weight, scales, torch.zeros_like(scales).long(), 0, torch.qint8)
            self._packed = torch.ops.quantized.linear_prepack(narrow, bias)
        # Without these instructions the kernel adds up pairs of products in 16 bits, which hold no more than half of an
        # input that has 8: it gets them in two halves.
        self._halves = not has_vnni()
        # The operations themselves: torch.ops would ask of each argument at every call whether it is a stand-in.
        self._round_and_multiply = torch.ops.quantized.linear_dynamic.default._op
        self._multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default._op
        self.register_buffer("sums_and_bias", torch.stack((narrow.dequantize().sum(1), bias)), persistent=False)

    def otherwise(self, x: Tensor) -> Tensor:
        if not self._by_torch:  # x need not be rounded
            return by_pieces(x, self._whole) * self._scales + self._bias
        if x.numel() == self.width and x.dtype == torch.float32 and x.ndim > 1 and not self._halves:
            y: Tensor = self._round_and_multiply(x, self._packed, False)
            return y
        many = self._of_many(x.reshape(-1, self.width).float())  # [r o]
        return many.view(*x.shape[:-1], self.outputs)

    def _of_many(self, x: Tensor) -> Tensor:
        """What the kernel does to a single row, done to each: it has one step and one zero for all rows. [r i] → [r o]

        Of row r it gets q = x/step + zero and gives q Wᵀ + b; asked for is step · (q - zero) Wᵀ + b.
        """
        low, high = x.amin(1, keepdim=True).clamp(max=0.0), x.amax(1, keepdim=True).clamp(min=0.0)  # [r 1]
        step = (high - low) / STEPS
        zero = (-low / step.clamp(min=TINY)).round()
        step = step.clamp(min=FINEST)
        q, times = x / step + zero, 1  # of the bias, which comes with each product
        if self._halves:
            q, times = q.round_().clamp_(0, STEPS), 2
            lower = (q / 2).floor_()
            of_both = self._multiply(torch.cat((lower, q - lower)), 1.0, 0, self._packed)
            y = of_both[: len(x)] + of_both[len(x) :]
        else:
            y = self._multiply(q, 1.0, 0, self._packed)
        return torch.addmm(y.mul_(step), torch.cat((-step * zero, 1 - times * step), 1), self.sums_and_bias)

    def way(self) -> str:
        if self.map is not None:
            return super().way()
        if not self._by_torch:
            return "widened piece by piece for torch's products"
        return f"by torch's FBGEMM{', each input in two halves' if self._halves else ''}"

    def dequantised(self) -> Tensor:
        if self.map is not None:
            return self.map.dequantised()
        if not self._by_torch:
            return self._whole * self._scales[:, None]
        weight: Tensor = torch.ops.quantized.linear_unpack(self._packed)[0].dequantize()
        return weight


def quantised(model: Model) -> Model:
    """The model itself, in evaluation mode, with its large linear maps and its logits in 8 bits."""
    if any(tensor.device.type != "cpu" for tensor in model.parameters()):
        raise QkvError('Answers in 8 bits are for the CPU: load the model with device="cpu", or in bfloat16.')
    if not all(bool(tensor.isfinite().all()) for tensor in model.parameters()):
        raise QkvError("The model has weights that are no numbers, which 8 bits cannot show: it is damaged.")
    return with_narrow_maps(model, Int8Linear)


@contextmanager
def _engine() -> Iterator[None]:
    """Inside, torch packs for this engine, and says nothing of other ways that are to come."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = ENGINE
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*quantize", category=UserWarning)
            yield
    finally:
        torch.backends.quantized.engine = before
