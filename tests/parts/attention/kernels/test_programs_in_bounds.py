"""Programs of attention by features and by hashes stay within their tensors where sizes are no whole tiles.

TRITON_INTERPRET=1 pytest -m slow tests/parts/attention/kernels/test_programs_in_bounds.py
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from tests.in_bounds import in_bounds

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter"),
]


def some(size: int, width: int, kind: torch.dtype) -> Tensor:
    return torch.randn(1, size, 2, width).to(kind).transpose(1, 2).requires_grad_()


# In bfloat16 the interpreter's products are wrong, but where numbers lie does not depend on them.
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("size", "kind"), [(300, torch.bfloat16), (10, torch.bfloat16), (70, torch.float32)])
def test_random_features(size: int, kind: torch.dtype, causal: bool) -> None:
    from qkv.parts.attention.kernels import positive_triton

    q, k, v = some(size, 24, kind), some(size, 24, kind), some(size, 40, kind)
    real = (torch.arange(size) < size - 3)[None]
    with in_bounds() as touched:
        way = positive_triton.looking_back if causal else positive_triton.attend
        found = way(q, k, v, torch.randn(100, 24, dtype=kind), real, 1 / 16)
        o = found[0] if causal else found
        torch.autograd.grad(o, (q, k, v), torch.randn_like(o))
    assert len(touched) == (7 if causal else 6)
    assert all(touched)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_hashes(kind: torch.dtype) -> None:
    from qkv.parts.attention.kernels import lsh_triton

    q, v = some(200, 24, kind), some(200, 40, kind)
    real = (torch.arange(200) < 150)[None]
    chunks = lsh_triton.Chunks(32, 1, 0, True, 1.0)
    with in_bounds() as touched:
        o = lsh_triton.attend(q, None, v, torch.randn(2, 24, 2, 6, dtype=kind), (4, 8), real, 224, chunks)
        torch.autograd.grad(o, (q, v), torch.randn_like(o))
    assert touched
    assert all(touched)


def test_what_goes_beyond_is_found() -> None:
    from qkv.train.objectives import entropy_triton
    from qkv.train.objectives.entropy_of_rows import Measures, Targets

    logits = torch.randn(2, 64).bfloat16()
    targets = Targets(torch.tensor([3, 5]), torch.ones(2).bool(), 64, 0.0)
    with in_bounds():
        entropy_triton.measure_and_differentiate(logits.clone(), targets, Measures.empty(2, logits))
        with pytest.raises(Exception, match="beyond its tensors"):
            entropy_triton.measure_and_differentiate(logits.clone(), targets, Measures.empty(1, logits))
