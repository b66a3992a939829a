"""Attention of short rows by the program of `short.cu`: against torch in double precision, and when it is taken.

pytest -m gpu tests/parts/attention, on a Hopper GPU.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.parts.attention.kernels import learned, short_cuda
from qkv.parts.attention.kernels import short as short_module
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.learned import suits_warpgroups
from qkv.parts.attention.kernels.short import short
from qkv.parts.attention.visibility import Causal, Everything, Mask, NotPadding, Rule, Tokens

NARROW = [torch.bfloat16, torch.float16]


@pytest.fixture
def hopper() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a GPU with warpgroups")


def joined(b: int, heads: int, slots: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as views of one product."""
    given = torch.Generator().manual_seed(slots)
    x = torch.randn(b, slots, 3, heads, 64, generator=given).to("cuda", dtype)
    q, k, v = x.permute(2, 0, 3, 1, 4)
    return q, k, v


def assert_exact(found: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float = 0.125) -> None:
    """Weights are rounded before they meet values, of about 1; and then the answer is."""
    mask = Mask(Everything(), Tokens(q.shape[2]), Tokens(k.shape[2]), q.device)
    expected = exact(q.double(), k.double(), v.double(), mask, scale=scale)
    step = torch.finfo(q.dtype).eps
    torch.testing.assert_close(found.double(), expected, atol=1.5 * step, rtol=step)
    assert found.transpose(1, 2).is_contiguous()  # what comes after reads tokens, all heads of each side by side


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("slots", [129, 144, 160, 161, 177, 197, 201, 208, 209, 240, 257, 272])
@pytest.mark.parametrize(("b", "heads"), [(1, 1), (13, 11), (60, 12)], ids=["one head", "some", "many"])
def test_short_rows_are_exact(hopper: None, b: int, heads: int, slots: int, dtype: torch.dtype) -> None:
    q, k, v = joined(b, heads, slots, dtype)
    assert_exact(short_cuda.attend(q, k, v, scale=0.125), q, k, v)


@pytest.mark.gpu
@pytest.mark.parametrize(("queries", "keys"), [(129, 256), (1000, 130), (700, 197), (197, 270)])
def test_queries_and_keys_that_differ_in_number_and_share_heads(hopper: None, queries: int, keys: int) -> None:
    q, (_, k, v) = joined(40, 6, queries, torch.bfloat16)[0], joined(40, 2, keys, torch.bfloat16)
    assert_exact(short_cuda.attend(q, k, v, scale=0.3), q, k, v, 0.3)


@pytest.mark.gpu
@pytest.mark.parametrize("slots", [150, 197, 257])
def test_sums_are_kept_for_a_way_back(hopper: None, slots: int) -> None:
    q, k, v = joined(20, 12, slots, torch.bfloat16)
    log_sum = q.new_full(q.shape[:3], float("nan"), dtype=torch.float32)
    assert_exact(short_cuda.attend(q, k, v, scale=0.125, log_sum=log_sum), q, k, v)
    scores = q.double() @ k.double().mT * 0.125
    expected = scores.logsumexp(-1) * short_cuda.LOG2_E
    torch.testing.assert_close(log_sum.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
def test_large_scores_do_not_overflow_and_numbers_may_lie_crosswise(hopper: None) -> None:
    q, k, v = joined(2, 3, 197, torch.bfloat16)
    assert_exact(short_cuda.attend(q * 30, k * 30, v, scale=0.125), q * 30, k * 30, v)
    across = q.mT.contiguous().mT
    assert torch.equal(short_cuda.attend(across, k, v, scale=0.125), short_cuda.attend(q, k, v, scale=0.125))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rule", "scale", "learns", "taken"),
    [
        (Everything(), None, False, True),
        (Everything(), None, True, True),
        (Everything(), -0.1, False, False),
        (Causal(), None, False, False),
        (NotPadding(), None, False, False),
    ],
)
def test_rows_that_see_everything_go_there(
    hopper: None, monkeypatch: pytest.MonkeyPatch, rule: Rule, scale: float | None, learns: bool, taken: bool
) -> None:
    called = []
    plain = short_cuda.attend
    monkeypatch.setattr(short_cuda, "attend", lambda *given, **named: called.append(1) or plain(*given, **named))
    monkeypatch.setattr(short_module, "ENOUGH", 1)
    monkeypatch.setattr(learned, "ENOUGH", 1)
    q, k, v = joined(2, 3, 197, torch.bfloat16)
    documents = torch.ones(2, 197, dtype=torch.long, device="cuda") if isinstance(rule, NotPadding) else None
    side = Tokens(197, documents=documents)
    mask = Mask(rule, side, side, q.device)
    with torch.set_grad_enabled(learns):
        found = short(q, k, v, mask, scale=scale)
    assert bool(called) is taken
    expected = exact(q.double(), k.double(), v.double(), mask, scale=scale)
    torch.testing.assert_close(found.double(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    ("queries", "keys", "width", "taken"),
    [(197, 197, 64, True), (129, 272, 64, True), (128, 197, 64, False), (197, 128, 64, False), (197, 273, 64, False),
     (197, 197, 32, False)],
)  # fmt: skip
def test_which_rows_warpgroups_take(
    monkeypatch: pytest.MonkeyPatch, queries: int, keys: int, width: int, taken: bool
) -> None:
    q, k = (torch.empty(2, 3, slots, width, device="meta", dtype=torch.bfloat16) for slots in (queries, keys))
    assert not suits_warpgroups(q, k, k, None)  # no GPU
    monkeypatch.setattr(learned, "_has_warpgroups", lambda x: True)
    assert suits_warpgroups(q, k, k, None) is taken
    assert not suits_warpgroups(q, k, k, torch.ones(2, keys))


def test_rooms_fit_into_a_block() -> None:
    assert [room.keys for room in short_cuda.ROOMS] == sorted(room.keys for room in short_cuda.ROOMS)
    assert short_cuda.ROOMS[-1].keys == learned.AT_ONCE
    for room in short_cuda.ROOMS:
        assert room.shared <= 227 * 1024
