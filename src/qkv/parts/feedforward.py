"""Feed-forward: what each token does on its own. Mixers `(x [b s d], ctx) -> [b s d]`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError, nearest_or_all
from qkv.parts import activated_map
from qkv.parts.context import Context
from qkv.parts.linear import JoinedLinear
from qkv.parts.precision import widened
from qkv.parts.spec import Depends

Activation = Callable[[Tensor], Tensor]

relu: Activation = F.relu
silu: Activation = F.silu


def gelu(x: Tensor) -> Tensor:
    """x Φ(x), exactly. [hendrycks2016 §2]"""
    return F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """x Φ(x), approximated by a tanh. [hendrycks2016 §2]

    Compiled code has the same function as x σ(2u), for tanh u = 2 σ(2u) - 1: a compiler's tanh takes a GPU three times
    the instructions, more than reading and writing takes.
    """
    if not torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    wide = widened(x)
    twice = 1.5957691216057308 * (wide + 0.044715 * wide**3)  # 2u; √(8/π)
    return (wide * twice.sigmoid()).to(x.dtype)


def gelu_quick(x: Tensor) -> Tensor:
    """x σ(1.702 x), the other approximation. [hendrycks2016 §2]"""
    return x * (1.702 * x).sigmoid()


# By the names that saved configurations use.
ACTIVATIONS: dict[str, Activation] = {
    "relu": relu,
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "gelu_quick": gelu_quick,
    "tanh": torch.tanh,
}


def find_activation(name: str) -> Activation:
    if name not in ACTIVATIONS:
        raise QkvError(f"There is no activation called {name}: {nearest_or_all(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]


# What `activation_programs` and `product.cu` know.
_IN_PROGRAMS = {ACTIVATIONS[name]: name for name in ("relu", "silu", "gelu", "gelu_tanh", "gelu_quick")}


def programmed_name(activation: Activation) -> str | None:
    """How programs of our own call it, where they know it."""
    return _IN_PROGRAMS.get(activation)


class MLP(nn.Module):
    """activation(x W₁ + b₁) W₂ + b₂ [vaswani2017 eq.2]; `dropout` falls on the hidden units."""

    depends_on = Depends("activation", "inner", "outer", "dropout")

    def __init__(
        self, width: int, hidden: int, activation: Activation = relu, *, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.activation, self.dropout = activation, nn.Dropout(dropout)
        self.inner = nn.Linear(width, hidden, bias=bias)
        self.outer = nn.Linear(hidden, width, bias=bias)
        nn.init.xavier_uniform_(self.inner.weight)
        nn.init.xavier_uniform_(self.outer.weight)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        dropping = self.training and self.dropout.p > 0
        if not dropping and activated_map.fits_trained(x, self.inner, self.outer):
            name = programmed_name(self.activation)
            if name is not None:
                return activated_map.feed_forward(x, self.inner, self.outer, name)
        return self.outer(self.dropout(self.hidden(x)))

    def hidden(self, x: Tensor) -> Tensor:
        """activation(x W₁ + b₁)"""
        name = programmed_name(self.activation)
        if name is not None and activated_map.fits(x, self.inner, name):
            return activated_map.activated_map(x, self.inner, name)
        return self.activation(self.inner(x))


class ChunkedMLP(MLP):
    """The same over `chunk` slots at a time: hidden units of so many tokens only are in memory. [kitaev2020 eq.10]"""

    depends_on = MLP.depends_on.also("chunk")

    def __init__(
        self, width: int, hidden: int, activation: Activation = relu, *, chunk: int, dropout: float = 0.0
    ) -> None:
        super().__init__(width, hidden, activation, dropout=dropout)
        self.chunk = chunk

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        return torch.cat([super(ChunkedMLP, self).forward(part, ctx) for part in x.split(self.chunk, 1)], 1)

    def extra_repr(self) -> str:
        return f"{self.chunk} slots at a time"


class GatedMLP(nn.Module):
    """(activation(x W_gate) ⊙ x W_value) W₂: with silu SwiGLU, with gelu GEGLU, with relu ReGLU. [shazeer2020 eq.6]"""

    depends_on = Depends("activation", "inner", "outer", "dropout")

    def __init__(
        self, width: int, hidden: int, activation: Activation = silu, *, bias: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.activation, self.dropout = activation, nn.Dropout(dropout)
        self.inner = JoinedLinear(width, {"gate": hidden, "value": hidden}, bias=bias)
        self.outer = nn.Linear(hidden, width, bias=bias)
        nn.init.xavier_uniform_(self.outer.weight)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        return self.outer(self.dropout(self.hidden(x)))

    def hidden(self, x: Tensor) -> Tensor:
        """The hidden units."""
        gate, value = self.inner(x)
        return self.activation(gate) * value
