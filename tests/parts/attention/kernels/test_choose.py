"""Which kernel is chosen, by what is asked and where."""

import math
from types import SimpleNamespace

import pytest
import torch

from qkv.parts.attention.kernels.choose import LARGE, LONG, SHORT, Kernel, choose_kernel
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.flash import flash
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.visibility import Causal, Everything, Mask, Rule, Strided, Tokens, Window

HEADS = 16
ENOUGH = math.isqrt(LARGE // HEADS)  # tokens of one row


@pytest.mark.parametrize(
    ("is_cuda", "size", "rule", "dropout", "record", "expected"),
    [
        (False, 8, Causal(), 0.0, False, fused),
        (False, 8, Causal(), 0.0, True, exact),
        (True, ENOUGH, Window(8), 0.0, True, exact),
        (True, ENOUGH, Window(8), 0.0, False, flash),
        (True, ENOUGH, Window(8), 0.1, False, fused),
        (True, ENOUGH - 1, Window(8), 0.0, False, fused),
        (True, ENOUGH, Causal(), 0.0, False, fused),
        (True, ENOUGH, Everything(), 0.0, False, fused),
        (False, ENOUGH, Window(8), 0.0, False, fused),
    ],
)
def test_the_kernel_fits_the_device_the_rule_and_the_need(
    is_cuda: bool, size: int, rule: Rule, dropout: float, record: bool, expected: Kernel
) -> None:
    side = SimpleNamespace(
        is_cuda=is_cuda, device=torch.device("cuda" if is_cuda else "cpu"), shape=torch.Size([1, HEADS, size, 8])
    )
    m = Mask(rule, Tokens(size), Tokens(size), "cpu")
    assert choose_kernel(side, side, m, dropout, record) is expected


def test_few_queries_never_pay_for_a_map() -> None:
    few, many = LONG - 1, 1 << 20
    query = SimpleNamespace(is_cuda=True, device=torch.device("cuda"), shape=torch.Size([1, HEADS, few, 8]))
    key = SimpleNamespace(is_cuda=True, device=torch.device("cuda"), shape=torch.Size([1, HEADS, many, 8]))
    m = Mask(Window(8), Tokens(few, many - few), Tokens(many), "cpu")
    assert choose_kernel(query, key, m, 0.0, False) is fused


def test_without_a_mask_there_is_nothing_to_skip() -> None:
    side = SimpleNamespace(is_cuda=True, device=torch.device("cuda"), shape=torch.Size([1, HEADS, ENOUGH, 8]))
    assert choose_kernel(side, side, None, 0.0, False) is fused


@pytest.mark.parametrize(
    ("is_cuda", "compiling", "learned", "size", "expected"),
    [
        (True, True, True, SHORT, exact),
        (True, True, True, SHORT + 1, fused),
        (True, True, False, SHORT, fused),
        (True, False, True, SHORT, fused),
        (False, True, True, SHORT, fused),
    ],
)
def test_a_bias_is_learned_in_memory_where_rows_are_short_and_a_compiler_is_there(
    monkeypatch: pytest.MonkeyPatch, is_cuda: bool, compiling: bool, learned: bool, size: int, expected: Kernel
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    side = SimpleNamespace(
        is_cuda=is_cuda, device=torch.device("cuda" if is_cuda else "cpu"), shape=torch.Size([1, HEADS, size, 8])
    )
    bias = torch.zeros(1, 1, 1, 1, requires_grad=learned)
    assert choose_kernel(side, side, None, 0.1, False, bias) is expected


@pytest.mark.parametrize(
    ("rule", "learned", "expected"),
    [
        (Everything(), True, flash),
        (Causal() & Window(5), True, flash),
        (Causal() & Strided(5), True, exact),
        (Causal() & Strided(5), False, flash),
    ],
)
def test_what_has_to_repeat_bit_for_bit_does(
    monkeypatch: pytest.MonkeyPatch, rule: Rule, learned: bool, expected: Kernel
) -> None:
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    side = SimpleNamespace(
        is_cuda=True, device=torch.device("cuda"), shape=torch.Size([1, HEADS, 64, 8]), requires_grad=True
    )
    bias = torch.zeros(1, 1, 1, 1, requires_grad=learned)
    mask = Mask(rule, Tokens(64), Tokens(64), "cpu")
    assert choose_kernel(side, side, mask, 0.1, False, bias) is expected
