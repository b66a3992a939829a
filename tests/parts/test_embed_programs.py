"""Gradients of learned vectors by programs, against torch's.

pytest -m gpu tests/parts; without a GPU, TRITON_INTERPRET=1 lets Triton's interpreter read them.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from qkv.parts import embed
from qkv.parts.embed import TokenEmbedding

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
DEVICE = "cpu" if INTERPRETED else "cuda"


def some_ids(kind: str) -> Tensor:
    if kind == "many":
        return torch.randint(0, 50, (3, 37))
    if kind == "one":
        return torch.full((5, 131), 7)  # a run through more programs than are summed at a time
    if kind == "long":
        return torch.cat([torch.full((40,), 3), torch.randint(0, 50, (24,)), torch.full((300,), 49)])[
            torch.randperm(364)
        ][None]
    if kind == "exact":
        return torch.arange(4).repeat_interleave(16)[None]  # runs that are as long as programs
    return torch.tensor([[49]])


@pytest.mark.parametrize("width", [8, 20] if INTERPRETED else [8, 300])
@pytest.mark.parametrize("kind", ["many", "one", "long", "exact", "single"])
def test_every_vector_learns_from_all_its_slots(kind: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    part, ids = TokenEmbedding(50, width, scale=0.5).to(DEVICE), some_ids(kind).to(DEVICE)
    above = torch.randn(*ids.shape, width, device=DEVICE)
    (right,) = torch.autograd.grad(part(ids), part.weight, above)
    if INTERPRETED:
        monkeypatch.setattr("qkv.parts.embed_triton.COLUMNS", 8)  # which it goes through one by one
    monkeypatch.setattr(embed, "ENOUGH", 1)
    monkeypatch.setattr(embed, "runs_or_counts", lambda x: True)
    found = part(ids)
    assert type(found.grad_fn.next_functions[0][0]).__name__ == "_VectorsBackward"
    (mine,) = torch.autograd.grad(found, part.weight, above, retain_graph=True)
    torch.testing.assert_close(mine, right, atol=2e-5, rtol=1e-5)
    assert torch.equal(mine, torch.autograd.grad(found, part.weight, above)[0])
