"""Short rows and short documents by programs, against the specification.

pytest -m gpu tests/parts; without a GPU, TRITON_INTERPRET=1 lets Triton's interpreter read them.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.attention.in_line import InLine
from qkv.parts.attention.kernels import in_line as in_line_module
from qkv.parts.attention.kernels import short as short_module
from qkv.parts.attention.kernels.choose import choose_kernel
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.kernels.in_line import in_line
from qkv.parts.attention.kernels.short import short, suits_short
from qkv.parts.attention.visibility import Causal, Everything, Mask, NotPadding, Rule, SameDocument, Tokens, Window
from tests.parts.attention.kernels.compare import inputs

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
by_programs = pytest.mark.slow if INTERPRETED else pytest.mark.gpu
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = [torch.float32] if INTERPRETED else [torch.bfloat16, torch.float16]
NEAR = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}  # weights and outputs are rounded


def parts_of(b: int, heads: int, shared: int, slots: int, width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Views of one joined product [b s (h + 2 g) d], as an attention has them."""
    torch.manual_seed(0)
    joined = torch.randn(b, slots, heads + 2 * shared, width, device=DEVICE).to(dtype)
    return tuple(x.transpose(1, 2) for x in joined.split((heads, shared, shared), 2))


def assert_exact(found: Tensor, given: tuple[Tensor, ...], mask: Mask, scale: float | None = None) -> None:
    expected = exact(*(x.float() for x in given), mask, scale=scale)
    near = NEAR[found.dtype]
    torch.testing.assert_close(found.float(), expected, atol=near, rtol=near)
    assert found.transpose(1, 2).is_contiguous()  # what comes after reads tokens, all heads of each side by side


def padding(rows: int, slots: int) -> Tokens:
    """Rows with holes, and a last one in which nothing is to be seen."""
    documents = (torch.arange(slots) % torch.arange(2, 2 + rows)[:, None] != 1).long()
    documents[-1] = 0
    return Tokens(slots, documents=documents.to(DEVICE))


@by_programs
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", ["nothing", "future", "padding"])
@pytest.mark.parametrize(
    ("slots", "heads", "shared", "width"),
    [(1, 2, 2, 32), (2, 4, 1, 16), (9, 2, 2, 64), (40, 2, 1, 24), (64, 2, 2, 64), (100, 2, 1, 80), (128, 1, 1, 128),
     (197, 2, 2, 64), (224, 2, 1, 32), (257, 1, 1, 64)],
)  # fmt: skip
def test_short_rows_are_exact(slots: int, heads: int, shared: int, width: int, hidden: str, dtype: torch.dtype) -> None:
    from qkv.parts.attention.kernels import short_triton

    given = parts_of(2, heads, shared, slots, width, dtype)
    side = padding(2, slots) if hidden == "padding" else Tokens(slots)
    rule: Rule = {"nothing": Everything(), "future": Causal(), "padding": NotPadding()}[hidden]
    mask = Mask(rule, side, side, DEVICE)
    found = short_triton.attend_rows(*given, side.documents, causal=hidden == "future", scale=None)
    assert_exact(found, given, mask)
    if hidden == "padding":
        assert (found[-1] == 0).all()


@by_programs
@pytest.mark.parametrize("scale", [0.3, -0.3])
@pytest.mark.parametrize(("queries", "keys"), [(1, 197), (20, 130), (197, 5)])
def test_queries_and_keys_that_differ_in_number(queries: int, keys: int, scale: float) -> None:
    from qkv.parts.attention.kernels import short_triton

    q = parts_of(2, 2, 1, queries, 32, DTYPES[0])[0]
    k, v = parts_of(2, 2, 1, keys, 32, DTYPES[0])[1:]
    mask = Mask(Everything(), Tokens(queries), Tokens(keys), DEVICE)
    found = short_triton.attend_rows(q, k, v, None, causal=False, scale=scale)
    assert_exact(found, (q, k, v), mask, scale)


@by_programs
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rule", [SameDocument(), Causal() & SameDocument()], ids=str)
@pytest.mark.parametrize(
    ("lengths", "heads", "shared", "width"),
    [((1,), 1, 1, 16), ((5, 5, 3, 1, 40, 9, 70, 64, 13), 4, 2, 24), ((130, 1, 255), 2, 2, 64), ((3,) * 50, 2, 1, 128)],
)
def test_short_documents_are_exact(
    lengths: tuple[int, ...], heads: int, shared: int, width: int, rule: Rule, dtype: torch.dtype
) -> None:
    from qkv.parts.attention.kernels import short_triton

    line = InLine.of(lengths, DEVICE)
    assert line.documents is not None
    assert line.bounds is not None
    given = parts_of(1, heads, shared, line.size, width, dtype)
    causal = rule != SameDocument()
    found = short_triton.attend_in_line(*given, line.documents, line.bounds, causal=causal, scale=None)
    assert_exact(found, given, Mask(rule, line, line, DEVICE))


@pytest.mark.parametrize("keys", range(1, short_module.MOST + 1, 15))
@pytest.mark.skipif(find_spec("triton") is None, reason="launches are Triton's")
def test_pieces_hold_all_keys_and_less_than_a_half_more(keys: int) -> None:
    from qkv.parts.attention.kernels.short_triton import pieces_of

    assert keys <= sum(pieces_of(keys)) < max(17, 1.5 * keys)


@pytest.mark.parametrize(
    ("slots", "width", "rule", "suits"),
    [
        (197, 64, Everything(), True),
        (197, 64, Causal(), True),
        (197, 64, Window(9), False),
        (short_module.MOST, 64, Everything(), True),
        (short_module.MOST + 1, 64, Everything(), False),
        (short_module.MOST_PADDED, 64, NotPadding(), True),
        (short_module.MOST_PADDED + 1, 64, NotPadding(), False),
        (short_module.MOST_WIDE, 80, Everything(), True),
        (short_module.MOST_WIDE + 1, 80, Everything(), False),
        (64, 256, Everything(), False),
    ],
)
def test_short_rows_that_are_read_go_there(
    monkeypatch: pytest.MonkeyPatch, slots: int, width: int, rule: Rule, suits: bool
) -> None:
    monkeypatch.setattr(short_module, "runs_our_own", lambda x: True)
    q = torch.empty(512, 12, slots, width, dtype=torch.bfloat16, device="meta")
    documents = torch.ones(1, slots, dtype=torch.long) if isinstance(rule, NotPadding) else None
    side = Tokens(slots, documents=documents)
    mask = Mask(rule, side, side, "meta")
    with torch.no_grad():
        assert suits_short(q, q, mask) is suits
        assert (choose_kernel(q, q, mask, 0.0, record=False) is short) is suits
        assert choose_kernel(q, q, mask, 0.1, record=False) is not short
        assert choose_kernel(q, q, mask, 0.0, record=True) is exact
        assert choose_kernel(q, q, mask, 0.0, False, torch.zeros(1, 1, 1, 1)) is not short
        assert not suits_short(q.float(), q.float(), mask)
        assert not suits_short(q[:1], q[:1], mask)  # too few to be worth a launch


def test_what_programs_are_not_made_for_is_fused() -> None:
    given = inputs(9, 9)
    with torch.no_grad():
        assert choose_kernel(given.q, given.k, None, 0.0, record=False) is fused
    mask = Mask(Causal(), Tokens(9), Tokens(9), "cpu")
    assert torch.equal(short(given.q, given.k, given.v, mask), fused(given.q, given.k, given.v, mask))
    with pytest.raises(QkvError, match="exact kernel"):
        short(given.q, given.k, given.v, record=lambda weights: None)


@pytest.mark.gpu
@pytest.mark.parametrize("rule", [Everything(), Causal(), NotPadding()], ids=str)
def test_the_kernel_agrees_on_a_gpu(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
    monkeypatch.setattr(short_module, "ENOUGH", 1)
    given = parts_of(2, 4, 2, 197, 64, torch.bfloat16)
    side = padding(2, 197) if isinstance(rule, NotPadding) else Tokens(197)
    mask = Mask(rule, side, side, "cuda")
    with torch.inference_mode():
        assert choose_kernel(given[0], given[1], mask, 0.0, record=False) is short
        assert_exact(short(*given, mask), given, mask)


@pytest.mark.gpu
def test_short_documents_go_to_programs_and_long_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_line_module, "ENOUGH", 1)
    called = []
    monkeypatch.setattr(
        in_line_module, "_by_flash_attention", lambda *given: called.append(given) or torch.empty(1, device="cuda")
    )
    for longest in (in_line_module.SHORT, in_line_module.SHORT + 1):
        line = InLine.of((3, longest, 40), "cuda")
        given = parts_of(1, 4, 2, line.size, 64, torch.bfloat16)
        mask = Mask(SameDocument(), line, line, torch.device("cuda"))
        with torch.no_grad():
            found = in_line(*given, mask)
        if not called:
            assert_exact(found, given, mask)
    assert len(called) == 1
    in_line(*given, mask)
    assert len(called) == 2
