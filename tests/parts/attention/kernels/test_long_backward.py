"""The way back of attention over long rows by the programs of `long_backward.cu`: against exact attention in float64.

pytest -m gpu tests/parts/attention, on a Hopper GPU.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.parts import cuda
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels import learned
from qkv.parts.attention.kernels import long as long_module
from qkv.parts.attention.kernels.choose import choose_kernel
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.kernels.long import long
from qkv.parts.attention.visibility import Causal, Everything, Mask, NotPadding, Rule, Tokens, Window
from qkv.parts.context import Context
from tests.parts.attention.kernels.compare import NEAR, assert_near, exact_gradients

WIDTH = 64


@pytest.fixture
def hopper() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a GPU with warpgroups")


def mask_of(q: Tensor, k: Tensor, rule: Rule) -> Mask:
    return Mask(rule, Tokens(q.shape[2]), Tokens(k.shape[2]), q.device)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rule", [Everything(), Causal()], ids=str)
@pytest.mark.parametrize(
    ("rows", "slots", "heads"),
    [(2, 257, 3), (1, 300, 1), (2, 384, 2), (20, 400, 12), (2, 511, 3), (12, 512, 12), (1, 1000, 2), (3, 1024, 50)],
)
def test_gradients_of_a_joined_product_are_exact(
    hopper: None, rows: int, slots: int, heads: int, rule: Rule, dtype: torch.dtype
) -> None:
    """Fewer heads than multiprocessors and more, last tiles that are full and that are not."""
    torch.manual_seed(0)
    joined = torch.randn(rows, slots, 3 * heads * WIDTH, device="cuda").to(dtype)
    above = torch.randn(rows, slots, heads, WIDTH, device="cuda").to(dtype)
    how = isinstance(rule, Causal), 0.15
    q, k, v = learned._parts(joined, heads)
    o, log_sum = learned._at_once(q, k, v, None, *how)
    found, sums = learned._joined_back_at_once(above, joined, None, o, log_sum, *how)
    for row in range(0, rows, 5):  # float64 takes its time
        one = slice(row, row + 1)
        expected = exact_gradients(q[one], k[one], v[one], above[one].transpose(1, 2), mask_of(q, k, rule), 0.15)
        assert_near(list(learned._parts(found[one], heads)), expected)
    near = NEAR[dtype] * found.double().square().sum((0, 1)).sqrt().max()  # numbers of either sign, each rounded
    torch.testing.assert_close(sums.double(), found.double().sum((0, 1)), atol=float(near), rtol=0)
    again, as_well = learned._joined_back_at_once(above, joined, None, o, log_sum, *how)
    assert torch.equal(found, again)
    assert torch.equal(sums, as_well)


@pytest.mark.gpu
@pytest.mark.parametrize(("queries", "keys"), [(300, 1000), (1000, 300), (512, 640)])
def test_queries_and_keys_that_differ_in_number_and_lie_anyhow(hopper: None, queries: int, keys: int) -> None:
    torch.manual_seed(0)
    q = torch.randn(10, 12, queries, 72, device="cuda").bfloat16()[..., 4:68].requires_grad_()
    k = torch.randn(10, 12, WIDTH, keys, device="cuda").bfloat16().transpose(2, 3).requires_grad_()
    v = torch.randn(10, keys, 12, WIDTH, device="cuda").bfloat16().transpose(1, 2).requires_grad_()
    mask = Mask(Everything(), Tokens(queries), Tokens(keys), "cuda")
    assert choose_kernel(q, k, mask, 0.0, record=False) is long
    above = torch.randn(10, 1, queries, WIDTH, device="cuda").bfloat16().expand(10, 12, queries, WIDTH)
    found = torch.autograd.grad(long(q, k, v, mask, scale=0.2), (q, k, v), above)
    assert_near(list(found), exact_gradients(q, k, v, above, mask, 0.2))


@pytest.mark.gpu
def test_scores_far_below_zero_do_not_overflow(hopper: None) -> None:
    """Where all scores are low, a slot past the end, whose score would be 0, must not weigh more than they."""
    joined = torch.ones(1, 300, 3 * WIDTH, device="cuda", dtype=torch.bfloat16)
    joined[..., :WIDTH] = -60.0
    q, k, v = learned._parts(joined, 1)
    o, log_sum = learned._at_once(q, k, v, None, False, 1.0)
    found, _ = learned._joined_back_at_once(torch.ones_like(o), joined, None, o, log_sum, False, 1.0)
    torch.testing.assert_close(found[..., 128:], torch.ones_like(found[..., 128:]), atol=1e-2, rtol=0)
    assert found.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_an_attention_learns_the_same(hopper: None, compiled: bool) -> None:
    """Against float64, and no further off than the vendors' kernels in narrow numbers are."""
    torch.manual_seed(0)
    attention = Attention(768, 12, visibility=Causal()).cuda()
    x, above = torch.randn(2, 11, 500, 768, device="cuda")
    ctx = Context(tokens=Tokens(500))

    def found(kernel: object, dtype: torch.dtype, compiled: bool = False) -> list[Tensor]:
        part = Attention(768, 12, visibility=Causal(), kernel=kernel).to("cuda", dtype)  # type: ignore[arg-type]
        part.load_state_dict(attention.state_dict())
        call = torch.compile(part.forward) if compiled else part.forward
        given = x.to(dtype).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.float32):
            y = call(given, ctx)
        return [y.detach(), *torch.autograd.grad(y, (given, *part.parameters()), above.to(y.dtype))]

    ours, theirs = found(None, torch.float32, compiled), found(fused, torch.float32)
    for mine, narrow, right in zip(ours, theirs, found(exact, torch.float64), strict=True):
        off, usual = (mine - right).norm(), (narrow - right).norm()
        assert off <= 1.2 * usual + 1e-6 * right.norm()


def _granted(device: torch.device) -> bool:
    return True


@pytest.mark.parametrize(
    ("rows", "queries", "keys", "width", "rule", "suits"),
    [
        (32, 1024, 1024, 64, Causal(), True),
        (32, 512, 512, 64, Everything(), True),
        (8, 1024, 1024, 64, Causal(), True),  # 96 heads for 132 multiprocessors
        (7, 1024, 1024, 64, Causal(), False),
        (12, 1024, 1024, 64, Causal(), False),  # 144, of which the last 12 would run alone
        (32, 1025, 1025, 64, Causal(), False),
        (32, 256, 256, 64, Causal(), False),
        (32, 300, 1000, 64, Everything(), True),
        (32, 300, 1000, 64, Causal(), False),
        (32, 1024, 1024, 128, Causal(), False),
        (32, 1024, 1024, 64, Window(9), False),
        (32, 1024, 1024, 64, NotPadding(), False),
    ],
)
def test_long_rows_that_are_learned_go_there(
    monkeypatch: pytest.MonkeyPatch, rows: int, queries: int, keys: int, width: int, rule: Rule, suits: bool
) -> None:
    for module in (learned, long_module):
        monkeypatch.setattr(module, "runs_operators", lambda x: True)
    monkeypatch.setattr(learned, "_has_warpgroups", lambda x: True)
    monkeypatch.setattr(learned, "has_copy_engine", _granted)
    monkeypatch.setattr(learned, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(cuda, "has_bindings", lambda: True)
    q = torch.empty(rows, 12, queries, width, dtype=torch.bfloat16, device="meta", requires_grad=True)
    k = torch.empty(rows, 12, keys, width, dtype=torch.bfloat16, device="meta")
    documents = torch.ones(1, keys, dtype=torch.long) if isinstance(rule, NotPadding) else None
    mask = Mask(rule, Tokens(queries), Tokens(keys, documents=documents), "meta")
    assert (choose_kernel(q, k, mask, 0.0, record=False) is long) is suits
    assert choose_kernel(q, k, mask, 0.1, record=False) is not long
    assert choose_kernel(q, k, mask, 0.0, record=True) is exact
    assert choose_kernel(q, k[:, :6], mask, 0.0, record=False) is not long  # shared keys
    assert choose_kernel(q.float(), k.float(), mask, 0.0, record=False) is not long
