"""Norms by our own program against torch's in double precision.

pytest -m gpu tests/parts; without a GPU, TRITON_INTERPRET=1 lets Triton's interpreter read it.
"""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
DEVICE = "cpu" if INTERPRETED else "cuda"
KINDS = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16, torch.float16]
GIVEN = ["nothing", "bias", "both", "waiting"]
NORMS = [(False, True), (False, False), (True, False)]  # of root mean squares alone, with a shift
SHAPES = [(1, 1), (50, 64), (9, 384), (7, 768), (5, 1000), (3, 1280), (1, 8192)]
CASES = [((3, 12), norm, given, kind) for norm in NORMS for given in GIVEN for kind in KINDS]
CASES += [(shape, NORMS[i % 3], GIVEN[i % 4], KINDS[-2:][0]) for i, shape in enumerate([*SHAPES, *SHAPES[1:]])]


def expected(x: Tensor, gain: Tensor, shift: Tensor | None, rms: bool, *added: Tensor | None) -> Tensor:
    wide = x.double() + sum(each.double() for each in added if each is not None)
    if rms:
        return F.rms_norm(wide, gain.shape, gain.double(), 1e-6)
    return F.layer_norm(wide, gain.shape, gain.double(), None if shift is None else shift.double(), 1e-6)


@pytest.mark.parametrize(("shape", "norm", "given", "kind"), CASES)
def test_a_norm_of_all_that_is_waiting(
    shape: tuple[int, int], norm: tuple[bool, bool], given: str, kind: torch.dtype
) -> None:
    from qkv.parts.norm_triton import norm_into

    (rows, width), (rms, shifted) = shape, norm
    torch.manual_seed(rows)
    x = 2 + 3 * torch.randn(rows, width, device=DEVICE, dtype=kind)
    gain, shift, bias = torch.randn(3, width, device=DEVICE, dtype=kind).unbind()
    waiting = torch.randn(width, device=DEVICE)
    own_shift, own_bias = shift if shifted else None, bias if given in ("bias", "both") else None
    own_waiting = waiting if given in ("waiting", "both") else None
    carried = torch.full_like(waiting, 7.0) if own_bias is not None else None
    right, y = expected(x, gain, own_shift, rms, own_waiting, own_bias), torch.empty_like(x)
    norm_into(y, x, gain, own_shift, 1e-6, rms=rms, waiting=own_waiting, bias=own_bias, carried=carried)
    error = {torch.float32: 2e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}[kind]
    torch.testing.assert_close(y.double(), right, atol=2e-5 if width > 1 else 1e-2, rtol=error)
    if carried is not None:
        torch.testing.assert_close(carried, bias.float() if own_waiting is None else bias.float() + waiting)
    norm_into(x, x, gain, own_shift, 1e-6, rms=rms, waiting=own_waiting, bias=own_bias, carried=None)
    torch.testing.assert_close(x, y)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("rows", "places", "width"), [(12, 4, 12), (12, 12, 40), (9, 1, 768), (70, 7, 384)])
def test_a_norm_of_what_comes_again_and_again(rows: int, places: int, width: int, kind: torch.dtype) -> None:
    from qkv.parts.norm_triton import norm_into

    torch.manual_seed(rows)
    x, place = (
        torch.randn(rows, width, device=DEVICE, dtype=kind),
        torch.randn(places, width, device=DEVICE, dtype=kind),
    )
    gain, shift, bias = torch.randn(3, width, device=DEVICE, dtype=kind).unbind()
    y, again = torch.empty_like(x), place.double().repeat(rows // places, 1)
    norm_into(y, x, gain, shift, 1e-6, rms=False, places=place, bias=bias)
    error = {torch.float32: 2e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}[kind]
    torch.testing.assert_close(y.double(), expected(x, gain, shift, False, again, bias), atol=2e-5, rtol=error)


@pytest.mark.gpu
def test_rows_beyond_what_32_bits_count() -> None:
    from qkv.parts.norm_triton import norm_into

    if torch.cuda.get_device_properties(0).total_memory < 20 << 30:
        pytest.skip("needs 20 GB")
    x = torch.empty((1 << 31) // 1024 + 5, 1024, dtype=torch.bfloat16, device="cuda").fill_(1.0)
    x[-3:] = torch.randn(3, 1024, device="cuda", dtype=torch.bfloat16)
    gain, last = torch.ones(1024, dtype=torch.bfloat16, device="cuda"), x[-3:].clone()
    norm_into(x, x, gain, None, 1e-6, rms=False)
    torch.testing.assert_close(x[-3:].double(), expected(last, gain, None, False), atol=1e-4, rtol=8e-3)
    assert not x[:100].any()
