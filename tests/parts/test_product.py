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
ATTENDED = [(1, 1, 64), (3, 2, 72), (7, 16, 1024), (257, 12, 768)]  # rows, heads, inputs
NORMED = {256: (128, 2), 384: (192, 2), 512: (128, 4), 768: (192, 4)}  # columns of a block, blocks


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
    told = product.FILE.with_name("activations.cuh").read_text()
    for name, number in product.ACTIVATIONS.items():
        assert f"#define {name.upper() or 'NONE'} {number}\n" in told
    assert {programmed_name(each) for each in ACTIVATIONS.values()} - {None} == set(product.ACTIVATIONS) - {""}
    for tiling in (*TILINGS, product.ATTENDING):
        assert tiling.shared <= 227 * 1024  # what a block may have
    assert {product.storing(n) for _, _, n in SHAPES} == {product.WIDE, product.TALL}
    assert [product.storing(n) for n in (768, 1024, 2304, 3072)] == [product.WIDE, product.TALL, *2 * [product.WIDE]]


def test_whole_rows_lie_in_a_cluster_or_are_not_normed() -> None:
    for outputs, (columns, blocks) in NORMED.items():
        tiling = product.norming(outputs)
        assert tiling is not None
        assert (tiling.columns, tiling.cluster) == (columns, blocks)
        assert tiling.shared <= 227 * 1024
        assert tiling.rows // blocks % 8 == 0  # rows that are swizzled together
    assert [product.norming(outputs) for outputs in (8, 128, 192, 320, 576, 776, 896, 960, 1536, 4096)] == 10 * [None]


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


def normed(x: Tensor, norm: product.Norm) -> Tensor:
    gain, shift = norm.gain.double(), None if norm.shift is None else norm.shift.double()
    if norm.rms:
        return F.rms_norm(x, gain.shape, gain, norm.epsilon)
    return F.layer_norm(x, gain.shape, gain, shift, norm.epsilon)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", NORMED)
@pytest.mark.parametrize(("m", "k"), [(1, 64), (127, 200), (128, 768), (129, 3072), (5000, 8), (20000, 384)])
def test_the_sum_is_normed_where_it_lies(hopper: None, m: int, k: int, n: int, dtype: torch.dtype) -> None:
    x, weight = numbers(m, k, dtype=dtype), numbers(n, k, dtype=dtype, scale=k**-0.5)
    gain, shift, bias = 1.0 + 0.3 * numbers(n), numbers(n), numbers(n, scale=2.0)
    narrow = gain.to(dtype), shift.to(dtype), bias.to(dtype)
    whole = numbers(m, n + 24, dtype=dtype, scale=8.0) + 4.0  # of which the stream is a part, and whose mean is not 0
    for norm, own_bias in [
        (product.Norm(narrow[0], narrow[1], 1e-12, False), narrow[2]),
        (product.Norm(gain, shift, 1e-5, False), bias),
        (product.Norm(narrow[0], None, 1e-5, False), None),
        (product.Norm(gain, None, 1e-6, True), narrow[2]),
    ]:
        given = whole.clone()
        stream = given[:, 8 : 8 + n]
        total = F.linear(x.double(), weight.double(), None if own_bias is None else own_bias.double()) + stream.double()
        product.add_normed_map(x, weight, own_bias, stream, norm)
        assert_rounded(stream, normed(total, norm), dtype)
        again = whole.clone()
        product.add_normed_map(x, weight, own_bias, again[:, 8 : 8 + n], norm)
        assert torch.equal(given, again)
        given[:, 8 : 8 + n] = whole[:, 8 : 8 + n]
        assert torch.equal(given, whole)


@pytest.mark.gpu
def test_rows_that_are_all_alike_or_no_numbers_are_normed_as_by_torch(hopper: None) -> None:
    x, weight = torch.zeros(3, 64, device="cuda").bfloat16(), torch.zeros(768, 64, device="cuda").bfloat16()
    norm = product.Norm(torch.ones(768, device="cuda"), numbers(768), 1e-12, False)
    stream = torch.full((3, 768), 5.0, device="cuda").bfloat16()
    stream[1, 300] = float("nan")
    product.add_normed_map(x, weight, None, stream, norm)
    assert torch.equal(stream[[0, 2]], numbers(768, dtype=torch.bfloat16).expand(2, -1))
    assert stream[1].isnan().all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "heads", "k"), ATTENDED)
def test_queries_read_where_they_are_made(hopper: None, rows: int, heads: int, k: int, dtype: torch.dtype) -> None:
    n = 3 * heads * product.HEAD
    x, weight = numbers(rows * product.SLOTS, k, dtype=dtype), numbers(n, k, dtype=dtype, scale=k**-0.5)
    for bias in (numbers(n, dtype=dtype), numbers(n), None):
        joined = F.linear(x.double(), weight.double(), None if bias is None else bias.double()).to(dtype).double()
        parts = joined.view(rows, product.SLOTS, 3, heads, product.HEAD).permute(2, 0, 3, 1, 4)  # [3 b h s d]
        read = torch.softmax(0.3 * parts[0] @ parts[1].mT, -1) @ parts[2]
        found = product.attended_map(x, weight, bias, 0.3)
        assert found.dtype == dtype
        far = (found.double() - read.transpose(1, 2).reshape(found.shape)).norm() / read.norm()
        assert far < torch.finfo(dtype).eps / 2


@pytest.mark.gpu
def test_in_a_row_with_what_is_no_number_nothing_is(hopper: None) -> None:
    x, weight = numbers(256, 64, dtype=torch.bfloat16), numbers(192, 64, dtype=torch.bfloat16)
    x[5, 3] = float("nan")
    found = product.attended_map(x, weight, None, 0.125)
    assert found[:128].isnan().all()
    assert found[128:].isfinite().all()


@pytest.mark.gpu
def test_programs_that_begin_early_find_what_those_before_have_written(hopper: None) -> None:
    """A ring of products, each of which reads what the one before has written, and adds to what one earlier has."""
    x, weights = numbers(3000, 768, dtype=torch.bfloat16), numbers(3, 768, 768, dtype=torch.bfloat16, scale=0.03)
    norm = product.Norm(numbers(768), numbers(768), 1e-12, False)

    def around(wait: bool) -> Tensor:
        stream = x.clone()
        for turn in range(60):
            read = product.activated_map(stream, weights[turn % 3], None, "gelu")
            if wait:
                torch.cuda.synchronize()
            if turn % 2:
                product.add_map(read, weights[(turn + 1) % 3], stream)
            else:
                product.add_normed_map(read, weights[(turn + 1) % 3], None, stream, norm)
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
