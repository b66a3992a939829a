"""The programs for 8 bits, on a GPU or, with TRITON_INTERPRET=1, by Triton's interpreter on a CPU."""

import os

import pytest
import torch

from qkv.train.float8.activations import STEEPEST, activated, sloped
from qkv.train.float8.bounds import APART, SLACK, Learned, _narrow_by_torch
from qkv.train.float8.norms import sum_norm_rounded, sum_norm_rounded_back
from qkv.train.float8.rows import rounded, rounded_side_by_side, turned

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.slow if INTERPRETED else pytest.mark.gpu
DEVICE = "cpu" if INTERPRETED else "cuda"
KINDS = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """So that small matrices have several steps and tiles."""
    from qkv.train.float8 import rounding_triton, weights_triton

    monkeypatch.setattr(rounding_triton, "AT_ONCE", 256)
    monkeypatch.setattr(weights_triton, "AT_ONCE", 32)
    monkeypatch.setattr(weights_triton, "STRIPS", weights_triton.Strips(4, 32, 16, 16, 1))
    monkeypatch.setattr(rounding_triton, "TURN", rounding_triton.Tile(32, 32, 4))
    for name in ("ACTIVATE", "WEIGHTS"):
        monkeypatch.setattr(rounding_triton, name, rounding_triton.Tile(32, 64, 4))


def same(found, expected):
    """Bit for bit, on a GPU.

    Triton's interpreter forgets to carry, so that what is rounded up to a power of two becomes half of it, cuts off
    what is below the least normal number, and takes the least numbers of 16 bits for larger ones.
    """
    found, expected = found.cpu().float(), expected.float()
    uncarried = (found * 2 == expected) & (expected.frexp().mantissa.abs() == 0.5)
    cut = (expected.abs() <= 2**-6) & ((found - expected).abs() <= 2**-9)
    mistaken = (expected == 0) & (found.abs() < 2**-6)
    return bool(((found == expected) | ((uncarried | cut | mistaken) & INTERPRETED)).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (48, 48), (33, 96), (16, 272), (5, 1040), (0, 16)])
def test_rows_are_rounded_as_by_torch(kind, rows, width):
    from qkv.train.float8 import rounding_triton

    x = (torch.randn(rows, width + 16) * 2.0 ** torch.randint(-40, 40, (rows, 1))).to(kind)[:, 16:]  # a view
    x[rows // 2 : rows // 2 + 1] = 0
    narrow, scales = rounding_triton.rounded(x.to(DEVICE))
    expected, expected_scales = rounded(x)
    assert torch.equal(scales.cpu(), expected_scales)
    assert same(narrow, expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 300])
def test_a_number_that_is_none_is_not_passed_over(bad, place):
    from qkv.train.float8 import rounding_triton

    x = torch.randn(3, 320)
    x[1, place] = bad
    _, scales = rounding_triton.rounded(x.to(DEVICE))
    assert scales[:, 0].isfinite().tolist() == [True, False, True]


def test_columns_side_by_side_are_laid_out_anew():
    from qkv.train.float8 import rounding_triton

    x = torch.randn(48, 16).t()
    narrow, scales = rounding_triton.rounded(x.to(DEVICE))
    assert same(narrow, rounded(x)[0])
    assert torch.equal(scales.cpu(), rounded(x)[1])


@pytest.mark.parametrize(("rows", "width"), [(16, 16), (48, 80), (96, 32), (144, 112)])
def test_matrices_are_turned_as_by_torch(rows, width):
    from qkv.train.float8 import rounding_triton

    narrow, scales = rounded(torch.randn(rows, width) * 2.0 ** torch.randint(-12, 4, (rows, 1)))
    for factors, sums_by in ((None, None), (scales, None), (scales * 2.0 ** torch.randint(0, 9, (rows, 1)), scales)):
        top = None if factors is None else factors.amax()
        given = [None if each is None else each.to(DEVICE) for each in (factors, top, sums_by)]
        found, sums = rounding_triton.turned(narrow.to(DEVICE), *given)
        expected, expected_sums = turned(narrow, factors, top, sums_by)
        assert same(found, expected)
        assert (sums is None) == (expected_sums is None)
        if sums is not None:
            torch.testing.assert_close(sums.cpu(), expected_sums, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["relu", "silu", "gelu", "gelu_tanh", "gelu_quick"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(16, 16), (48, 80), (144, 112)])
def test_activations_are_rounded_as_by_torch(name, kind, rows, width):
    """What lies between two of the numbers that 8 bits have may become either, because programs approximate."""
    from qkv.train.float8 import rounding_triton

    z, above = (torch.randn(rows, width).to(kind) for _ in range(2))
    inverse, factors, sums_by = (2.0 ** torch.randint(2, 6, (rows, 1)) for _ in range(3))
    top = factors.amax() / 16
    there = [each.to(DEVICE) for each in (above, z, inverse, factors, top, sums_by)]
    narrow, across = rounding_triton.activated(there[1], there[2], name)
    expected, _ = activated(z, inverse, name)
    assert same(across, narrow.cpu().float().T)
    assert near_enough(narrow, expected)
    narrow, across, sums = rounding_triton.sloped(*there, name)
    expected, expected_across, expected_sums = sloped(above, z, inverse, factors, top, sums_by, name)
    assert near_enough(narrow, expected)
    assert near_enough(across, expected_across)
    torch.testing.assert_close(sums.cpu(), expected_sums, rtol=1e-3, atol=1e-2)


def near_enough(found, expected):
    """Equal nearly everywhere, and nowhere further apart than one step of 8 bits. Of interpreters see `same`."""
    found, expected = found.cpu().float(), expected.float()
    if INTERPRETED:
        found = torch.where((found * 2 - expected).abs() < (found - expected).abs(), found * 2, found)
    apart = (found - expected).abs() > torch.maximum(expected.abs() / 7.5, torch.tensor(2**-8.9))
    return bool((found == expected).float().mean() > (0.9 if INTERPRETED else 0.98)) and not bool(apart.any())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("widths", [(16, 16), (16, 48, 80), (96, 96, 96)])
@pytest.mark.parametrize("rows", [16, 37])
def test_matrices_are_rounded_side_by_side(kind, widths, rows):
    from qkv.train.float8 import rounding_triton

    sizes = 2.0 ** torch.randint(-20, 20, (rows, 1))
    parts = [(torch.randn(rows, width + 16) * sizes).to(kind)[:, 16:] for width in widths]  # views
    others = 2.0 ** torch.randint(-4, 4, (rows, 1))
    found = rounding_triton.rounded_side_by_side([each.to(DEVICE) for each in parts], others.to(DEVICE))
    expected = rounded_side_by_side(parts, others)
    assert same(found[0], expected[0])
    for mine, theirs in zip(found[1:], expected[1:], strict=True):
        assert torch.equal(mine.cpu(), theirs)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_number_that_is_none_is_found_in_any_part(bad, part):
    from qkv.train.float8 import rounding_triton

    parts = [torch.randn(5, 16) for _ in range(3)]
    parts[part][3, 2] = bad
    given = [each.to(DEVICE) for each in parts]
    _, scales, both, top = rounding_triton.rounded_side_by_side(given, torch.ones(5, 1, device=DEVICE))
    for each in (scales, both):
        assert each[:, 0].isfinite().tolist() == [True, True, True, False, True]
    assert top.isnan()


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(37, 48), (16, 768)])
def test_norms_round_what_they_make_and_what_they_hand_back(rms, rows, width):
    from qkv.parts import sum_norm_triton

    torch.manual_seed(rows)
    x, added, of_total, of_y = (torch.randn(rows, width) for _ in range(4))
    of_y *= 2.0 ** torch.randint(-20, 20, (rows, 1))
    bias, gain, shift = (torch.randn(width) for _ in range(3))
    inverse, reach, factors = torch.tensor(8.0), torch.tensor(3.7), 2.0 ** torch.randint(-4, 4, (rows, 1))
    given = [None if each is None else each.to(DEVICE) for each in (x, added, bias, gain, None if rms else shift)]
    total, y, statistics = sum_norm_rounded(x, added, bias, gain, None if rms else shift, 1e-5, rms, inverse)
    places = torch.empty_like(total), torch.empty_like(y), torch.empty_like(statistics)
    found = [each.to(DEVICE) for each in places]
    sum_norm_triton.sum_norm(*given, 1e-5, rms, *found, inverse.to(DEVICE))
    torch.testing.assert_close(found[0].cpu(), total)
    assert near_enough(found[1], y)

    right = sum_norm_rounded_back(of_total, of_y, factors, total, statistics, gain, rms, reach)
    of_x, narrow, sums, scales = (torch.empty_like(each).to(DEVICE) for each in right[:4])
    tops = torch.empty(2, 4, device=DEVICE)
    there = [each.to(DEVICE) for each in (of_total, of_y, total, statistics, gain)]
    sum_norm_triton.sum_norm_back(
        *there, rms, of_x, narrow, sums, factors=factors.to(DEVICE), reach=reach.to(DEVICE), scales=scales, tops=tops
    )
    assert torch.equal(tops[:, 0].cpu(), right[4])
    torch.testing.assert_close(of_x.cpu(), right[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scales.cpu(), right[3])
    torch.testing.assert_close(sums.cpu(), right[2], rtol=1e-4, atol=0.1)
    assert near_enough(narrow, right[1])


def learned_of(shifted, biased, width=48, values=32, hidden=80):
    torch.manual_seed(hidden)
    shapes = (96 + values, width), (width, values), (hidden, width), (width, hidden)
    weights = tuple(torch.randn(shape) * 2.0 ** torch.randint(-6, 6, ()) for shape in shapes)
    norms = tuple((torch.randn(width), torch.randn(width) if shifted else None) for _ in range(2))
    biases = (torch.randn(values) * 9, torch.randn(hidden) * 9) if biased else (None, None)
    return Learned(weights, values, norms, *biases)


def on_device(learned):
    if isinstance(learned, tuple):
        moved = [on_device(each) for each in learned]
        return type(learned)(*moved) if hasattr(learned, "_fields") else tuple(moved)
    return learned.to(DEVICE) if isinstance(learned, torch.Tensor) else learned


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("width", [48, 112])
def test_weights_of_a_block_are_bounded_and_rounded_as_by_torch(shifted, biased, width):
    from qkv.train.float8 import weights_triton

    learned = learned_of(shifted, biased, width)
    made, scales, of_columns = weights_triton.narrow(on_device(learned), APART, SLACK, STEEPEST)
    expected, expected_scales, expected_columns = _narrow_by_torch(learned)
    assert torch.equal(of_columns.cpu(), expected_columns)
    assert torch.equal(scales[:8, :, 0].cpu(), expected_scales[:8, :, 0])
    torch.testing.assert_close(scales[8, 0, 0].cpu(), expected_scales[8, 0, 0])
    for mine, right in zip(made, expected, strict=True):
        assert same(mine[0], right[0])
        assert same(mine[1], right[1])


@pytest.mark.parametrize("weight", [0, 1, 2, 3])
def test_a_weight_that_is_no_number_is_not_passed_over(weight):
    from qkv.train.float8 import weights_triton

    learned = learned_of(True, True)
    learned.weights[weight][7, 31] = torch.nan
    _, scales, _ = weights_triton.narrow(on_device(learned), APART, SLACK, STEEPEST)
    assert scales[:4, 1, 0].isnan().tolist() == [number == weight for number in range(4)]
