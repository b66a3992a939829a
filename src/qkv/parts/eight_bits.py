"""Linear maps in 8 bits, for answers on a CPU: a quarter of the bytes to read, and products of whole numbers.

A weight is a whole number from -127 to 127 times a scale of its row; what it is multiplied with is rounded to whole
numbers when it comes, with a scale and a zero of each token's own, so that a token is the same in any company.

Shapes: r rows of the input (all but the last dimension), i its width, o outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts import cpu_steps
from qkv.parts.context import Context
from qkv.parts.cpu_maps import PackedJoined, PackedModule
from qkv.parts.heads import LogitHead, TiedHead
from qkv.parts.linear import JoinedLinear
from qkv.parts.programs import is_itself
from qkv.parts.spec import Depends

SMALL = 2**14  # a matrix of fewer numbers stays as it is: it takes no time, and often it decides between few classes
LEVELS = 127  # of a weight, on either side of 0
ENGINE = "fbgemm"  # torch's kernels for whole numbers on x86 processors
# Without these instructions pairs of products are added up in 16 bits, which hold a bit less of the input.
STEPS = 255 if torch.cpu._is_vnni_supported() else 127  # from the least number of a row to its greatest
FINEST = 6.1e-5  # a step is no finer than this in the kernel: inputs that are smaller all over hardly count
TINY = torch.finfo(torch.float32).tiny

Model = TypeVar("Model", bound=nn.Module)

# The matrix and its scales, in the order in which a program reads them.
PACKED = ("map", "sums_and_bias", "_packed", "_round_and_multiply", "_multiply")


class Int8Linear(PackedModule):
    """(scale · x) Wᵀ + b, with W in 8 bits and x rounded to 8 bits row by row."""

    depends_on = Depends(scale=1.0, unread=(*PACKED, "outputs", "width"))

    sums_and_bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None, scale: float = 1.0) -> None:
        super().__init__()
        self.outputs, self.width = weight.shape
        self.scale = scale
        weight = weight.detach().float()
        scales = (weight.abs().amax(1) / LEVELS).clamp(min=TINY)  # [o]
        added = weight.new_zeros(self.outputs) if bias is None else bias.detach().float()
        if cpu_steps.fits(weight, torch.int8):
            whole = (weight / scales[:, None]).round().to(torch.int8)
            self.map = cpu_steps.PackedMap(whole, added, scales, whole.sum(1, dtype=torch.int32))
            return
        with _engine():
            narrow = torch.quantize_per_channel(weight, scales, torch.zeros_like(scales).long(), 0, torch.qint8)
            self._packed = torch.ops.quantized.linear_prepack(narrow, added)
        # The operations themselves: torch.ops would ask of each argument at every call whether it is a stand-in.
        self._round_and_multiply = torch.ops.quantized.linear_dynamic.default._op
        self._multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default._op
        self.register_buffer("sums_and_bias", torch.stack((narrow.dequantize().sum(1), added)), persistent=False)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        """[… i] → [… o]"""
        if self.map is not None:
            known = x if x.dtype in cpu_steps.KINDS else x.float()
            return cpu_steps.map_rows(self.map, known, self.scale).to(x.dtype)
        if self.scale != 1.0:
            x = x * self.scale
        if x.numel() == self.width and x.dtype == torch.float32 and x.ndim > 1:
            y: Tensor = self._round_and_multiply(x, self._packed, STEPS < 255)
            return y
        many = self._of_many(x.reshape(-1, self.width).float())  # [r o]
        return many.view(*x.shape[:-1], self.outputs).to(x.dtype)

    def _of_many(self, x: Tensor) -> Tensor:
        """What the kernel does to a single row, done to each: it has one step and one zero for all rows. [r i] → [r o]

        Of row r it gets q = x/step + zero and gives q Wᵀ + b; asked for is step · (q - zero) Wᵀ + b.
        """
        low, high = x.amin(1, keepdim=True).clamp(max=0.0), x.amax(1, keepdim=True).clamp(min=0.0)  # [r 1]
        step = (high - low) / STEPS
        zero = (-low / step.clamp(min=TINY)).round()
        step = step.clamp(min=FINEST)
        y: Tensor = self._multiply(x / step + zero, 1.0, 0, self._packed)
        return torch.addmm(y.mul_(step), torch.cat((-step * zero, 1 - step), 1), self.sums_and_bias)

    def dequantised(self) -> Tensor:
        """The weights as they are computed with. [o i]"""
        if self.map is not None:
            return self.map.dequantised()
        weight: Tensor = torch.ops.quantized.linear_unpack(self._packed)[0].dequantize()
        return weight

    def train(self, mode: bool = True) -> Self:
        if mode:
            raise QkvError("A model in 8 bits only answers: train it in single precision, then load it in 8 bits.")
        return super().train(mode)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        raise QkvError("A model in 8 bits is not saved: keep the folder that it was loaded from.")

    def __deepcopy__(self, _: dict[int, Any]) -> Int8Linear:
        return self  # nothing changes it

    def extra_repr(self) -> str:
        return f"{self.width} → {self.outputs}, 8 bits"


class Int8JoinedLinear(PackedJoined):
    """The same for several maps of one input."""

    depends_on = Depends("together", "sizes")

    def __init__(self, joined: JoinedLinear) -> None:
        super().__init__()
        self.together = Int8Linear(joined.matrix(), joined.whole_bias())
        self.sizes = list(joined.outputs.values())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.together(x).split(self.sizes, -1)

    def with_last_of(self, x: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        """All maps of x but the last, which is of another input."""
        return (*self(x)[:-1], self(other)[-1])


def quantised(model: Model) -> Model:
    """The model itself, in evaluation mode, with its large linear maps and its logits in 8 bits.

    All else is in single precision: embeddings, norms, attention, and experts; where one call of our own program does
    all of an attention (`short_cpu.attention_step`), queries, keys, values and weights are in bfloat16.
    """
    if any(tensor.device.type != "cpu" for tensor in model.parameters()):
        raise QkvError('Answers in 8 bits are for the CPU: load the model with device="cpu", or in bfloat16.')
    if ENGINE not in torch.backends.quantized.supported_engines:
        raise QkvError("Answers in 8 bits need a processor of the x86 kind: load the model in bfloat16 or float32.")
    if not all(bool(tensor.isfinite().all()) for tensor in model.parameters()):
        raise QkvError("The model has weights that are no numbers, which 8 bits cannot show: it is damaged.")
    model = model.float().eval()
    for name, module in list(model.named_modules()):
        if (narrow := _narrow(module)) is not None:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, narrow)
    return model.requires_grad_(False).eval()


def _narrow(module: nn.Module) -> nn.Module | None:
    """What takes the place of a module, where anything does; a descendant of these may compute something else, and one
    that someone watches or changed is left as it is."""
    if not is_itself(module):
        return None
    if type(module) is JoinedLinear and module.weight.numel() >= SMALL:
        return Int8JoinedLinear(module)
    if isinstance(module, TiedHead | LogitHead) and module.weight.numel() >= SMALL:
        return Int8Linear(module.weight, module.bias, module.scale)
    if type(module) is nn.Linear and module.weight.numel() >= SMALL:
        return Int8Linear(module.weight, module.bias)
    return None


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
