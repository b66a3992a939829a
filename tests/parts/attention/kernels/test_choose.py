"""Which kernel is chosen, by what is asked and where."""

from types import SimpleNamespace

import pytest
import torch

from qkv.parts.attention.kernels.choose import LONG, Kernel, choose_kernel
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.flash import flash
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.visibility import Causal, Everything, Mask, Rule, Tokens, Window


@pytest.mark.parametrize(
    ("is_cuda", "size", "rule", "dropout", "record", "expected"),
    [
        (False, 8, Causal(), 0.0, False, fused),
        (False, 8, Causal(), 0.0, True, exact),
        (True, LONG, Window(8), 0.0, True, exact),
        (True, LONG, Window(8), 0.0, False, flash),
        (True, LONG, Window(8), 0.1, False, fused),
        (True, LONG - 1, Window(8), 0.0, False, fused),
        (True, LONG, Causal(), 0.0, False, fused),
        (True, LONG, Everything(), 0.0, False, fused),
        (False, LONG, Window(8), 0.0, False, fused),
    ],
)
def test_the_kernel_fits_the_device_the_rule_and_the_need(
    is_cuda: bool, size: int, rule: Rule, dropout: float, record: bool, expected: Kernel
) -> None:
    side = SimpleNamespace(is_cuda=is_cuda, shape=torch.Size([1, 1, size, 8]))
    m = Mask(rule, Tokens(size), Tokens(size), "cpu")
    assert choose_kernel(side, side, m, dropout, record) is expected


def test_a_single_query_never_pays_for_a_block_map() -> None:
    query = SimpleNamespace(is_cuda=True, shape=torch.Size([1, 1, 1, 8]))
    key = SimpleNamespace(is_cuda=True, shape=torch.Size([1, 1, LONG, 8]))
    m = Mask(Window(8), Tokens(1, LONG - 1), Tokens(LONG), "cpu")
    assert choose_kernel(query, key, m, 0.0, False) is fused


def test_without_a_mask_there_is_nothing_to_skip() -> None:
    side = SimpleNamespace(is_cuda=True, shape=torch.Size([1, 1, LONG, 8]))
    assert choose_kernel(side, side, None, 0.0, False) is fused
