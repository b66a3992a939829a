"""Products in 8 bits: what they compute, which maps they are taken for, and that a model learns with them."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from qkv.data.packing import LanguageBatch
from qkv.errors import QkvError
from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from qkv.parts.linear import JoinedLinear
from qkv.parts.recording import captured
from qkv.train.float8.maps import _Joined, _Linear, float8_joined, float8_linear
from qkv.train.float8.products import check_float8, float8_products
from qkv.train.loop import train
from qkv.train.objectives.language import LanguageLoss
from qkv.train.optimizers import adam
from qkv.train.schedules import Constant
from qkv.train.settings import TrainSettings
from tests.train.test_loop import records
from tests.train.tiny import TinyBatches, open_run, quiet


def near(x: Tensor) -> Tensor:
    """What 8 bits make of x: 4 bits of mantissa with the hidden one, of what is not far below the row's largest."""
    scale = 2.0 ** (x.detach().abs().amax(-1, keepdim=True) / 448).log2().ceil()
    return (x.detach() / scale).to(torch.float8_e4m3fn).float() * scale


def inputs(*, m: int = 32, k: int = 48, n: int = 64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((2, m // 2, k), (n, k), (n,)))
    return x, weight, bias, torch.randn(2, m // 2, n)


def test_products_are_those_of_rounded_numbers() -> None:
    x, weight, bias, above = inputs()
    found = float8_linear(x, weight, bias)
    near_x, near_weight, near_above = near(x), near(weight), near(above)
    torch.testing.assert_close(found, F.linear(near_x, near_weight, bias), rtol=1e-4, atol=1e-4)
    to_x, to_weight, to_bias = torch.autograd.grad(found, (x, weight, bias), above)
    torch.testing.assert_close(to_x, near_above @ near_weight, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(to_weight, near_above.flatten(0, 1).T @ near_x.flatten(0, 1), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(to_bias, near_above.sum((0, 1)))
    assert (near_above - above).abs().max() > 0.01  # it is coarse
    torch.testing.assert_close(near_above, above, rtol=2**-4, atol=1e-3)


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


def test_rows_of_very_different_sizes() -> None:
    """A large row does not make a small one coarser, on the way to x; sums over rows are those of the large ones."""
    x, weight, _, above = inputs()
    sizes = 2.0 ** torch.linspace(-30, 10, 32).round()[:, None].view(2, 16, 1)
    to_x, to_weight = torch.autograd.grad(float8_linear(x, weight, None), (x, weight), above * sizes)
    torch.testing.assert_close(to_x / sizes, near(above) @ near(weight), rtol=1e-4, atol=1e-4)
    expected = (near(above) * sizes).flatten(0, 1).T @ near(x).flatten(0, 1)
    torch.testing.assert_close(to_weight, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))


class Made(TorchFunctionMode):
    """What each call gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[Any] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.tensors.append(function(*args, **(kwargs or {})))
        return self.tensors[-1]


def test_an_answer_has_one_name() -> None:
    """Of those that have two, because a call gave back what it got, torch 2.11's compiler loses the gradient."""
    x, weight, bias, _ = (each.detach() for each in inputs())
    for given, added in ((x, bias), (x, None), (x.bfloat16(), bias)):
        with Made() as made:
            y = _Linear.forward(SimpleNamespace(save_for_backward=lambda *_: None), given[0], weight, added)
        assert y.dtype is given.dtype
        assert sum(each is y for each in made.tensors) == 1
        with Made() as made:
            parts = _Joined.forward(
                SimpleNamespace(save_for_backward=lambda *_: None), given[0], weight, added, (16, 48)
            )
        assert [sum(each is y for each in made.tensors) for y in parts] == [1, 1]
        assert parts[0].untyped_storage().data_ptr() != parts[1].untyped_storage().data_ptr()


def test_parts_are_those_of_the_whole() -> None:
    x, weight, bias, above = inputs()
    for added in (bias, None):
        given = [each for each in (x, weight, added) if each is not None]
        whole, sizes = float8_linear(x, weight, added), (16, 16, 32)
        parts = float8_joined(x, weight, added, sizes)
        torch.testing.assert_close(torch.cat(parts, -1), whole)
        found = torch.autograd.grad(parts, given, above.split(sizes, -1))
        for mine, theirs in zip(found, torch.autograd.grad(whole, given, above), strict=True):
            torch.testing.assert_close(mine, theirs)


def two(x: Tensor, first: Tensor, bias: Tensor, second: Tensor) -> Tensor:
    one, two, three = float8_joined(x, first, bias, (16, 16, 32))
    joined = torch.cat([one.tanh(), two, three.exp()], -1)
    return float8_linear(joined + float8_linear(x, first, bias).tanh(), second, None)


@pytest.mark.slow
def test_a_compiler_makes_one_graph_of_several() -> None:
    """By its tracer and torch's operators; another length takes the same code."""
    code = torch.compile(two, backend="aot_eager", dynamic=True, fullgraph=True)
    second = torch.randn(48, 64, requires_grad=True)
    for length in (32, 64):
        x, first, bias, _ = inputs(m=length)
        given, above = (x, first, bias, second), torch.randn(2, length // 2, 48)
        with torch.compiler.set_stance("default" if length == 32 else "fail_on_recompile"):
            found = code(*given)
        expected = two(*given)
        torch.testing.assert_close(found, expected)
        slopes = zip(*(torch.autograd.grad(each, given, above) for each in (found, expected)), strict=True)
        for mine, theirs in slopes:
            torch.testing.assert_close(mine, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["plain", "compiled", "for all shapes"])
@pytest.mark.parametrize(("m", "k", "n"), [(64, 96, 128), (272, 48, 400), (512, 3072, 768)])
def test_a_gpu_multiplies_the_same_numbers(way: str, m: int, k: int, n: int) -> None:
    x, weight, bias, above = inputs(m=m, k=k, n=n)
    x, above = (each.detach().bfloat16().requires_grad_() for each in (x, above))
    expected = float8_linear(x.float(), weight, bias)  # float32 on the way
    there = [each.detach().cuda().requires_grad_() for each in (x, weight, bias)]
    function = float8_linear if way == "plain" else torch.compile(float8_linear, dynamic=way != "compiled")
    found = function(*there)
    assert found.dtype is torch.bfloat16
    found_slopes = torch.autograd.grad(found, there, above.detach().cuda())
    assert [each.dtype for each in found_slopes] == [torch.bfloat16, torch.float32, torch.float32]
    slopes = torch.autograd.grad(expected, (x, weight, bias), above.detach().float())
    for mine, theirs in zip((found, *found_slopes), (expected, *slopes), strict=True):
        # Sums of the way forward have some 13 bits, and answers of bfloat16 have 8.
        far = (mine.cpu().float() - theirs.float()).norm() / theirs.float().norm()
        assert far < 0.005, far


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["plain", "compiled", "for all shapes"])
@pytest.mark.parametrize("sizes", [(32, 32), (48, 16, 64)])
def test_a_gpu_has_the_same_parts(way: str, sizes: tuple[int, ...]) -> None:
    """Their gradients come in the order of heads, as attention gives them."""
    x, weight, bias, above = inputs(m=272, k=96, n=sum(sizes))
    x, above = (each.detach().bfloat16().requires_grad_() for each in (x, above))
    expected = float8_joined(x.float(), weight, bias, sizes)
    slopes = torch.autograd.grad(expected, (x, weight, bias), above.detach().float().split(sizes, -1))
    there = [each.detach().cuda().requires_grad_() for each in (x, weight, bias)]
    function = float8_joined if way == "plain" else torch.compile(float8_joined, dynamic=way != "compiled")
    found = function(*there, sizes)
    by_heads = [each.detach().cuda().transpose(0, 1).contiguous().transpose(0, 1) for each in above.split(sizes, -1)]
    found_slopes = torch.autograd.grad(found, there, by_heads)
    assert [each.dtype for each in found_slopes] == [torch.bfloat16, torch.float32, torch.float32]
    for mine, theirs in zip((*found, *found_slopes), (*expected, *slopes), strict=True):
        far = (mine.cpu().float() - theirs.float()).norm() / theirs.float().norm()
        assert far < 0.005, far


@pytest.mark.gpu
def test_views_and_recorded_graphs_on_a_gpu() -> None:
    """Columns of a wider matrix, a gradient that is one number for all, and the same again by a record."""
    wide = torch.randn(64, 192, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(48, 96, device="cuda", requires_grad=True)

    def step() -> tuple[Tensor, Tensor]:
        x = wide[:, 96:].detach().requires_grad_()
        y = float8_linear(x, weight, None)
        # What is given back keeps nothing alive that belongs to the stream of this pass: a record has another.
        return y.detach(), *torch.autograd.grad(y.sum(), (x, weight))

    expected = step()
    found = captured(step, torch.device("cuda"))()
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)
    near_x, near_weight = near(wide[:, 96:].float()), near(weight)
    far = (expected[2] - near_x.sum(0)).norm() / near_x.sum(0).norm() / 48**0.5
    assert far < 0.005, far
    torch.testing.assert_close(expected[0].float(), near_x @ near_weight.T, rtol=0.02, atol=0.1)


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
        assert vars(model.head)["in_eight_bits"]  # which the loss reads
        few = model(ids[:1, :9])  # 9 rows: no multiple of 16
        assert model(ids[:0]).shape == (0, 16, 23)
    assert not torch.equal(inside, before)
    assert (inside - before).norm() < 0.2 * before.norm()
    assert torch.equal(model(ids), before)
    assert torch.equal(few, model(ids[:1, :9]))
    left = {"forward", "together", "in_eight_bits"}
    assert not any(left & vars(module).keys() for module in model.modules())
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
