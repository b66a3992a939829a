"""Products in 8 bits: what they compute, which maps they are taken for, and that a model learns with them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.packing import LanguageBatch
from qkv.errors import QkvError
from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from qkv.parts.linear import JoinedLinear
from qkv.train.float8 import FINE, WIDE, check_float8, float8_linear, float8_products
from qkv.train.loop import train
from qkv.train.objectives.language import LanguageLoss
from qkv.train.optimizers import adam
from qkv.train.schedules import Constant
from qkv.train.settings import TrainSettings
from tests.train.test_loop import records
from tests.train.tiny import TinyBatches, open_run, quiet


def rounded(x: Tensor, kind: torch.dtype) -> Tensor:
    scale = x.abs().max() / torch.finfo(kind).max
    return (x / scale).to(kind).to(x.dtype) * scale


def inputs(*, m: int = 32, k: int = 48, n: int = 64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((2, m // 2, k), (n, k), (n,)))
    return x, weight, bias, torch.randn(2, m // 2, n)


def test_products_are_those_of_rounded_numbers() -> None:
    x, weight, bias, above = inputs()
    found = float8_linear(x, weight, bias)
    near_x, near_weight, near_above = rounded(x, FINE), rounded(weight, FINE), rounded(above, WIDE)
    torch.testing.assert_close(found, F.linear(near_x, near_weight, bias), rtol=1e-4, atol=1e-4)
    to_x, to_weight, to_bias = torch.autograd.grad(found, (x, weight, bias), above)
    torch.testing.assert_close(to_x, near_above @ near_weight, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(to_weight, near_above.flatten(0, 1).T @ near_x.flatten(0, 1), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(to_bias, above.sum((0, 1)))


def test_size_does_not_matter() -> None:
    """A scale that is a power of two rounds nothing: answers are larger or smaller by it, and no number is lost."""
    x, weight, _, above = inputs()
    usual = float8_linear(x, weight, None)
    to_x, to_weight = torch.autograd.grad(usual, (x, weight), above)
    tiny, huge = 2.0**-20, 2.0**20
    other = float8_linear(x * huge, weight * tiny, None)
    torch.testing.assert_close(other, usual, rtol=1e-5, atol=0)
    found = torch.autograd.grad(other, (x, weight), above * tiny)
    torch.testing.assert_close(found[0] / tiny, to_x, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(found[1] / tiny, to_weight, rtol=1e-5, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_multiplies_the_same_numbers(compiled: bool) -> None:
    x, weight, bias, above = inputs(m=64, k=96, n=128)
    x, weight, bias, above = (each.detach().bfloat16().requires_grad_() for each in (x, weight, bias, above))
    expected = float8_linear(x, weight, bias)
    there = [each.detach().cuda().requires_grad_() for each in (x, weight, bias)]
    found = (torch.compile(float8_linear) if compiled else float8_linear)(*there)
    torch.testing.assert_close(found.cpu(), expected, rtol=0.02, atol=0.1)
    for mine, theirs in zip(
        torch.autograd.grad(found, there, above.cuda()),
        torch.autograd.grad(expected, (x, weight, bias), above),
        strict=True,
    ):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=0.02, atol=0.2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_not_hidden(bad: float) -> None:
    x, weight, _, _ = inputs()
    with torch.no_grad():
        x[0, 0, 0] = bad
        assert not float8_linear(x, weight, None).isfinite().all()


def test_all_zeros_stay_zeros() -> None:
    x, weight, _, _ = inputs()
    assert torch.equal(float8_linear(x * 0, weight, None), torch.zeros(2, 16, 64))


def model_of(width: int) -> TextModel:
    torch.manual_seed(0)
    sizes = GPT2Sizes(vocabulary=23, positions=16, width=width, hidden=2 * width, heads=2, layers=2, dropout=0.0)
    model = build("gpt2", sizes, HeadChoice("language"))
    assert isinstance(model, TextModel)
    return model


def test_maps_of_blocks_are_taken_and_given_back() -> None:
    model = model_of(32).eval()
    ids = torch.randint(0, 23, (2, 16))
    before = model(ids)
    names = list(model.state_dict())
    with float8_products(model), torch.no_grad():
        inside = model(ids)
        assert list(model.state_dict()) == names
        few = model(ids[:1, :9])  # 9 rows: no multiple of 16
    assert not torch.equal(inside, before)
    assert (inside - before).norm() < 0.2 * before.norm()
    assert torch.equal(model(ids), before)
    assert torch.equal(few, model(ids[:1, :9]))
    assert not any("forward" in vars(module) or "together" in vars(module) for module in model.modules())
    assert any(isinstance(module, JoinedLinear) for module in model.modules())


def test_a_model_without_such_maps_is_refused() -> None:
    with pytest.raises(QkvError, match="multiples of 16"), float8_products(model_of(20)):
        pass


def test_several_ranks_are_refused() -> None:
    with pytest.raises(QkvError, match="one process"):
        check_float8(torch.device("cpu"), 2)


def learned(precision: str, folder: Path) -> list[float]:
    """Losses of a model that learns one batch by heart."""
    ids = torch.randint(0, 23, (4, 17), generator=torch.Generator().manual_seed(0))
    batch = LanguageBatch(ids, torch.ones_like(ids), packed=False, predicted=64, bytes=64)
    model = model_of(32)
    settings = TrainSettings(steps=30, log_every=1, device="cpu", precision=precision)  # type: ignore[arg-type]
    train(
        model, LanguageLoss(), Same(batch), settings, open_run(folder), optimizer=adam(model, learning_rate=1e-2),
        schedule=Constant(), reporter=quiet(),
    )  # fmt: skip
    return [record["loss"] for record in records(folder) if record["kind"] == "train"]


class Same(TinyBatches):
    """One batch for ever."""

    def __init__(self, batch: LanguageBatch) -> None:
        super().__init__(1000)
        self.batch = batch

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.batch


def test_a_model_learns_as_well_as_without(tmp_path: Path) -> None:
    narrow, wide = learned("float8", tmp_path / "narrow"), learned("bfloat16", tmp_path / "wide")
    assert narrow != wide
    assert narrow[0] == pytest.approx(wide[0], rel=0.02)
    assert wide[-1] < 0.3 * wide[0]
    assert narrow[-1] < 0.35 * narrow[0]
