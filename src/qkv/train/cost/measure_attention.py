"""How fast a device's attentions are, forward and back, and how much memory they take for themselves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from qkv.parts.attention.kernels.flash import flash
from qkv.parts.attention.kernels.long import long
from qkv.parts.attention.kernels.lsh import LSHKernel
from qkv.parts.attention.kernels.short import short
from qkv.parts.attention.visibility import Causal, Everything, Mask, Tokens
from qkv.parts.programs import has_copy_engine

if TYPE_CHECKING:
    from qkv.train.cost.measure import Clock, Extent

TOKENS = 16384  # in all rows together
LONGEST = {"float32": 4096}  # beyond which a figure of float32 takes too long
WIDTHS = (64, 128)
SHORT = (128, 197)  # slots of rows that have programs of their own; the second is a picture's
LONG = (512, 1024)  # and of longer ones
DROPOUT = 0.1
_BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def measure_attentions(clock: Clock, extent: Extent) -> Iterator[tuple[Any, ...]]:
    """AttentionShape's fields, seconds, and bytes that the kernel takes for each number of the queries."""
    if clock.place.type != "cuda":
        for causal in (True, False):
            for length in extent.lengths:
                rows = max(1, extent.lengths[-1] // length)
                yield from _both_ways(clock, "cpu", torch.float32, 4 * rows, length, 64, causal, False, _plain)
        return
    for name, dtype, masked, width in (
        *(("cudnn", torch.bfloat16, False, width) for width in WIDTHS),
        *(("flash", torch.bfloat16, False, width) for width in WIDTHS),
        *(("efficient", torch.float32, False, width) for width in WIDTHS),
        ("cudnn", torch.bfloat16, True, WIDTHS[0]),
        ("efficient", torch.bfloat16, True, WIDTHS[0]),
        ("efficient", torch.float32, True, WIDTHS[0]),
    ):
        for length in extent.lengths:
            if length > LONGEST.get(str(dtype).removeprefix("torch."), 1 << 30) or (masked and length > 2048):
                continue
            heads = TOKENS // length * (768 // width)
            for causal in (False,) if masked else (True, False):
                for dropout in (0.0, DROPOUT) if width == WIDTHS[0] and length <= 2048 else (0.0,):
                    attend = _by(name, dropout)
                    yield from _both_ways(clock, name, dtype, heads, length, width, causal, masked, attend, dropout)
    yield from _our_own(clock)
    yield from _hashed(clock, LSHKernel(chunk=64, rounds=4), 8, TOKENS)


def _hashed(clock: Clock, kernel: LSHKernel, heads: int, length: int) -> Iterator[tuple[Any, ...]]:
    """Hashed attention with all its programs, told by what its chunks compute."""
    tokens = Tokens(length)
    mask = Mask(Causal(), tokens, tokens, clock.place)
    dtype = torch.bfloat16 if clock.place.type == "cuda" else torch.float32
    q, v = (torch.randn(1, heads, length, 64, device=clock.place, dtype=dtype).requires_grad_() for _ in range(2))
    with torch.no_grad():
        forward = clock.seconds(lambda: kernel(q, None, v, mask))
    made = kernel(q, None, v, mask)
    above = torch.randn_like(made)
    back = clock.seconds(lambda: torch.autograd.grad(made, (q, v), above, retain_graph=True))
    chunks = heads * kernel.rounds * (length // kernel.chunk)
    rest = True, False, False, chunks, kernel.chunk, kernel.chunk * (1 + kernel.before + kernel.after), 64
    name = str(dtype).removeprefix("torch.")
    yield "chunks", name, False, *rest, forward, 0.0
    yield "chunks", name, True, *rest, back, 0.0


def _our_own(clock: Clock) -> Iterator[tuple[Any, ...]]:
    """Our tiles under a look-ahead mask, and our programs for short and long rows; of few sizes: all are compiled."""
    for width, length in ((64, 2048), (64, 8192), (128, 8192)):
        tokens = Tokens(length)
        mask = Mask(Causal(), tokens, tokens, clock.place)

        def call(q: Tensor, k: Tensor, v: Tensor, _: bool, __: Tensor | None, mask: Mask = mask) -> Tensor:
            return flash(q, k, v, mask)

        heads = TOKENS // length * (768 // width)
        yield from _both_ways(clock, "tiles", torch.bfloat16, heads, length, width, True, False, call)
    for length in SHORT if has_copy_engine(clock.place) else ():
        heads = TOKENS // length * (768 // 64)
        yield from _both_ways(clock, "short", torch.bfloat16, heads, length, 64, False, False, _by_short)
    for length, causal in itertools.product(LONG, (True, False)) if has_copy_engine(clock.place) else ():
        heads = 2 * TOKENS // length * (768 // 64)  # so many that they fill a GPU, which has a head at a time
        yield from _both_ways(clock, "long", torch.bfloat16, heads, length, 64, causal, False, _by_long)


def _by_short(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None) -> Tensor:
    return short(q, k, v)


def _by_long(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None) -> Tensor:
    tokens = Tokens(q.shape[2])
    return long(q, k, v, Mask(Causal() if causal else Everything(), tokens, tokens, q.device))


Attend = Callable[[Tensor, Tensor, Tensor, bool, Tensor | None], Tensor]


def _plain(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)


def _by(name: str, dropout: float) -> Attend:
    def call(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None) -> Tensor:
        with sdpa_kernel(_BACKENDS[name]):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, dropout_p=dropout)

    return call


def _both_ways(
    clock: Clock, name: str, dtype: torch.dtype, heads: int, length: int, width: int, causal: bool, masked: bool,
    attend: Attend, dropout: float = 0.0,
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    each = max(1, 768 // width) if heads % max(1, 768 // width) == 0 else heads
    joined = torch.randn(heads // each, length, 3, each, width, device=clock.place, dtype=dtype)  # as projections lie
    q, k, v = (x.transpose(1, 2).requires_grad_() for x in joined.unbind(2))
    mask = torch.zeros(heads // each, 1, length, length, device=clock.place, dtype=dtype) if masked else None
    mask = None if mask is None else mask.expand(-1, each, -1, -1)
    try:
        with torch.no_grad():
            forward = clock.seconds(lambda: attend(q, k, v, causal, mask))
        made = attend(q, k, v, causal, mask)
    except RuntimeError:  # a kernel that this machine does not have
        return
    above = torch.randn_like(made)

    def back() -> object:
        return torch.autograd.grad(made, (q, k, v), above, retain_graph=True)

    shape = name, str(dtype).removeprefix("torch.")
    rest = causal, masked, dropout > 0, heads, length, length, width
    taken = _taken_beside(clock.place, back) / q.numel()
    yield *shape, False, *rest, forward, 0.0
    yield *shape, True, *rest, clock.seconds(back), max(0.0, taken - 3 * q.element_size())


def _taken_beside(place: torch.device, call: Callable[[], object]) -> int:
    """The most that a call holds beyond what was held before it."""
    if place.type != "cuda":
        return 0
    call()
    torch.cuda.synchronize(place)
    before = torch.cuda.memory_allocated(place)
    torch.cuda.reset_peak_memory_stats(place)
    call()
    torch.cuda.synchronize(place)
    return torch.cuda.max_memory_allocated(place) - before
