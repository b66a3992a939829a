"""Self-attention whose queries and keys are one projection, as hashing by direction wants it. [kitaev2020 §2]

Shapes: b rows, s slots, h heads, d width of a head.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.attention.attention import HeadOptions, MultiHead, heads_of
from qkv.parts.attention.kernels.lsh import LSHKernel, unit_keys
from qkv.parts.context import Context
from qkv.parts.linear import JoinedLinear
from qkv.parts.position import Rotary


class SharedAttention(MultiHead):
    """Keys are the queries made unit vectors: k = q / |q|. Scores are q·k, without a further scale."""

    depends_on = MultiHead.depends_on.also("project", rotary=None)

    keeps = False  # who is read follows from all tokens of a row, sorted anew with every one that comes

    def __init__(self, width: int, heads: int, *, rotary: Rotary | None = None, **options: Unpack[HeadOptions]) -> None:
        options.setdefault("scale", 1.0)
        super().__init__(width, heads, **options)
        if self.key_value_heads != self.heads:
            raise QkvError("Shared queries and keys have as many key heads as query heads.")
        sizes = {"query": self.query_size, "value": self.value_size}
        self.project = JoinedLinear(width, sizes, bias=tuple(name for name in self.biases if name in sizes))
        self.rotary = rotary

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.cache is not None:
            raise QkvError("Hashed attention sorts whole rows anew for every token: decode it without a cache.")
        q, v = (heads_of(part, self.heads) for part in self.project(x))  # [b h s d] each
        if self.rotary is not None:  # which keeps lengths, so that keys made of turned queries are turned unit vectors
            q = self.rotary(q, ctx.position_ids(x.device))
        k = None if isinstance(self.kernel, LSHKernel) else unit_keys(q)  # that kernel makes them itself
        mask = ctx.mask(self.visibility, ctx.tokens, ctx.tokens, x.device)
        return self.attend(q, k, v, mask, ctx.bias, ctx)  # type: ignore[arg-type]
