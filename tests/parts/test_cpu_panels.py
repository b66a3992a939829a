import gc

import pytest
import torch
from torch import nn

from qkv.generate.prepare import PackedLinear
from qkv.parts import cpu, cpu_panels
from qkv.parts.cpu_panels import kept_map
from qkv.parts.cpu_steps import map_rows

pytestmark = pytest.mark.skipif(cpu.library() is None, reason="needs a C++ compiler that knows OpenMP")


@torch.no_grad()
def test_panels_are_made_once_and_shared_with_whoever_decodes():
    linear = nn.Linear(32, 48)
    kept = kept_map(linear.weight, linear.bias)
    assert kept_map(linear.weight, linear.bias) is kept
    assert kept_map(linear.weight, linear.bias.clone()) is kept
    assert PackedLinear(linear.weight, linear.bias).map is kept


CHANGES = {
    "a write": lambda linear: linear.weight.mul_(2.0),
    "a write that torch does not count": lambda linear: linear.weight.data.mul_(2.0),
    "another tensor": lambda linear: setattr(linear.weight, "data", 2 * linear.weight.data),
    "another precision": lambda linear: linear.bfloat16(),
    "another bias": lambda linear: linear.bias.add_(1.0),
    "no bias": lambda linear: setattr(linear, "bias", None),
}


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_panels_are_made_anew_when_weights_change(change):
    linear, x = nn.Linear(32, 48), torch.randn(3, 32)
    kept = kept_map(linear.weight, linear.bias)
    CHANGES[change](linear)
    changed = kept_map(linear.weight, linear.bias)
    assert changed is not kept
    x = x.to(linear.weight.dtype)
    torch.testing.assert_close(
        map_rows(changed, x), linear(x), atol=1e-5, rtol=2e-2 if x.dtype != torch.float32 else 1e-5
    )


def test_weights_that_only_answer_have_panels_too():
    with torch.inference_mode():
        linear, x = nn.Linear(32, 48), torch.randn(3, 32)
        kept = kept_map(linear.weight, linear.bias)
        assert kept_map(linear.weight, linear.bias) is kept
        linear.weight.mul_(2.0)
        torch.testing.assert_close(map_rows(kept_map(linear.weight, linear.bias), x), linear(x), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_panels_go_with_their_weights():
    gc.collect()
    before, linear = len(cpu_panels._kept), nn.Linear(32, 48)
    kept_map(linear.weight, linear.bias)
    assert len(cpu_panels._kept) == before + 1
    del linear
    gc.collect()
    assert len(cpu_panels._kept) == before
