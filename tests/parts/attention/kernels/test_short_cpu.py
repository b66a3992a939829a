"""Short rows on a CPU by our own program against exact attention in double precision."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.parts import cpu, cpu_steps, narrow_maps
from qkv.parts.attention.attention import Attention, heads_of
from qkv.parts.attention.in_line import InLine
from qkv.parts.attention.kernels import short_cpu
from qkv.parts.attention.kernels.choose import choose_kernel
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.kernels.in_line import in_line
from qkv.parts.attention.kernels.short import short
from qkv.parts.attention.visibility import Causal, Everything, Mask, NotPadding, SameDocument, Tokens
from qkv.parts.cpu_steps import Norms, RowNorm
from qkv.parts.eight_bits import quantised
from qkv.parts.norm import LayerNorm, numbers_of
from qkv.parts.residual import PostNorm, PreNorm
from tests.models.small import perturb

pytestmark = pytest.mark.skipif(cpu.library() is None, reason="needs a C++ compiler that knows OpenMP")


@pytest.fixture(autouse=True)
def _any_is_enough(monkeypatch):
    monkeypatch.setattr(short_cpu, "ENOUGH", 1)
    monkeypatch.setattr(short_cpu, "LEAST_AT_A_TIME", 1)


def heads(b: int, s: int, h: int, g: int, d: int) -> tuple[Tensor, ...]:
    """As an attention makes them: views of one product. [b h s d] [b g s d] [b g s d]"""
    torch.manual_seed(s)
    joined = torch.randn(b, s, (h + 2 * g) * d)
    return tuple(x.unflatten(-1, (-1, d)).transpose(1, 2) for x in joined.split([h * d, g * d, g * d], -1))


def masks(s: int, lengths: list[int]) -> dict[str, Mask | None]:
    padded, whole = Tokens.padded(torch.tensor(lengths), s), Tokens(s)
    return {
        "none": None,
        "everything": Mask(Everything(), whole, whole, "cpu"),
        "padding": Mask(NotPadding(), padded, padded, "cpu"),
        "future": Mask(Causal(), whole, whole, "cpu"),
    }


@pytest.mark.parametrize("hidden", ["none", "everything", "padding", "future"])
@pytest.mark.parametrize(("s", "h", "g", "d"), [(1, 2, 2, 32), (9, 4, 2, 64), (64, 2, 1, 96), (75, 3, 3, 64)])
@torch.no_grad()
def test_rows_are_read_as_exactly(s, h, g, d, hidden):
    q, k, v = heads(3, s, h, g, d)
    mask = masks(s, [s, (s + 1) // 2, 0])[hidden]  # of the last nobody sees anything
    assert choose_kernel(q, k, mask, 0.0, record=False) is short
    for scale in (None, 0.3, 0.0, -0.3):
        found = short(q, k, v, mask, scale=scale)
        torch.testing.assert_close(
            found.double(), exact(q.double(), k.double(), v.double(), mask, scale=scale), atol=5e-6, rtol=1e-5
        )
    assert found.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("hidden", ["none", "padding", "future"])
@torch.no_grad()
def test_rows_of_half_precision_are_rounded_once(hidden):
    q, k, v = (x.bfloat16() for x in heads(3, 75, 4, 2, 64))
    mask = masks(75, [75, 38, 0])[hidden]
    assert choose_kernel(q, k, mask, 0.0, record=False) is short
    found, near = short(q, k, v, mask), exact(q.double(), k.double(), v.double(), mask)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), near, atol=1e-6, rtol=2**-8)
    apart = k.new_zeros(3, 2, 75, 65)[..., :64].copy_(k)  # rows of keys that begin at odd places
    assert torch.equal(short(q, apart, v, mask), found)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_documents_in_line_are_read_in_one_call(causal, dtype, monkeypatch):
    lengths, allowed = [33, 1, 7, 7, 64], {"atol": 5e-6, "rtol": 1e-5 if dtype == torch.float32 else 2**-8}
    line = InLine.of(lengths)
    q, k, v = (x.to(dtype) for x in heads(1, sum(lengths), 4, 2, 32))
    mask = Mask(Causal() & SameDocument() if causal else SameDocument(), line, line, "cpu")
    monkeypatch.setattr("qkv.parts.attention.kernels.in_line.fused", None)  # nobody else is asked
    assert choose_kernel(q, k, mask, 0.0, record=False) is in_line
    found = in_line(q, k, v, mask)
    torch.testing.assert_close(found.double(), exact(q.double(), k.double(), v.double(), mask), **allowed)
    first = 0
    for length in lengths:  # each as alone
        alone = (x[:, :, first : first + length] for x in (q, k, v))
        tokens = Tokens(length)
        rule = Mask(Causal() if causal else Everything(), tokens, tokens, "cpu")
        assert torch.equal(short(*alone, rule), found[:, :, first : first + length])
        first += length


@torch.no_grad()
def test_few_queries_read_many_keys():
    q, k, v = heads(2, 40, 2, 2, 32)
    q = q[:, :, :3]
    torch.testing.assert_close(short(q, k, v), exact(q, k, v), atol=5e-6, rtol=1e-5)


@torch.no_grad()
def test_scores_may_be_large_and_no_numbers_stay_none():
    q, k, v = heads(1, 12, 2, 2, 32)
    torch.testing.assert_close(short(q * 100, k, v), exact(q * 100, k, v), atol=5e-5, rtol=1e-5)
    q[0, 1, 4, 7] = torch.nan
    found = short(q, k, v)
    assert bool(found[0, 1, 4].isnan().all())
    assert int(found.isnan().any(-1).sum()) == 1


def test_what_learns_is_narrow_or_odd_takes_another_way():
    q, k, _ = heads(2, 8, 2, 2, 32)
    assert choose_kernel(q, k, None, 0.0, record=False) is fused  # gradients may be asked for
    with torch.no_grad():
        assert choose_kernel(q.half(), k.half(), None, 0.0, record=False) is fused
        assert choose_kernel(q[..., :20], k[..., :20], None, 0.0, record=False) is fused
        assert choose_kernel(q, k, None, 0.0, record=False, bias=torch.zeros(1, 2, 8, 8)) is fused
        with torch.autocast("cpu", torch.bfloat16):
            assert choose_kernel(q, k, None, 0.0, record=False) is fused


def residual_step(g: int, scale: float, wiring: type[PreNorm | PostNorm]) -> tuple[nn.Module, Tensor]:
    """A residual step of 4 heads of 32, and a stream of 112 slots, 64 wide."""
    torch.manual_seed(g)
    attention = Attention(64, 4, key_value_heads=g, key_width=32, scale=scale)
    step = wiring(LayerNorm(64), attention).eval()
    perturb(step)
    return step, torch.randn(112, 64)


def by_parts(step: Any, x: Tensor, mask: Mask, precision: str, *, norm_first: bool) -> Tensor:
    """What `attention_step` does to x, attention in double precision of what is given in its precision. [b s d]

    In 8 bits maps round as they do; else they are in double precision, of weights and inputs in their precision.
    """
    attention, norm = step.mixer, step.norm
    inside, maps = torch.float32 if precision == "float32" else torch.bfloat16, torch.float32
    if precision != "int8":
        attention, norm, x, maps = deepcopy(attention).to(inside).double(), deepcopy(norm).double(), x.double(), inside
    given = norm(x, None) if norm_first else x
    q, k, v = attention.project(given.to(maps).to(x.dtype))
    q, k, v = (heads_of(each.to(inside).double(), each.shape[-1] // 32) for each in (q, k, v))
    o = exact(q, k, v, mask, scale=attention.scale).transpose(1, 2).flatten(2)
    y = x + attention.out(o.to(maps).to(x.dtype))
    return y if norm_first else norm(y, None)


OFF = {"float32": 2e-6, "bfloat16": 4e-3, "int8": 4e-3}  # of what a step does


@pytest.mark.parametrize("wiring", [PreNorm, PostNorm])
@pytest.mark.parametrize("hidden", ["nothing", "padding", "future", "others", "others and the future"])
@pytest.mark.parametrize(("g", "scale"), [(4, 0.2), (2, 0.0), (1, -0.1)])
@pytest.mark.parametrize("precision", OFF)
@torch.no_grad()
def test_all_of_an_attention_is_one_call(precision, g, scale, hidden, wiring, monkeypatch):
    monkeypatch.setattr(narrow_maps, "SMALL", 1)
    step, x = residual_step(g, scale, wiring)
    if precision != "int8":
        parts = step.mixer.project, step.mixer.out
        kind = getattr(torch, precision)
        maps = [cpu_steps.PackedMap(part.weight.to(kind), part.bias.to(kind)) for part in parts]
    else:
        step = quantised(step)
        maps = [step.mixer.project.together.map, step.mixer.out.map]
    whole, lengths = Tokens(16), [33, 1, 7, 7, 64]
    padded, line = Tokens.padded(torch.tensor([16, 9, 1, 0, 5, 16, 2]), 16), InLine.of(lengths)
    mask = {
        "nothing": Mask(Everything(), whole, whole, "cpu"),
        "padding": Mask(NotPadding(), padded, padded, "cpu"),
        "future": Mask(Causal(), whole, whole, "cpu"),
        "others": Mask(SameDocument(), line, line, "cpu"),
        "others and the future": Mask(Causal() & SameDocument(), line, line, "cpu"),
    }[hidden]
    x = x.view(7, 16, 64) if mask.query.size == 16 else x[None]
    norm = RowNorm(*numbers_of(step.norm))
    heads = 4, g, 32

    def done(x: Tensor, mask: Mask) -> Tensor:
        assert short_cpu.suits_stream(x, 32, mask)
        y = x.clone()
        norms = Norms(norm, None) if wiring is PreNorm else Norms(None, norm)
        step = short_cpu.attention_step(y, norms, *maps, heads, scale, mask)
        cpu_steps.do_steps([step], y, y)
        return y

    found, expected = done(x, mask), by_parts(step, x, mask, precision, norm_first=wiring is PreNorm)
    # Weights in bfloat16 are a 2⁻⁹ off, and what they read may so be rounded to another number.
    assert float((found - expected).norm()) < OFF[precision] * float((expected - x).norm())
    before = torch.get_num_threads()
    for threads in (1, 2, 7):  # rows are one thread's, or all threads'
        torch.set_num_threads(threads)
        again = done(x, mask)
        assert float((again - expected).norm()) < OFF[precision] * float((expected - x).norm())
        if precision == "int8":  # whole numbers have the same sum in any order
            torch.testing.assert_close(again, found, rtol=0, atol=0)
    torch.set_num_threads(before)
    if precision != "int8":
        return
    if mask.query is whole:
        torch.testing.assert_close(done(x[2:3], mask), found[2:3], rtol=0, atol=0)
    if mask.query is line:
        alone = Tokens(64)
        rule = Causal() if "future" in hidden else Everything()
        torch.testing.assert_close(done(x[:, -64:], Mask(rule, alone, alone, "cpu")), found[:, -64:], rtol=0, atol=0)


@torch.no_grad()
def test_what_is_no_number_stays_within_its_text():
    q, k, v = heads(2, 40, 2, 2, 32)
    expected = short(q, k, v, None)
    for odd in (torch.nan, torch.inf):
        broken = k.clone()
        broken[1, 0, 3, 5] = odd
        found = short(q, broken, v, None)
        assert torch.equal(found.isnan(), exact(q, broken, v).isnan())
        assert found[1, 0].isnan().any()
        for row, head in ((0, 0), (0, 1), (1, 1)):
            torch.testing.assert_close(found[row, head], expected[row, head], rtol=0, atol=0)
    lonely = [torch.full((1, 1, 1, 32), torch.nan), torch.ones(1, 1, 1, 32), torch.ones(1, 1, 1, 32)]
    assert short(*lonely, None).isnan().all()
