"""Multi-head attention: the mixer through which tokens read each other. [vaswani2017 §3.2.2]

Shapes: b rows, s slots of the stream, m memory rows (b a multiple of m), h query heads, g key/value heads,
q queries, k keys, d width of a query and key, e width of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypedDict, Unpack

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.activated_map import attended_map, fits_attended
from qkv.parts.attention.kernels.choose import Kernel, choose_kernel
from qkv.parts.attention.kernels.learned import NARROW, attend_joined, suits_learning
from qkv.parts.attention.stretches import Stretches, by_stretches
from qkv.parts.attention.visibility import Everything, Mask, Rule, Tokens
from qkv.parts.context import Context, Ledger
from qkv.parts.linear import JoinedLinear
from qkv.parts.norm import RMSNorm
from qkv.parts.position import Rotary
from qkv.parts.precision import narrow_type
from qkv.parts.programs import is_itself
from qkv.parts.spec import Depends, Known, anything


class HeadOptions(TypedDict, total=False):
    """What every multi-head attention may be told besides its width and number of heads."""

    key_value_heads: int | None  # None: as many as query heads
    key_width: int | None  # None: width / heads
    value_width: int | None  # None: as wide as a key
    bias: bool
    out_bias: bool | None  # of W^O; None: as `bias`
    key_bias: bool | None  # of W^K, which changes no attention; None: as `bias`
    dropout: float  # on the attention weights
    scale: float | None  # None: 1/√key_width
    visibility: Rule | None  # None: everything; the context narrows it further
    kernel: Kernel | None  # None: chosen for the device, the rule and the need


class MultiHead(nn.Module):
    """What self- and cross-attention share: heads side by side, a kernel, and `W^O` as one matrix.

    Key width, value width and the number of key/value heads are independent; fewer key/value heads than query heads
    give grouped queries [ainslie2023 §2.2], a single one multi-query attention [shazeer2019 §3].
    """

    depends_on = Depends(
        "heads", "key_value_heads", "key_width", "value_width", "visibility", "out",
        scale=None, dropout=0.0, kernel=None, unread=("query_size", "key_size", "value_size", "biases"),
    )  # fmt: skip

    keeps = True  # whether a cache can keep keys and values of earlier steps
    heeds_marks = False  # whether marked tokens are treated in a way of their own

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_value_heads: int | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
        bias: bool = True,
        out_bias: bool | None = None,
        key_bias: bool | None = None,
        dropout: float = 0.0,
        scale: float | None = None,
        visibility: Rule | None = None,
        kernel: Kernel | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.key_value_heads = heads, key_value_heads or heads
        if heads % self.key_value_heads:
            raise QkvError(f"{heads} query heads cannot share {self.key_value_heads} key/value heads evenly.")
        if key_width is None and width % heads:
            raise QkvError(f"Width {width} does not divide into {heads} heads: give key_width and value_width.")
        self.key_width = key_width or width // heads
        self.value_width = value_width or self.key_width
        self.query_size = heads * self.key_width
        self.key_size = self.key_value_heads * self.key_width
        self.value_size = self.key_value_heads * self.value_width
        self.scale, self.dropout, self.kernel = scale, dropout, kernel
        with_key = bias if key_bias is None else key_bias
        self.biases = tuple(name for name in ("query", "key", "value") if (with_key if name == "key" else bias))
        self.visibility = visibility or Everything()
        self.out = nn.Linear(heads * self.value_width, width, bias=bias if out_bias is None else out_bias)
        nn.init.xavier_uniform_(self.out.weight)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, ctx: Context, beams: int = 1
    ) -> Tensor:
        """All heads at once, then `W^O`. q [b h q d], k [b g k d], v [b g k e] → [b q width]"""
        return self.out(self.heads_read(q, k, v, mask, bias, ctx, beams))

    def heads_read(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, ctx: Context, beams: int = 1
    ) -> Tensor:
        """What the heads read, side by side. [b q h·e]

        Where the queries of several rows (`beams`) stand in line, the ledger still gets the weights row by row.
        """
        dropout = self.dropout if self.training else 0.0
        record = None
        if ctx.ledger is not None and ctx.ledger.wants("weights"):
            record = partial(self._record, ctx.ledger, beams)
        if isinstance(mask.query, Stretches) and record is None:
            o = by_stretches(self._read, q, k, v, mask, bias, dropout)
        else:
            o = self._read(q, k, v, mask, bias, dropout, record)
        return o.transpose(1, 2).flatten(2)

    def _read(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        bias: Tensor | None,
        dropout: float,
        record: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """[b h q e]"""
        kernel = self.kernel or choose_kernel(q, k, mask, dropout, record is not None, bias)
        return kernel(q, k, v, mask, bias, scale=self.scale, dropout=dropout, record=record)

    def _record(self, ledger: Ledger, beams: int, weights: Tensor) -> None:
        """weights [m h n·s k] of n beams are those of m·n rows. [m·n h s k]"""
        ledger.write(self, "weights", weights.unflatten(2, (beams, -1)).transpose(1, 2).flatten(0, 1))

    def extra_repr(self) -> str:
        shared = "" if self.key_value_heads == self.heads else f", {self.key_value_heads} key/value heads"
        seen = "" if isinstance(self.visibility, Everything) else f", sees {self.visibility}"
        return f"{self.heads} heads × {self.key_width}{shared}{seen}"


class Attention(MultiHead):
    """Self-attention: queries, keys and values all come from the stream.

    Where the context has position vectors, they are added to what queries and keys are made of. [carion2020 §A.3]
    """

    depends_on = MultiHead.depends_on.also("project", query_norm=None, key_norm=None, rotary=None)

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        query_norm: RMSNorm | None = None,
        key_norm: RMSNorm | None = None,
        rotary: Rotary | None = None,
        **options: Unpack[HeadOptions],
    ) -> None:

        super().__init__(width, heads, **options)
        sizes = {"query": self.query_size, "key": self.key_size, "value": self.value_size}
        self.project = JoinedLinear(width, sizes, bias=self.biases)
        self.query_norm, self.key_norm, self.rotary = query_norm, key_norm, rotary

    def projected(self, x: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [b h s d], keys [b g s d] and values [b g s e] of the stream, turned by their positions."""
        placed = ctx.position_vectors
        return self._in_heads(self.project(x) if placed is None else self.project.with_last_of(x + placed, x), ctx)

    def _in_heads(self, maps: tuple[Tensor, ...], ctx: Context) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self._normed(maps)
        if self.rotary is not None:
            positions = ctx.position_ids(q.device)
            q, k = self.rotary(q, positions), self.rotary(k, positions)
        return q, k, v

    def _normed(self, maps: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """In heads, each query and key of a head normed by itself. [yang2025 §2]"""
        q, k, v = maps
        q, k = q.unflatten(-1, (self.heads, -1)), k.unflatten(-1, (self.key_value_heads, -1))
        q = q if self.query_norm is None else self.query_norm(q)
        k = k if self.key_norm is None else self.key_norm(k)
        return q.transpose(1, 2), k.transpose(1, 2), heads_of(v, self.key_value_heads)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.out(self.hidden(x, ctx))

    def hidden(self, x: Tensor, ctx: Context) -> Tensor:
        """All but the last product: what `W^O` is given. [b s h·e]"""
        if self._reads_joined(x, ctx):
            mask = ctx.mask(self.visibility, ctx.tokens, ctx.tokens, x.device)
            scale = self.key_width**-0.5 if self.scale is None else self.scale
            if self._learns(x):
                shape = len(x), self.heads, x.shape[1], self.key_width
                if narrow_type(x) in NARROW and suits_learning(x, shape, x.shape[1], mask):
                    return attend_joined(*self.project.with_bias_apart(x), self.heads, mask, scale)
            elif mask.flag == "all" and self.project.is_plain():
                matrix = self.project.matrix()
                if fits_attended(x, matrix, self.heads):
                    return attended_map(x, matrix, self.project.whole_bias(), scale)
        return self._hidden_of_heads(*self.projected(x, ctx), ctx)

    def hidden_of_maps(self, maps: tuple[Tensor, ...], ctx: Context) -> Tensor:
        """The same, of what `project` has made of the stream. [b s h·d], [b s g·d], [b s g·e] → [b s h·e]"""
        return self._hidden_of_heads(*self._in_heads(maps, ctx), ctx)

    def _hidden_of_heads(self, q: Tensor, k: Tensor, v: Tensor, ctx: Context) -> Tensor:
        keys = ctx.tokens
        if ctx.cache is not None:
            k, v = ctx.cache.extend(self, k, v)
            keys = ctx.cache.keys(ctx.tokens)
        return self.heads_read(q, k, v, ctx.mask(self.visibility, ctx.tokens, keys, q.device), ctx.bias, ctx)

    def _reads_joined(self, x: Tensor, ctx: Context) -> bool:
        """Whether queries, keys and values are attended to as their one product made them."""
        # A compiler asks of attributes one by one.
        by_content = self.kernel is None and self.rotary is None
        if not by_content or (self.training and self.dropout):
            return False
        if not torch.compiler.is_compiling() and BY_CONTENT.refusal(self) is not None:
            return False
        if self.query_norm is not None or self.key_norm is not None:
            return False
        if ctx.cache is not None or ctx.bias is not None or ctx.position_vectors is not None:
            return False
        recorded = ctx.ledger is not None and ctx.ledger.wants("weights")
        plain = type(ctx.tokens) is Tokens and ctx.tokens.size == x.shape[1]
        if recorded or not plain or not _is_joined(self.project) or (self.scale is not None and self.scale <= 0):
            return False
        return self.key_value_heads == self.heads and self.value_width == self.key_width

    def _learns(self, x: Tensor) -> bool:
        if not torch.is_grad_enabled():
            return False
        return x.requires_grad or any(each.requires_grad for each in self.project.parameters())

    def hidden_of_first(self, x: Tensor, ctx: Context, count: int) -> Tensor:
        """The same for the first `count` slots of each row, where neither positions nor a bias play a part."""
        q, k, v = self._normed(self.project.with_first_of(x[:, :count], x))
        mask = ctx.mask(self.visibility, ctx.tokens.part(0, count), ctx.tokens, x.device)
        return self.heads_read(q, k, v, mask, None, ctx)


# Attention whose scores depend on queries and keys as their maps gave them, and on nothing else.
BY_CONTENT = Known(
    Attention, "heads key_value_heads key_width value_width scale dropout project out", visibility=anything
)


class CrossAttention(MultiHead):
    """Attention of the stream to a memory, such as an encoder's output. [vaswani2017 §3.2.3]

    A memory row may serve several rows of the stream (the beams of one sentence): its keys are computed and kept once.
    """

    depends_on = MultiHead.depends_on.also("query", "project")

    def __init__(
        self, width: int, heads: int, *, memory_width: int | None = None, **options: Unpack[HeadOptions]
    ) -> None:
        super().__init__(width, heads, **options)
        self.query = nn.Linear(width, self.query_size, bias="query" in self.biases)
        nn.init.xavier_uniform_(self.query.weight)
        sizes = {"key": self.key_size, "value": self.value_size}
        self.project = JoinedLinear(memory_width or width, sizes, bias=self.biases)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        memory = ctx.memory
        if memory is None:
            raise QkvError("Cross-attention needs a memory: give Context(memory=...).")
        if min(len(x), len(memory)) == 0 or len(x) % len(memory):
            raise QkvError(f"{len(x)} rows cannot share {len(memory)} memory rows evenly.")

        k, v = self.of_memory(ctx)
        beams, slots = len(x) // len(memory), x.shape[1]
        if ctx.position_vectors is not None:
            x = x + ctx.position_vectors
        queries = ctx.tokens
        if beams > 1:
            # Rows that read one memory row stand in line as its queries, so the memory is never copied.
            if (self.visibility & ctx.visibility).reads_query:
                raise QkvError("Several rows can share a memory row only if all of them see the same of it.")
            x, queries = x.reshape(len(memory), beams * slots, -1), Tokens(beams * slots)  # [m n·s width]
        q = heads_of(self.query(x), self.heads)
        mask = ctx.mask(self.visibility, queries, ctx.memory_tokens or Tokens(memory.shape[1]), x.device)
        return self.attend(q, k, v, mask, None, ctx, beams).reshape(len(memory) * beams, slots, -1)

    def of_memory(self, ctx: Context) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory, kept where there is a cache. [m g k d] [m g k e]"""
        return self.read_memory(ctx) if ctx.cache is None else ctx.cache.of_memory(self, lambda: self.read_memory(ctx))

    def read_memory(self, ctx: Context) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory, made anew. [m g k d] [m g k e]"""
        memory, placed = ctx.memory, ctx.memory_position_vectors
        assert memory is not None
        k, v = self.project(memory) if placed is None else self.project.with_last_of(memory + placed, memory)
        return heads_of(k, self.key_value_heads), heads_of(v, self.key_value_heads)


def _is_joined(project: nn.Module) -> bool:
    return isinstance(project, JoinedLinear) and is_itself(project)


def heads_of(x: Tensor, heads: int) -> Tensor:
    """[b s h·d] → [b h s d]"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)
