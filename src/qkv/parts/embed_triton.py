"""Launches the programs that sum gradients of learned vectors."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from qkv.parts import embed_programs as programs
from qkv.parts.attention.kernels.launch_triton import launch

SLOTS, COLUMNS = 16, 256  # of a program
WARPS = 2  # with four columns for each thread and all slots, so that no one asks others for its sums
PARTS = 16  # of a run, summed at a time


def of_vectors(ids: Tensor, above: Tensor, vocabulary: int) -> Tensor:
    """The sum of above [n d] over the slots of each token, [v d], in float32; ids [n]."""
    (count, width), above = above.shape, above.contiguous()
    gradient = torch.zeros(vocabulary, width, device=above.device)
    if not count:
        return gradient
    tokens, order = torch.sort(ids.to(torch.int32), stable=True)
    tiles, blocks = triton.cdiv(count, SLOTS), triton.cdiv(width, COLUMNS)
    heads, tails = gradient.new_empty(2, tiles, width)
    sizes = {"WIDTH": width, "K": SLOTS}
    given = (above, tokens, order, gradient, heads, tails)
    launch(programs.sum_runs, (tiles, blocks), given, (count,), {**sizes, "D": COLUMNS}, num_warps=WARPS)
    if tiles > 1:  # the last one's runs end
        sizes.update(P=PARTS, D=COLUMNS)
        launch(programs.sum_parts, (tiles - 1, blocks), (tokens, gradient, heads, tails), (tiles,), sizes, num_warps=4)
    return gradient
