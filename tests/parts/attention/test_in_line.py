"""Documents that stand in line are what they would be in rows of their own."""

import pytest
import torch
from torch import nn

from qkv.errors import QkvError
from qkv.parts.attention.cache import FilledInLine, PreallocatedCache
from qkv.parts.attention.in_line import InLine, seen_in_line
from qkv.parts.attention.kernels.choose import choose_kernel
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.kernels.in_line import in_line
from qkv.parts.attention.visibility import Causal, Everything, Mask, Rule, SameDocument, Tokens, Window
from qkv.parts.context import Context
from qkv.parts.pool import FirstToken, LastToken, MeanOfTokens

LENGTHS = (5, 5, 3, 3, 3, 1, 4)
LINE = InLine.of(LENGTHS)


def test_what_is_said_of_documents() -> None:
    assert LINE.size == 24
    assert LINE.end == 5
    assert LINE.runs == [(0, 2, 5), (10, 3, 3), (19, 1, 1), (20, 1, 4)]
    assert LINE.bounds is not None
    assert LINE.positions is not None
    assert LINE.documents is not None
    assert LINE.bounds.tolist() == [0, 5, 10, 13, 16, 19, 20, 24]
    assert LINE.positions[0, :12].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert LINE.documents[0, :11].tolist() == [1] * 5 + [2] * 5 + [3]


@pytest.mark.parametrize("rule", [SameDocument(), Causal() & SameDocument()], ids=str)
@pytest.mark.parametrize("shared", [4, 2])
def test_the_kernel_agrees_with_the_specification(rule: Rule, shared: int) -> None:
    q = torch.randn(1, 4, LINE.size, 8, requires_grad=True)
    k, v = (torch.randn(1, shared, LINE.size, 8, requires_grad=True) for _ in range(2))
    mask = Mask(rule, LINE, LINE, "cpu")
    assert choose_kernel(q, k, mask, 0.0, record=False) is in_line
    assert choose_kernel(q, k, mask, 0.0, record=True) is exact
    assert choose_kernel(q, k, mask, 0.1, record=False) is fused
    pull = torch.randn(1, 4, LINE.size, 8)
    found = []
    for kernel in (in_line, exact):
        o = kernel(q, k, v, mask, scale=0.3)
        found.append((o, *torch.autograd.grad((o * pull).sum(), (q, k, v))))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)


def test_other_rules_are_no_documents_in_line() -> None:
    for rule in (Everything(), SameDocument() & Window(3), Window(3) & SameDocument()):
        assert seen_in_line(Mask(rule, LINE, LINE, "cpu")) is None
    assert seen_in_line(Mask(SameDocument(), LINE, Tokens(24, documents=LINE.documents), "cpu")) is None
    assert seen_in_line(None) is None
    x = torch.randn(1, 1, LINE.size, 8)
    with pytest.raises(QkvError, match="documents in one row"):
        in_line(x, x, x, Mask(Everything(), LINE, LINE, "cpu"))


def test_what_cannot_stand_in_line_is_refused() -> None:
    for lengths in ((), (3, 0)):
        with pytest.raises(QkvError, match="each has a token"):
            InLine.of(lengths)
    with pytest.raises(QkvError, match="no rows can be taken out"):
        LINE.select(torch.tensor([0]))
    with pytest.raises(QkvError, match="no slots can be taken out"):
        LINE.part(0, 3)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_pools_give_a_vector_a_document(device: str) -> None:
    x = torch.randn(1, LINE.size, 6, device=device)
    documents = x[0].split(LENGTHS)
    ctx = Context(tokens=InLine.of(LENGTHS, device))
    assert torch.equal(FirstToken()(x, ctx), torch.stack([each[0] for each in documents]))
    assert torch.equal(LastToken()(x, ctx), torch.stack([each[-1] for each in documents]))
    torch.testing.assert_close(MeanOfTokens()(x, ctx), torch.stack([each.mean(0) for each in documents]))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rule", [SameDocument(), Causal() & SameDocument()], ids=str)
def test_the_kernel_agrees_on_a_gpu(rule: Rule, dtype: torch.dtype) -> None:
    line = InLine.of((130, 70, 70, 7, 1), "cuda")
    joined = torch.randn(1, line.size, 3, 4, 64, device="cuda", dtype=dtype)
    q, k, v = (each.transpose(1, 2) for each in joined.unbind(2))  # views, as a joined product gives them
    mask = Mask(rule, line, line, torch.device("cuda"))
    near = 2e-2 if dtype is torch.bfloat16 else 1e-4
    expected = exact(q.float(), k.float(), v.float(), mask)
    torch.testing.assert_close(in_line(q, k, v, mask).float(), expected, atol=near, rtol=near)


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "width"), [(3, 64), (1, 1600), (2, 24)])
@torch.inference_mode()
def test_documents_are_put_into_rows_on_a_gpu_as_on_a_cpu(heads: int, width: int) -> None:
    lengths, capacity = (5, 1, 130, 64), 150
    both = torch.randn(1, sum(lengths), 2 * heads, width).to(torch.bfloat16)
    found = []
    for device in ("cpu", "cuda"):
        x = both.to(device).transpose(1, 2)  # [1 2h s d]: heads that lie between others
        cache = FilledInLine(PreallocatedCache(capacity), InLine.of(lengths, device))
        owners = nn.Identity(), nn.Identity()
        cache.extend(owners[0], x[:, :heads], x[:, heads:])
        rows = [room[:, :, : cache.slots].cpu() for room in cache.into.room(owners[0]) or ()]
        found.append([*rows, cache.in_rows(x[:, 0]).cpu()])
    assert all(torch.equal(mine, other) for mine, other in zip(*found, strict=True))
