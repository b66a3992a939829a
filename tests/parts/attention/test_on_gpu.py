"""The same comparisons on a GPU: torch's CUDA kernels, our own programs, and a whole attention compiled.

pytest -m gpu tests/parts
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from qkv.parts.attention import attention as attentions
from qkv.parts.attention.attention import Attention, CrossAttention
from qkv.parts.attention.cache import Cache, PreallocatedCache
from qkv.parts.attention.kernels.choose import Kernel, choose_kernel
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.flash import flash
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.kernels.lsh import LSHKernel
from qkv.parts.attention.visibility import Causal, Chunks, Everything, Mask, NotPadding, SameDocument, Tokens, Window
from qkv.parts.context import Context
from qkv.parts.position import Rotary, rotary_rates
from tests.parts.attention.cases import LENGTHS, SITUATIONS, documents, mask
from tests.parts.attention.kernels.compare import Inputs, answers, assert_same, exact_in_float32, inputs, with_far_bias
from tests.parts.attention.test_factors import PATTERNS

pytestmark = pytest.mark.gpu

# float32 products may be summed in another order and, in torch's memory-efficient kernel, in parts of TF32.
FULL = {"atol": 2e-5, "rtol": 1e-4}
# A rounding to bfloat16 is up to 2⁻⁹ ≈ 0.2%; scores, weights and outputs are rounded in turn.
HALF = {"atol": 0.04, "rtol": 0.04}


ROWS_OF_128: dict[str, tuple[int, Context]] = {
    "plain": (128, Context(tokens=Tokens(128))),
    "of other lengths": (120, Context(tokens=Tokens(120))),
    "padded": (128, Context(tokens=Tokens.padded(torch.full((40,), 99), 128), visibility=NotPadding())),
    "causal": (128, Context(tokens=Tokens(128), visibility=Causal())),
}


@pytest.mark.parametrize("name", ROWS_OF_128)
@torch.no_grad()
def test_rows_of_a_tile_are_attended_to_where_they_are_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a GPU with warpgroups")
    taken = []

    def noted(x: Tensor, *given: object) -> Tensor:
        taken.append(len(x))
        return plain(x, *given)  # type: ignore[arg-type]

    plain = attentions.attended_map
    monkeypatch.setattr(attentions, "attended_map", noted)
    torch.manual_seed(0)
    slots, ctx = ROWS_OF_128[name]
    tokens = ctx.tokens if ctx.tokens.documents is None else Tokens(slots, documents=ctx.tokens.documents.cuda())
    attention, x = Attention(768, 12, key_bias=False).cuda().eval(), torch.randn(40, slots, 768, device="cuda")
    expected = attention.double()(x.double(), Context(tokens=tokens, visibility=ctx.visibility))
    found = attention.bfloat16()(x.bfloat16(), Context(tokens=tokens, visibility=ctx.visibility))
    assert taken == ([40] if name == "plain" else [])
    torch.testing.assert_close(found.double(), expected, **HALF)


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    """A compiled function keeps a few variants only; every test starts with none."""
    torch._dynamo.reset()


def compare(kernel: Kernel, given: Inputs, m: Mask, scale: float | None = None) -> None:
    """Outputs and gradients as those of `exact`; exact zeros for a query that sees no key."""
    found, expected = answers(kernel, given, m, scale), answers(exact, given, m, scale)
    assert_same(found, expected, **(FULL if given.q.dtype == torch.float32 else HALF))
    rows, _, queries, _ = given.q.shape
    hidden = ~m.dense.any(-1).expand(rows, 1, queries)[:, 0]  # [b q]
    assert (found["o"].transpose(1, 2)[hidden] == 0).all()
    assert (found["gradient of q"].transpose(1, 2)[hidden] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("size", LENGTHS)
@pytest.mark.parametrize("name", SITUATIONS)
def test_fused_is_exact(name: str, size: int, bias: bool, dtype: torch.dtype) -> None:
    given = inputs(size, size, width=16, value_width=16, bias=bias, dtype=dtype, device="cuda")
    compare(fused, given, mask(SITUATIONS[name], size, "cuda"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("size", [1, 9, 128, 300])
@pytest.mark.parametrize("name", SITUATIONS)
def test_flash_is_exact(name: str, size: int, dtype: torch.dtype) -> None:
    given = inputs(size, size, width=16, value_width=16, bias=size == 300, dtype=dtype, device="cuda")
    compare(flash, given, mask(SITUATIONS[name], size, "cuda"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("width", "value_width"), [(8, 8), (24, 40), (64, 64), (80, 80), (128, 128), (256, 256)])
def test_flash_is_exact_at_any_width(width: int, value_width: int, dtype: torch.dtype) -> None:
    """In whole tiles, which need no look at their ends, and in others."""
    for size in (256, 260):
        given = inputs(size, size, width=width, value_width=value_width, key_value_heads=2, dtype=dtype, device="cuda")
        compare(flash, given, mask(SITUATIONS["causal"], size, "cuda"))


@pytest.mark.parametrize("kernel", [fused, flash])
@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
@pytest.mark.parametrize("name", ["everything", "causal", "causal, padded left"])
def test_a_wide_bias_of_narrow_queries_is_not_rounded(name: str, autocast: bool, kernel: Kernel) -> None:
    given = with_far_bias(inputs(33, 33, width=16, value_width=16, dtype=torch.bfloat16, device="cuda"))
    m = mask(SITUATIONS[name], 33, "cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        found = answers(kernel, given, m)
    assert_same(found, exact_in_float32(given, m), atol=0.01, rtol=0.01)


@pytest.mark.parametrize(
    ("kernel", "key_value_heads", "bias", "name"),
    [
        *((fused, heads, bias, name) for heads in (1, 2) for bias in (False, True) for name in ("causal", "packed")),
        (flash, 1, False, "causal"),
        (flash, 2, True, "causal, padded left"),
    ],
)
def test_shared_keys_and_wider_values(kernel: Kernel, key_value_heads: int, bias: bool, name: str) -> None:
    given = inputs(65, 65, key_value_heads=key_value_heads, width=16, value_width=32, bias=bias, device="cuda")
    compare(kernel, given, mask(SITUATIONS[name], 65, "cuda"), scale=0.2)


@pytest.mark.parametrize(
    ("kernel", "name", "sizes"),
    [
        *((fused, name, sizes) for name in ("causal", "window") for sizes in ((1, 8, 9), (3, 6, 9), (9, 0, 4))),
        (flash, "causal", (1, 8, 9)),
        (flash, "all but the near past", (130, 70, 200)),
    ],
)
def test_queries_and_keys_that_differ_in_number(kernel: Kernel, name: str, sizes: tuple[int, int, int]) -> None:
    queries, start, keys = sizes
    m = Mask(SITUATIONS[name].rule, Tokens(queries, start), Tokens(keys), "cuda")
    compare(kernel, inputs(queries, keys, width=16, value_width=16, device="cuda"), m)


def test_a_map_made_without_gradients_serves_training_too() -> None:
    given = inputs(200, 200, width=16, value_width=16, device="cuda")
    m = Mask(Causal() & Chunks(37), Tokens(200), Tokens(200), "cuda")
    with torch.inference_mode():
        flash(given.q, given.k, given.v, m)
    m = Mask(Causal() & Chunks(37), Tokens(200), Tokens(200), "cuda")
    compare(flash, given, m)


def test_long_masked_rows_go_to_flash_and_come_back_right() -> None:
    given = inputs(4200, 4200, heads=16, width=16, value_width=16, rows=1, device="cuda")
    m = Mask(Causal() & Window(64), Tokens(4200), Tokens(4200), "cuda")
    assert choose_kernel(given.q, given.k, m, 0.0, record=False) is flash
    compare(flash, given, m)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("size", [512, 700])
@pytest.mark.parametrize("name", PATTERNS)
def test_factors_joined_are_exact(name: str, size: int, dtype: torch.dtype) -> None:
    given = inputs(size, size, key_value_heads=2, width=16, value_width=16, dtype=dtype, device="cuda")
    compare(flash, given, Mask(PATTERNS[name], Tokens(size), Tokens(size), "cuda"))


def test_dropout_keeps_the_expectation() -> None:
    draws, given = 4000, inputs(3, 5, heads=1, width=16, value_width=16, rows=1, device="cuda")
    m = Mask(Causal(), Tokens(3, 2), Tokens(5), "cuda")
    q, k, v = (x.expand(draws, -1, -1, -1) for x in (given.q, given.k, given.v))
    expected = exact(given.q, given.k, given.v, m)[0]
    for kernel in (exact, fused):
        o = kernel(q, k, v, m, dropout=0.4)
        assert ((o.mean(0) - expected).abs() <= 6 * o.std(0) / draws**0.5 + 1e-5).all()


@pytest.mark.parametrize(
    ("size", "causal", "rounds", "lengths", "after"),
    [
        (64, True, 1, None, 0),
        (256, True, 3, None, 0),
        (250, True, 2, None, 0),
        (250, False, 2, [250, 77], 1),
        (250, True, 2, [250, 0], 0),
    ],
)
def test_hashed_attention_is_what_torch_ops_make_of_it(
    size: int, causal: bool, rounds: int, lengths: list[int] | None, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = Tokens(size) if lengths is None else Tokens.padded(torch.tensor(lengths).cuda(), size)
    rule = (Causal() if causal else Everything()) & (Everything() if lengths is None else NotPadding())
    m = Mask(rule, side, side, "cuda")
    q, v = torch.randn(2, 2, size, 24).cuda(), torch.randn(2, 2, size, 40).cuda()
    pull, found = torch.randn(2, 2, size, 40).cuda(), []
    for programs in (True, False):
        kernel = LSHKernel(chunk=16, rounds=rounds, after=after, seed=1)
        if not programs:
            monkeypatch.setattr(kernel, "_on_gpu", lambda *_: False)
        leaves = [x.clone().requires_grad_() for x in (q, q / q.norm(dim=-1, keepdim=True), v)]
        o = kernel(*leaves, m, scale=1.0)
        found.append((o.detach(), *torch.autograd.grad(o, leaves, pull)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


CONTEXTS: dict[str, Callable[[], Context]] = {
    "plain": lambda: Context(tokens=Tokens(70)),
    "padded": lambda: Context(tokens=Tokens.padded(torch.tensor([70, 33, 2]).cuda(), 70), visibility=NotPadding()),
    "packed": lambda: Context(tokens=Tokens(70, documents=documents("packed", 70).cuda()), visibility=SameDocument()),
}


@pytest.mark.parametrize("kernel", [exact, fused, flash])
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_whole_attention_compiles_into_one_graph(context: str, kernel: Kernel) -> None:
    mixer = Attention(
        32, 4, key_value_heads=2, visibility=Causal() & Window(9), rotary=Rotary(rotary_rates(8)), kernel=kernel
    ).cuda()
    x, pull = torch.randn(3, 70, 32).cuda(), torch.randn(3, 70, 32).cuda()

    def trained(module: Callable[[Tensor, Context], Tensor]) -> tuple[Tensor, Tensor]:
        mixer.zero_grad()
        y = module(x, CONTEXTS[context]())
        y.backward(pull)
        assert mixer.project.weight.grad is not None
        return y.detach(), mixer.project.weight.grad

    found = trained(torch.compile(mixer, fullgraph=True))
    mixer.kernel = exact
    for one, other in zip(found, trained(mixer), strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("make", [Cache, lambda: PreallocatedCache(12)], ids=["growing", "preallocated"])
@torch.no_grad()
def test_caches_and_shared_memories_work_there_too(make: Callable[[], Cache]) -> None:
    mixer, cross = Attention(32, 4, visibility=Causal()).cuda(), CrossAttention(32, 4).cuda()
    x, memory = torch.randn(4, 12, 32).cuda(), torch.randn(2, 7, 32).cuda()
    memory_tokens = Tokens.padded(torch.tensor([7, 3]).cuda(), 7)

    def answer(part: Tensor, start: int, cache: Cache | None) -> Tensor:
        tokens = Tokens(part.shape[1], start)
        ctx = Context(tokens=tokens, visibility=NotPadding(), memory=memory, memory_tokens=memory_tokens, cache=cache)
        y = cross(mixer(part, ctx), ctx)
        if cache is not None:
            cache.advance(tokens)
        return y

    cache = make()
    found = torch.cat([answer(part, 3 * i, cache) for i, part in enumerate(x.split(3, 1))], 1)
    torch.testing.assert_close(found, answer(x, 0, None), atol=2e-5, rtol=1e-4)
