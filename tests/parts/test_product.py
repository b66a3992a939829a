"""Products and what comes behind them by the program of `product.cu`, against torch in double precision.

pytest -m gpu tests/parts, on a Hopper GPU.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.parts import product
from qkv.parts.feedforward import ACTIVATIONS, programmed_name

NAMES = ["gelu", "gelu_tanh", "relu", "silu", "gelu_quick"]
SHAPES = [(300, 72, 136), (1, 8, 8), (128, 64, 192), (5000, 200, 776)]  # the last: more tiles than blocks
TILINGS = [product.WIDE, product.TALL, product.READING]


@pytest.fixture
def hopper() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a GPU with warpgroups")


def numbers(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    given = torch.Generator().manual_seed(len(shape) + shape[-1])
    return (torch.randn(shape, generator=given) * scale).to("cuda", dtype)


def assert_rounded(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """The nearest of its type, or the one beside it."""
    assert found.dtype == dtype
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected.detach(), atol=max(step / 8, 5e-5), rtol=step)


def test_names_and_rooms_are_those_of_the_program() -> None:
    told = product.FILE.read_text()
    for name, number in product.ACTIVATIONS.items():
        assert f"#define {name.upper() or 'NONE'} {number}\n" in told
    assert {programmed_name(each) for each in ACTIVATIONS.values()} - {None} == set(product.ACTIVATIONS) - {""}
    for tiling in TILINGS:
        assert tiling.shared <= 227 * 1024  # what a block may have
    assert {product.storing(n) for _, _, n in SHAPES} == {product.WIDE, product.TALL}
    assert [product.storing(n) for n in (768, 1024, 2304, 3072)] == [product.WIDE, product.TALL, *2 * [product.WIDE]]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_it_is_the_activation_of_the_map(hopper: None, m: int, k: int, n: int, name: str, dtype: torch.dtype) -> None:
    x, weight = numbers(m, k, dtype=dtype), numbers(n, k, dtype=dtype, scale=k**-0.5)
    for bias in (numbers(n, dtype=dtype), numbers(n), None):
        z = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
        assert_rounded(product.activated_map(x, weight, bias, name), ACTIVATIONS[name](z), dtype)
        kept, y = product.both(x, weight, bias, name)
        assert_rounded(kept, z, dtype)
        assert_rounded(y, ACTIVATIONS[name](z), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_the_way_back_is_multiplied_by_the_slope(
    hopper: None, m: int, k: int, n: int, name: str, dtype: torch.dtype
) -> None:
    above, outer = numbers(m, k, dtype=dtype), numbers(k, n, dtype=dtype, scale=k**-0.5)
    z = numbers(m, n, dtype=dtype, scale=2.0)
    dz, sums = product.map_times_slope(above, outer, z, name)
    wide = z.double().requires_grad_()
    (exactly,) = torch.autograd.grad(ACTIVATIONS[name](wide), wide, above.double() @ outer.double())
    assert_rounded(dz, exactly, dtype)
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums.double(), exactly.sum(0), atol=2e-3, rtol=2e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_it_is_added_where_it_lies(hopper: None, m: int, k: int, n: int, dtype: torch.dtype) -> None:
    x, weight, bias = numbers(m, k, dtype=dtype), numbers(n, k, dtype=dtype, scale=k**-0.5), numbers(n, dtype=dtype)
    assert_rounded(
        product.activated_map(x, weight, bias, ""), F.linear(x.double(), weight.double(), bias.double()), dtype
    )
    whole = numbers(m, n + 24, dtype=dtype, scale=8.0)  # of which the stream is a part
    before, stream = whole.clone(), whole[:, 8 : 8 + n]
    expected = F.linear(x.double(), weight.double()) + stream.double()
    product.add_map(x, weight, stream)
    assert_rounded(stream, expected, dtype)
    whole[:, 8 : 8 + n] = before[:, 8 : 8 + n]
    assert torch.equal(whole, before)


@pytest.mark.gpu
def test_programs_that_begin_early_find_what_those_before_have_written(hopper: None) -> None:
    """A ring of products, each of which reads what the one before has written, and adds to what one earlier has."""
    x, weights = numbers(3000, 768, dtype=torch.bfloat16), numbers(3, 768, 768, dtype=torch.bfloat16, scale=0.03)

    def around(wait: bool) -> Tensor:
        stream = x.clone()
        for turn in range(60):
            read = product.activated_map(stream, weights[turn % 3], None, "gelu")
            if wait:
                torch.cuda.synchronize()
            product.add_map(read, weights[(turn + 1) % 3], stream)
            if wait:
                torch.cuda.synchronize()
            if turn % 7 == 0:
                stream *= 0.5  # by a program that does not begin early
        return stream

    assert torch.equal(around(wait=False), around(wait=True))


@pytest.mark.gpu
def test_rows_with_gaps(hopper: None) -> None:
    x, weight = numbers(520, 160, dtype=torch.bfloat16)[:, 16:80], numbers(200, 64, dtype=torch.bfloat16, scale=0.125)
    expected = F.gelu(x.double() @ weight.double().T)
    assert_rounded(product.activated_map(x, weight, None, "gelu"), expected, torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_number_stays_none_and_huge_numbers_stay_themselves(hopper: None, name: str) -> None:
    x, weight = torch.zeros(5, 8, device="cuda"), torch.zeros(8, 8, device="cuda")
    x[:, 0] = torch.tensor([float("nan"), float("inf"), 3e38, -3e38, 0.0])
    weight[0, 0] = 1.0
    found = product.activated_map(x.bfloat16(), weight.bfloat16(), None, name)[:, 0].tolist()
    assert found[0] != found[0]
    assert found[1] == float("inf")
    assert found[2:] == pytest.approx([3e38, 0.0, 0.0], rel=4e-3, abs=1e-6)
