"""Compiling a model block by block while it trains."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.data.safe_path import safe_path
from qkv.parts.attention.kernels.choose import LONG
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.program_cache import private_folder
from qkv.train.streamed import streamed_stacks

KEPT_IN = "TORCHINDUCTOR_CACHE_DIR"
MAKES = 64  # of blocks that differ in their parts, or in what the pass knows (no padding, evaluation): compiled each


@contextmanager
def compiled_blocks(model: nn.Module, *, dynamic: bool | None = True) -> Iterator[None]:
    """Inside, every `Block` of the model runs compiled for any shape; a model without blocks is compiled whole.

    `dynamic=False` compiles for each shape that comes, which costs the host less where all batches have one.
    Blocks of one make share their code, so a deep stack compiles as quickly as one block. Outside, the model is as it
    was: decoding with a cache, whose shapes grow, stays uncompiled. Stacks leave sums between blocks to the norms that
    read them, where they can (`streamed.py`).
    """
    compiled = compile_blocks(model, dynamic=dynamic)
    streams = streamed_stacks(model, lambda way: _with_own_page(torch.compile(way, dynamic=dynamic)))
    try:
        # Beyond that limit torch leaves blocks uncompiled. Its compiler starts processes of Python.
        with safe_path(), streams, torch._dynamo.config.patch(recompile_limit=MAKES):
            yield
    finally:
        for module in compiled:
            del module.forward


def compile_blocks(model: nn.Module, *, dynamic: bool | None = True) -> list[nn.Module]:
    """The same for good; what was compiled is given back."""
    if KEPT_IN not in os.environ:  # torch would take a folder that any user of this machine can make before
        os.environ[KEPT_IN] = str(private_folder("torch"))
    blocks: list[nn.Module] = [module for module in model.modules() if isinstance(module, Block)]
    for block in blocks:
        block.forward = _with_own_page(torch.compile(block.forward, dynamic=dynamic))
    if not blocks:
        model.forward = torch.compile(model.forward, dynamic=dynamic)
    return blocks or [model]


def _with_own_page(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The block, which finds ledger and masks empty whatever other blocks wrote: else each would need code of its own.

    Masks of short rows are no work for compiled code; those of long rows are shared, and the first block makes them.
    """

    def forward(x: Tensor, ctx: Context, *more: Any) -> Any:
        page = None if ctx.ledger is None else ctx.ledger.empty_page()
        masks = [] if x.shape[1] < LONG else ctx.masks
        found = compiled(x, replace(ctx, ledger=page, masks=masks), *more)
        if ctx.ledger is not None and page is not None:
            ctx.ledger.written.extend(page.written)
        return found

    return forward
