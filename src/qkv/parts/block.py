"""A block is its steps in order; it knows neither its index nor the embeddings."""

from __future__ import annotations

from torch import Tensor, nn

from qkv.parts.context import Context
from qkv.parts.spec import Depends


class Block(nn.Module):
    """`Block(attention=PreNorm(norm(), Attention(...)), feed_forward=PreNorm(norm(), MLP(...)))` is a GPT layer."""

    depends_on = Depends(children=True)

    def __init__(self, **steps: nn.Module) -> None:
        super().__init__()
        for name, step in steps.items():
            self.add_module(name, step)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        for step in self.children():
            x = step(x, ctx)
        return x
