"""Compiling a model block by block while it trains."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from qkv.parts.block import Block


@contextmanager
def compiled_blocks(model: nn.Module) -> Iterator[None]:
    """Inside, every `Block` of the model runs compiled for any shape; a model without blocks is compiled whole.

    Blocks of one make share their code, so a deep stack compiles as quickly as one block. Outside, the model is as it
    was: decoding with a cache, whose shapes grow, stays uncompiled.
    """
    blocks: list[nn.Module] = [module for module in model.modules() if isinstance(module, Block)] or [model]
    for block in blocks:
        block.forward = torch.compile(block.forward, dynamic=True)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward
