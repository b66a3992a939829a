"""Positive random features by programs, against torch ops in float64 on the same GPU.

pytest -m gpu tests/parts
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.parts.attention.kernels.random_features import PositiveFeatures, RandomFeatureKernel, Sums
from qkv.parts.attention.visibility import Causal, Everything, Mask, NotPadding, Tokens

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
ROWS, HEADS = 3, 4
SCALE = 1 / 16  # its root rounds nothing: what is compared has the same directions in every precision
PART = {torch.float32: 5e-5, torch.bfloat16: 0.03}  # of the largest number


@dataclass(frozen=True)
class Case:
    numbers: torch.dtype
    size: int
    width: int = 64
    value_width: int = 64
    features: int = 256
    causal: bool = True
    padded: str | None = None  # "left" or "right"
    shared: int = HEADS  # heads of keys and values

    def mask(self) -> Mask:
        rule = Causal() if self.causal else Everything()
        if self.padded is None:
            return Mask(rule, Tokens(self.size), Tokens(self.size), DEVICE)
        lengths, slot = torch.tensor([[self.size], [self.size // 2 + 1], [1]]), torch.arange(self.size)
        real = slot < lengths if self.padded == "right" else slot >= self.size - lengths
        tokens = Tokens(self.size, documents=real.long().to(DEVICE))
        return Mask(rule & NotPadding(), tokens, tokens, DEVICE)

    def inputs(self) -> list[Tensor]:
        shapes = ((HEADS, self.width), (self.shared, self.width), (self.shared, self.value_width))
        made = [torch.randn(ROWS, self.size, heads, width).transpose(1, 2) for heads, width in shapes]
        return [x.to(DEVICE, self.numbers) for x in made]

    def kernels(self, monkeypatch: pytest.MonkeyPatch) -> tuple[RandomFeatureKernel, RandomFeatureKernel]:
        """By programs, and by torch in float64."""
        kernel = RandomFeatureKernel(PositiveFeatures(self.features, self.width)).to(DEVICE)
        kernel.features.directions.copy_(kernel.features.directions.bfloat16())
        wide = copy.deepcopy(kernel).double()
        monkeypatch.setattr(wide, "_programs", lambda *_: None)
        assert kernel._programs(self.inputs()[0], self.inputs()[2]) is not None
        return kernel, wide


HALF, SINGLE = torch.bfloat16, torch.float32
# Programs are compiled for types, widths, features, masks and steps between tokens, not for lengths: cases share them,
# for compiling is what takes the time here.
ODD: Any = {"width": 24, "value_width": 40, "features": 100}
CASES = [
    Case(HALF, 1, **ODD, padded="right"),
    Case(HALF, 9, **ODD, padded="right"),
    Case(HALF, 300, **ODD, padded="right"),
    Case(HALF, 300, **ODD, padded="left"),
    Case(HALF, 10, **ODD, causal=False, padded="right", shared=1),
    Case(HALF, 300, **ODD, causal=False, padded="left", shared=1),
    Case(HALF, 1024),
    Case(HALF, 1024, causal=False),
    Case(HALF, 1024, 128, 128, padded="left"),
    Case(SINGLE, 1, **ODD, padded="left"),
    Case(SINGLE, 300, **ODD, padded="left"),
    Case(SINGLE, 9, **ODD, causal=False, padded="right"),
    Case(SINGLE, 300, **ODD, causal=False, padded="left"),
]


def assert_near(found: list[Tensor], expected: list[Tensor], terms: list[float], part: float) -> None:
    for mine, theirs, least in zip(found, expected, terms, strict=True):
        most = part * (least + float(theirs.abs().max()))
        torch.testing.assert_close(mine.double(), theirs, atol=most, rtol=part)


def answers(kernel: RandomFeatureKernel, given: list[Tensor], mask: Mask, pull: Tensor) -> list[Tensor]:
    inputs = [x.detach().requires_grad_() for x in given]
    o = kernel(*inputs, mask, scale=SCALE)
    return [o.detach(), *torch.autograd.grad(o, inputs, pull.to(o.dtype))]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_programs_are_what_torch_computes(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, wide = case.kernels(monkeypatch)
    given, mask = case.inputs(), case.mask()
    pull = torch.randn(ROWS, HEADS, case.size, case.value_width).to(DEVICE, case.numbers)
    expected = answers(wide, [x.double() for x in given], mask, pull)
    # Gradients of queries and keys are differences of terms as large as this, of which little may be left.
    terms = float((expected[0] * pull).abs().sum(-1).max())
    assert_near(answers(kernel, given, mask, pull), expected, [1.0, terms, terms, 1.0], PART[case.numbers])


@pytest.mark.parametrize("numbers", [HALF, SINGLE])
def test_sums_are_handed_on_with_their_gradients(numbers: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(numbers, 300, **ODD)
    kernel, wide = case.kernels(monkeypatch)
    real = torch.ones(ROWS, 300, dtype=torch.bool, device=DEVICE)
    given, pull = case.inputs(), torch.randn(ROWS, HEADS, 300, 40).to(DEVICE, torch.float64)

    def in_parts(kernel: RandomFeatureKernel, given: list[Tensor], cuts: tuple[int, ...]) -> list[Tensor]:
        inputs = [x.detach().requires_grad_() for x in given]
        sums: Sums | None = None
        parts = []
        for first, last in zip((0, *cuts), (*cuts, 300), strict=True):
            some = (x[:, :, first:last] for x in inputs)
            o, sums = kernel.looking_back(*some, real[:, first:last], sums, scale=SCALE)
            parts.append(o)
        assert sums is not None
        o, kept = torch.cat(parts, 2), sums.of_values[..., :41] * sums.largest.exp()
        loss = (o.double() * pull).sum() + kept.double().square().mean()
        return [each.detach() for each in (o, kept, sums.seen, *torch.autograd.grad(loss, inputs))]

    expected = in_parts(wide, [x.double() for x in given], (299,))
    terms = float((expected[0] * pull).abs().sum(-1).max())
    least = [1.0, 0.0, 0.0, terms, terms + float(expected[4].abs().max()), 1.0]
    for cuts in ((), (150,), (128, 299)):
        assert_near(in_parts(kernel, given, cuts), expected, least, PART[numbers])


@pytest.mark.parametrize("causal", [True, False])
def test_large_exponents_overflow_nowhere(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(SINGLE, 300, **ODD, causal=causal, padded="left")
    kernel, wide = case.kernels(monkeypatch)
    given, mask, pull = case.inputs(), case.mask(), torch.randn(ROWS, HEADS, 300, 40).to(DEVICE)
    given[0] *= 8.0
    given[1][:, :, 290:] *= 8.0
    expected = answers(wide, [x.double() for x in given], mask, pull)
    terms = float((expected[0] * pull).abs().sum(-1).max()) * 8
    assert_near(answers(kernel, given, mask, pull), expected, [1.0, terms, terms, 1.0], 1e-4)


def test_gradients_are_the_same_bit_for_bit_and_little_waits_for_them() -> None:
    case = Case(HALF, 4096)
    kernel = RandomFeatureKernel(PositiveFeatures(256, 64)).to(DEVICE)
    given, mask, pull = case.inputs(), case.mask(), torch.randn(ROWS, HEADS, 4096, 64).to(DEVICE, HALF)
    first, second = (answers(kernel, given, mask, pull) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    inputs = [x.detach().requires_grad_() for x in given]
    before = torch.cuda.memory_allocated()
    o = kernel(*inputs, mask)
    assert torch.cuda.memory_allocated() - before - o.nbytes < sum(x.nbytes for x in given)
