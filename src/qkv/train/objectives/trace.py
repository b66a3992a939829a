"""What a model did on its way: the stream after each block, and the attention weights of each attention.

Shapes: b rows, s slots, d width, h heads, q queries, k keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.context import Context, Ledger
from qkv.parts.stack import Stack

WEIGHTS = "weights"  # what attentions write into a ledger


@dataclass(frozen=True)
class State:
    """The stream at one place."""

    x: Tensor  # [b s d]
    documents: Tensor | None  # [b s]: 0 = padding; None: not known


@dataclass
class Trace:
    """States and weights in the order in which they were computed; in an encoder-decoder the encoder's come first.

    `states[0]` is what the first block was given, `states[i]` what the i-th block made of it.
    """

    ledger: Ledger
    states: list[State] = field(default_factory=list)

    @property
    def weights(self) -> list[Tensor]:
        """[b h q k] of each attention. Blocks that run several times have written several times."""
        return [value for _, kind, value in self.ledger.written if kind == WEIGHTS]

    def state(self, layer: int) -> State:
        if not 0 <= layer < len(self.states):
            raise QkvError(
                f"There is no layer {layer}: the model has {len(self.states) - 1}, and 0 is before the first."
            )
        return self.states[layer]

    def attention(self, layer: int) -> Tensor:
        weights = self.weights
        if not 1 <= layer <= len(weights):
            raise QkvError(f"There is no attention {layer}: the model has {len(weights)}, counted from 1.")
        return weights[layer - 1]


@contextmanager
def traced(model: nn.Module, *, states: bool, weights: bool) -> Iterator[Trace]:
    """Follows what `model` does inside the with-block; its ledger must be handed to the pass to get weights."""
    trace = Trace(Ledger(model, [WEIGHTS] if weights else []))

    def note(block: nn.Module, given: tuple[Any, ...], made: Tensor) -> None:
        x, ctx = given
        assert isinstance(ctx, Context)
        if not trace.states:
            trace.states.append(State(x, ctx.tokens.documents))
        trace.states.append(State(made, ctx.tokens.documents))

    blocks = [block for stack in model.modules() if isinstance(stack, Stack) for block in stack.blocks]
    hooks = [block.register_forward_hook(note) for block in blocks] if states else []
    try:
        yield trace
    finally:
        for hook in hooks:
            hook.remove()
