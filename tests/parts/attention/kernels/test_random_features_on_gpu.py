"""Random features and Linformer on a GPU, in bfloat16, against the same in float32 on a CPU.

pytest -m gpu tests/parts
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from qkv.parts.attention.gated import GatedAttention
from qkv.parts.attention.kernels import random_features
from qkv.parts.attention.kernels.linformer import LinformerKernel, RowProjection
from qkv.parts.attention.kernels.random_features import PositiveFeatures, RandomFeatureKernel, WaveFeatures
from qkv.parts.attention.visibility import Causal, Everything, Mask, NotPadding, Rule, Tokens
from qkv.parts.context import Context

pytestmark = pytest.mark.gpu

HALF = {"atol": 0.05, "rtol": 0.05}  # features, sums and values are rounded to bfloat16 in turn


def answers(kernel: nn.Module, given: list[Tensor], mask: Mask, pull: Tensor) -> list[Tensor]:
    inputs = [x.detach().requires_grad_() for x in given]
    o = kernel(*inputs, mask)
    return [each.detach().float().cpu() for each in (o, *torch.autograd.grad(o, inputs, pull.to(o)))]


KERNELS = {
    "positive": lambda: RandomFeatureKernel(PositiveFeatures(64, 16)),
    "waves": lambda: RandomFeatureKernel(WaveFeatures(64, 16, 4)),
    "linformer": lambda: LinformerKernel(RowProjection(300, 16), RowProjection(300, 16)),
}
PADDED: tuple[Rule, ...] = (NotPadding(), Causal() & NotPadding())  # positive features have programs, and more tests
CASES: list[tuple[str, Rule]] = [
    *(("positive", rule) for rule in PADDED),
    *(("waves", rule) for rule in (*PADDED, Everything(), Causal())),
    ("linformer", NotPadding()),
    ("linformer", Everything()),
]


@pytest.mark.parametrize("size", [1, 9, 300])
@pytest.mark.parametrize(("kind", "rule"), CASES)
def test_kernels_are_what_they_are_on_a_cpu(kind: str, rule: Rule, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = KERNELS[kind]()
    monkeypatch.setattr(random_features, "SEGMENT", 1)  # every chunk a segment of its own
    given = [torch.randn(3, size, 4, 16).bfloat16().transpose(1, 2) for _ in range(3)]
    documents = (torch.arange(size) < torch.tensor([[size], [size // 2 + 1], [1]])).long()
    pull, found = torch.randn(3, 4, size, 16).bfloat16(), []
    for device, numbers in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        tokens = Tokens(size, documents=documents.to(device))
        mine = copy.deepcopy(kernel).to(device)
        found.append(answers(mine, [x.to(device, numbers) for x in given], Mask(rule, tokens, tokens, device), pull))
    # Gradients of queries and keys are differences of terms as large as this, and may be 0 where one key is all there
    # is: what is left over of two rounded terms is as large as their rounding. Products of waves cancel besides.
    part = 0.1 if kind == "waves" else 0.03
    terms = float((found[0][0] * pull.float()).abs().sum(-1).max())
    for mine, theirs, least in zip(*found, (1.0, terms, terms, 1.0), strict=True):
        torch.testing.assert_close(theirs, mine, atol=part * (least + float(mine.abs().max())), rtol=0.05)


def test_a_gated_attention_trains_under_autocast() -> None:
    mixer = GatedAttention(64, 4, 64)
    x = torch.randn(2, 200, 64)
    expected = mixer(x, Context(tokens=Tokens(200)))
    mixer = mixer.to("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        found = mixer(x.cuda(), Context(tokens=Tokens(200)))
        found.float().square().sum().backward()
    torch.testing.assert_close(found.float().cpu(), expected, **HALF)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())
