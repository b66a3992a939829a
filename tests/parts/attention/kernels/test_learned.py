"""Attention of short rows that learns, against exact attention in float64.

pytest -m gpu tests/parts/attention; without a GPU, TRITON_INTERPRET=1 and -m slow let Triton's interpreter read them.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from qkv.parts.attention import attention as attention_module
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels import learned
from qkv.parts.attention.kernels import short as short_module
from qkv.parts.attention.kernels.choose import choose_kernel
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.kernels.short import short
from qkv.parts.attention.visibility import Causal, Everything, Mask, NotPadding, Rule, Tokens, Window
from qkv.parts.context import Context, Ledger
from qkv.parts.position import Rotary, rotary_rates
from tests.parts.attention.kernels.compare import NEAR, assert_near, exact_gradients

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
by_programs = pytest.mark.slow if INTERPRETED else pytest.mark.gpu
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = [torch.float32] if INTERPRETED else [torch.bfloat16, torch.float16]
RULES: dict[str, Rule] = {"nothing": Everything(), "future": Causal(), "padding": NotPadding()}


def padding(rows: int, slots: int, device: str = DEVICE) -> Tokens:
    """Rows with holes, and a last one in which nothing is to be seen."""
    documents = (torch.arange(slots) % torch.arange(2, 2 + rows)[:, None] != 1).long()
    documents[-1] = 0
    return Tokens(slots, documents=documents.to(device).repeat_interleave(2, 1)[:, ::2])  # which lie apart


@by_programs
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", RULES)
@pytest.mark.parametrize(
    ("slots", "heads", "width"),
    [(1, 2, 32), (5, 2, 16), (40, 2, 24), (64, 2, 64), (100, 2, 80), (128, 1, 128), (130, 2, 64), (197, 2, 64),
     (208, 1, 32), (256, 1, 64)],
)  # fmt: skip
def test_gradients_of_a_joined_product_are_exact(
    slots: int, heads: int, width: int, hidden: str, dtype: torch.dtype
) -> None:
    if hidden == "padding" and slots > learned.MOST_PADDED:
        pytest.skip("not taken")
    torch.manual_seed(0)
    joined = torch.randn(2, slots, 3 * heads * width, device=DEVICE).to(dtype)
    above = torch.randn(2, slots, heads, width, device=DEVICE).to(dtype)
    side = padding(2, slots) if hidden == "padding" else Tokens(slots)
    how = hidden == "future", 0.2
    q, k, v = learned._parts(joined, heads)
    o, log_sum = learned._at_once(q, k, v, side.documents, *how)
    found, sums = learned._joined_back_at_once(above, joined, side.documents, o, log_sum, *how)
    mask = Mask(RULES[hidden], side, side, DEVICE)
    assert_near(list(learned._parts(found, heads)), exact_gradients(q, k, v, above.transpose(1, 2), mask, 0.2))
    near = NEAR[dtype] * found.double().square().sum((0, 1)).sqrt().max()  # numbers of either sign, each rounded
    torch.testing.assert_close(sums.double(), found.double().sum((0, 1)), atol=float(near), rtol=0)
    again, as_well = learned._joined_back_at_once(above, joined, side.documents, o, log_sum, *how)
    assert torch.equal(found, again)
    assert torch.equal(sums, as_well)
    if hidden == "padding":
        assert (found[-1] == 0).all()


@by_programs
@pytest.mark.parametrize("scale", [0.3, -0.3])
@pytest.mark.parametrize(("queries", "keys"), [(1, 197), (20, 130), (197, 5)])
def test_queries_and_keys_that_differ_in_number_and_lie_anyhow(
    monkeypatch: pytest.MonkeyPatch, queries: int, keys: int, scale: float
) -> None:
    monkeypatch.setattr(short_module, "suits_short", lambda q, k, mask: True)
    monkeypatch.setattr(learned, "runs_our_own", lambda x: True)
    torch.manual_seed(0)
    q = torch.randn(2, 2, queries, 40, device=DEVICE).to(DTYPES[0])[..., 4:36].requires_grad_()
    k = torch.randn(2, 2, 32, keys, device=DEVICE).to(DTYPES[0]).transpose(2, 3).requires_grad_()
    v = torch.randn(2, keys, 2, 32, device=DEVICE).to(DTYPES[0]).transpose(1, 2).requires_grad_()
    mask = Mask(Everything(), Tokens(queries), Tokens(keys), DEVICE)
    above = torch.randn(2, 1, queries, 32, device=DEVICE).to(DTYPES[0]).expand(2, 2, queries, 32)
    found = torch.autograd.grad(short(q, k, v, mask, scale=scale), (q, k, v), above)
    assert_near(list(found), exact_gradients(q, k, v, above, mask, scale))


@by_programs
def test_scores_far_below_zero_do_not_overflow() -> None:
    """Where all scores are low, a slot past the end, whose score would be 0, must not weigh more than they."""
    joined = torch.ones(1, 5, 3 * 16, device=DEVICE, dtype=DTYPES[0])
    joined[..., :16] = -60.0
    q, k, v = learned._parts(joined, 1)
    o, log_sum = learned._at_once(q, k, v, None, False, 1.0)
    found, _ = learned._joined_back_at_once(torch.ones_like(o), joined, None, o, log_sum, False, 1.0)
    torch.testing.assert_close(found[..., 32:], torch.ones_like(found[..., 32:]), atol=1e-2, rtol=0)
    assert found.isfinite().all()


def _granted(device: torch.device) -> bool:
    return True


_granted._dynamo_marked_constant = True  # type: ignore[attr-defined]


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The programs are taken on a CPU too, by operators that do the same in torch's; the list says which."""
    called: list[str] = []

    def weights(q: Tensor, k: Tensor, documents: Tensor | None, causal: bool, scale: float) -> Tensor:
        s = q.float() @ k.float().transpose(-1, -2) * scale
        seen = torch.ones_like(s, dtype=torch.bool)
        seen = seen if documents is None else seen & (documents > 0)[:, None, None]
        return (s.masked_fill(~(seen.tril() if causal else seen), -1e30).softmax(-1)) * seen

    def attend(
        q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        called.append("forward")
        o = (weights(q, k, documents, causal, scale) @ v.float()).to(q.dtype)
        return o.transpose(1, 2).contiguous(), q.new_zeros(q.shape[:3], dtype=torch.float32)

    def go_back(
        above: Tensor, joined: Tensor, documents: Tensor | None, o: Tensor, log_sum: Tensor, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        called.append("back")
        q, k, v = learned._parts(joined.float(), o.shape[2])
        p, do = weights(q, k, documents, causal, scale), above.float().transpose(1, 2)
        ds = p * (do @ v.transpose(-1, -2) - (do * o.float().transpose(1, 2)).sum(-1, keepdim=True)) * scale
        parts = torch.stack((ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ do))  # [3 b h s d]
        gradient = parts.permute(1, 3, 0, 2, 4).flatten(2)
        return gradient.to(joined.dtype), gradient.sum((0, 1))

    learned._operator.register_kernel("cpu")(attend)
    learned._joined_back_operator.register_kernel("cpu")(go_back)
    monkeypatch.setattr(learned, "runs_operators", lambda x: True)
    monkeypatch.setattr(learned, "has_copy_engine", _granted)
    monkeypatch.setattr(learned, "ENOUGH", 1)
    yield called
    torch.compiler.reset()


def gradients(attention: Attention, call: Callable[[Tensor, Context], Tensor], x: Tensor, ctx: Context) -> list[Tensor]:
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = call(x, ctx)
    return [y.detach().float(), *torch.autograd.grad(y.float().sin().sum(), (x, *attention.parameters()))]


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("hidden", RULES)
def test_a_plain_attention_reads_its_joined_product(operators: list[str], hidden: str, compiled: bool) -> None:
    torch.manual_seed(0)
    attention = Attention(32, 2, visibility=Causal() if hidden == "future" else None)
    x = torch.randn(3, 9, 32)
    tokens = padding(3, 9, "cpu") if hidden == "padding" else Tokens(9)
    ctx = Context(tokens=tokens, visibility=NotPadding() if hidden == "padding" else Everything())
    other = copy.deepcopy(attention)
    other.kernel = exact
    expected = gradients(other, other.forward, x, ctx)
    assert operators == []
    call = torch.compile(attention.forward, backend="aot_eager") if compiled else attention.forward
    found = gradients(attention, call, x, ctx)
    assert operators == ["forward", "back"]
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=0.05 * max(1.0, float(theirs.std())), rtol=0.05)


def test_others_do_not(operators: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(attention_module, "attend_joined")
    x = torch.randn(2, 9, 32, requires_grad=True)
    plain = Context(tokens=Tokens(9))
    with torch.autocast("cpu", torch.bfloat16):
        Attention(32, 2, dropout=0.1)(x, plain)
        Attention(32, 2, key_value_heads=1)(x, plain)
        Attention(32, 2, value_width=8)(x, plain)
        Attention(32, 2, visibility=Window(3))(x, plain)
        Attention(32, 2, rotary=Rotary(rotary_rates(16)))(x, plain)
        Attention(32, 2, kernel=exact)(x, plain)
        Attention(24, 2)(x[..., :24], plain)  # heads of 12, which the copy engine does not take
        attention = Attention(32, 2)
        attention(x, Context(tokens=Tokens(9), bias=torch.zeros(1, 2, 9, 9)))
        attention(x, Context(tokens=Tokens(9), position_vectors=torch.zeros(9, 32)))
        attention(x, Context(tokens=Tokens(9), ledger=Ledger(attention, {"weights"})))
        with torch.no_grad():
            attention(x, plain)
    attention(x, plain)  # in float32
    assert operators == ["forward"] * 2  # of positions, and of nothing else


@pytest.mark.parametrize(
    ("queries", "keys", "width", "rule", "suits"),
    [
        (197, 197, 64, Everything(), True),
        (197, 197, 64, Causal(), True),
        (197, 197, 64, Window(9), False),
        (20, 256, 64, Everything(), True),
        (20, 257, 64, Everything(), False),
        (257, 20, 64, Everything(), False),
        (208, 208, 64, NotPadding(), True),
        (209, 209, 64, NotPadding(), False),
        (128, 128, 80, Everything(), True),
        (129, 129, 80, Everything(), False),
        (64, 64, 256, Everything(), False),
        (64, 64, 36, Everything(), False),
    ],
)
def test_short_rows_that_are_learned_go_there(
    monkeypatch: pytest.MonkeyPatch, queries: int, keys: int, width: int, rule: Rule, suits: bool
) -> None:
    monkeypatch.setattr(learned, "runs_operators", lambda x: True)
    monkeypatch.setattr(learned, "has_copy_engine", _granted)
    q = torch.empty(512, 12, queries, width, dtype=torch.bfloat16, device="meta", requires_grad=True)
    k = torch.empty(512, 12, keys, width, dtype=torch.bfloat16, device="meta")
    documents = torch.ones(1, keys, dtype=torch.long) if isinstance(rule, NotPadding) else None
    mask = Mask(rule, Tokens(queries), Tokens(keys, documents=documents), "meta")
    assert (choose_kernel(q, k, mask, 0.0, record=False) is short) is suits
    assert choose_kernel(q, k, mask, 0.1, record=False) is not short
    assert choose_kernel(q, k, mask, 0.0, record=True) is exact
    assert choose_kernel(q, k[:, :6], mask, 0.0, record=False) is not short  # shared keys
    assert choose_kernel(q[:1], k[:1], mask, 0.0, record=False) is not short or not suits  # too few
    assert choose_kernel(q.float(), k.float(), mask, 0.0, record=False) is not short


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("hidden", RULES)
def test_on_a_gpu_an_attention_learns_the_same(monkeypatch: pytest.MonkeyPatch, hidden: str, compiled: bool) -> None:
    """Against float64, and no further off than the vendors' kernels in narrow numbers are."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a GPU with a copy engine")
    torch.manual_seed(0)
    monkeypatch.setattr(learned, "ENOUGH", 1)
    attention = Attention(128, 2, visibility=Causal() if hidden == "future" else None).cuda()
    tokens = padding(3, 77, "cuda") if hidden == "padding" else Tokens(77)
    ctx = Context(tokens=tokens, visibility=NotPadding() if hidden == "padding" else Everything())
    x, above = torch.randn(2, 3, 77, 128, device="cuda")
    wide = copy.deepcopy(attention).double()
    wide.kernel, other = exact, copy.deepcopy(attention)
    other.kernel = fused

    def found(part: Attention, call: Callable[[Tensor, Context], Tensor], dtype: torch.dtype) -> list[Tensor]:
        given = x.to(dtype).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.float32):
            y = call(given, ctx)
        return [y.detach(), *torch.autograd.grad(y, (given, *part.parameters()), above.to(y.dtype))]

    call = torch.compile(attention.forward, dynamic=True) if compiled else attention.forward
    theirs, expected = found(other, other.forward, torch.float32), found(wide, wide.forward, torch.float64)
    for mine, narrow, right in zip(found(attention, call, torch.float32), theirs, expected, strict=True):
        off = (mine.double() - right).square().mean().sqrt()
        assert off <= 1.5 * (narrow.double() - right).square().mean().sqrt() + 1e-6
