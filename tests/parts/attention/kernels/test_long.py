"""Attention of long rows by the program of `long.cu`: against torch in double precision, and when it is taken.

pytest -m gpu tests/parts/attention, on a Hopper GPU.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.parts.attention.kernels import long as long_module
from qkv.parts.attention.kernels import long_cuda
from qkv.parts.attention.kernels.choose import choose_kernel
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.kernels.long import long
from qkv.parts.attention.visibility import Causal, Everything, Mask, NotPadding, Rule, Tokens, Window

STEPS = {
    64: [
        *long_cuda.NARROW_HEADS,
        long_cuda.Steps(2, 176, slots=6, q_slots=2),
        long_cuda.Steps(2, 128, 4, 1, by_hand=4),
    ],
    128: [long_cuda.WIDE_HEADS],
}


@pytest.fixture
def hopper() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a GPU with warpgroups")


def joined(b: int, heads: int, slots: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as views of one product."""
    given = torch.Generator().manual_seed(slots + width)
    x = torch.randn(b, slots, 3, heads, width, generator=given).to("cuda", dtype)
    q, k, v = x.permute(2, 0, 3, 1, 4)
    return q, k, v


def assert_exact(found: Tensor, q: Tensor, k: Tensor, v: Tensor, rule: Rule, scale: float | None = None) -> None:
    """Weights are rounded before they meet values, of about 1; and then the answer is."""
    mask = Mask(rule, Tokens(q.shape[2]), Tokens(k.shape[2]), q.device)
    expected = exact(q.double(), k.double(), v.double(), mask, scale=scale)
    step = torch.finfo(q.dtype).eps
    torch.testing.assert_close(found.double(), expected, atol=1.5 * step, rtol=step)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rule", [Everything(), Causal()], ids=str)
@pytest.mark.parametrize("slots", [1, 5, 64, 127, 128, 129, 300, 577, 1214])
@pytest.mark.parametrize("width", [64, 128])
def test_long_rows_are_exact(hopper: None, width: int, slots: int, rule: Rule, dtype: torch.dtype) -> None:
    q, k, v = joined(3, 4, slots, width, dtype)
    causal = isinstance(rule, Causal)
    for steps in STEPS[width]:
        if not causal or steps.keys % 64 == 0:
            found = long_cuda.attend(q, k, v, causal=causal, scale=width**-0.5, steps=steps)
            assert found.dtype == dtype
            assert found.transpose(1, 2).is_contiguous()
            assert_exact(found, q, k, v, rule)


@pytest.mark.gpu
@pytest.mark.parametrize(("queries", "keys"), [(1, 700), (700, 1), (130, 400), (400, 130)])
def test_queries_and_keys_that_differ_in_number_and_share_heads(hopper: None, queries: int, keys: int) -> None:
    q, (_, k, v) = joined(2, 6, queries, 64, torch.bfloat16)[0], joined(2, 2, keys, 64, torch.bfloat16)
    assert_exact(long_cuda.attend(q, k, v, causal=False, scale=0.3), q, k, v, Everything(), 0.3)


@pytest.mark.gpu
def test_more_tiles_than_multiprocessors_and_numbers_that_lie_crosswise(hopper: None) -> None:
    q, k, v = joined(20, 12, 700, 64, torch.bfloat16)
    assert_exact(long_cuda.attend(q, k, v, causal=True, scale=0.125), q, k, v, Causal())
    across = q.mT.contiguous().mT
    assert torch.equal(
        long_cuda.attend(across, k, v, causal=True, scale=0.125), long_cuda.attend(q, k, v, causal=True, scale=0.125)
    )


@pytest.mark.gpu
def test_large_scores_do_not_overflow(hopper: None) -> None:
    q, k, v = joined(1, 2, 700, 64, torch.bfloat16)
    found = long_cuda.attend(q * 30, k * 30, v, causal=False, scale=0.125)
    assert_exact(found, q * 30, k * 30, v, Everything())


@pytest.mark.parametrize(
    ("slots", "width", "rule", "expected"),
    [
        (1214, 64, Everything(), long),
        (1024, 64, Causal(), long),
        (577, 128, Everything(), long),
        (1214, 64, Window(9), fused),
        (1214, 80, Everything(), fused),
        (1214, 64, NotPadding(), long),
        (long_module.LEAST - 1, 128, Everything(), fused),
    ],
)
def test_long_rows_that_are_read_go_there(
    monkeypatch: pytest.MonkeyPatch, slots: int, width: int, rule: Rule, expected: object
) -> None:
    on_hopper(monkeypatch)
    q = torch.empty(32, 12, slots, width, dtype=torch.bfloat16, device="meta")
    mask = Mask(rule, Tokens(slots), Tokens(slots), "meta")
    assert choose_kernel(q, q, mask, 0.0, False) is expected
    assert choose_kernel(q, q, mask, 0.1, False) is fused
    assert choose_kernel(q, q.float(), mask, 0.0, False) is fused


def test_rows_that_learn_and_small_batches_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    on_hopper(monkeypatch)
    q = torch.empty(32, 12, 1214, 64, dtype=torch.bfloat16, device="meta")
    learned = torch.empty_like(q, requires_grad=True)
    assert choose_kernel(learned, q, None, 0.0, False) is fused
    with torch.no_grad():
        assert choose_kernel(learned, q, None, 0.0, False) is long
    assert choose_kernel(q[:1, :1], q[:1, :1], None, 0.0, False) is fused


def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("runs_our_own", "has_copy_engine"):
        monkeypatch.setattr(long_module, name, lambda x: True)
    monkeypatch.setattr(long_module.cuda, "has_bindings", lambda: True)


def test_what_the_program_is_not_made_for_is_computed_all_the_same() -> None:
    q, k, v = torch.randn(3, 1, 2, 9, 64)
    assert torch.equal(long(q, k, v), fused(q, k, v))


@pytest.mark.parametrize(("keys", "causal", "taken"), [(1214, False, 112), (1024, False, 128), (1214, True, 128)])
def test_tiles_leave_little_empty_and_fit_into_a_block(keys: int, causal: bool, taken: int) -> None:
    assert long_cuda.steps_of(64, keys, causal).keys == taken
    for width, all_steps in STEPS.items():
        for steps in all_steps:
            assert steps.shared(width) <= 227 * 1024
