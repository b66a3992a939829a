"""Which programs a compiled block that learns is made of on a Hopper GPU; here operators in torch stand for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.models.vit import ViTSizes
from qkv.parts import activated_map, joined_map, learned_map, product
from qkv.parts.attention.kernels import learned
from qkv.train import streamed
from qkv.train.compiling import compiled_blocks
from qkv.train.objectives.language import LanguageLoss
from qkv.train.recordable import reason_to_doubt
from qkv.train.settings import TrainSettings
from tests.models.small import perturb

pytestmark = pytest.mark.slow

THERE = {"activated_map": 1, "sum_norm": 1}
BACK = {"map_times_slope": 1, "sum_norm_back": 1, "mapped_across": 3, "weight_gradient": 4}


def _granted(device: torch.device) -> bool:
    return True


_granted._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _attend(q: Tensor, k: Tensor, v: Tensor, documents: None, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    o = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), scale=scale).to(q.dtype)
    return o.transpose(1, 2).contiguous(), q.new_zeros(q.shape[:3], dtype=torch.float32)


def _back(
    above: Tensor, joined: Tensor, documents: None, o: Tensor, log_sum: Tensor, causal: bool, scale: float
) -> Any:
    q, k, v = learned._parts(joined.float(), o.shape[2])
    p, do = (q @ k.mT * scale).softmax(-1), above.float().transpose(1, 2)
    dp = do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
    gradient = torch.stack((ds @ k, ds.mT @ q, p.mT @ do)).permute(1, 3, 0, 2, 4).flatten(2)
    return gradient.to(joined.dtype), gradient.sum((0, 1))


def _both(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    z = F.linear(x, weight, bias.to(x.dtype))
    return z, F.gelu(z, approximate="tanh" if activation == "gelu_tanh" else "none")


def _times_slope(above: Tensor, outer: Tensor, z: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    how = "tanh" if activation == "gelu_tanh" else "none"
    dz = torch.ops.aten.gelu_backward(above @ outer, z, approximate=how)
    return dz, dz.sum(0, dtype=torch.float32)


def _mapped(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, None if bias is None else bias.to(x.dtype))


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Counter[str]]]:
    """Products, attention and operators of ours in each graph, the way there and the way back of each code in turn."""
    found: list[Counter[str]] = []
    for operator, stand_in in (
        (learned._operator, _attend),
        (learned._joined_back_operator, _back),
        (activated_map._both_operator, _both),
        (activated_map._times_slope_operator, _times_slope),
        (learned_map._mapped_operator, _mapped),
        (learned_map._across_operator, lambda x, weight: x @ weight),
    ):
        operator.register_kernel("cpu")(stand_in)
    for module in (activated_map, joined_map, learned_map, learned):
        monkeypatch.setattr(module, "runs_operators", lambda x: True)
    monkeypatch.setattr(streamed, "runs_or_counts", lambda x: True)
    monkeypatch.setattr(product, "runs_on", _granted)
    monkeypatch.setattr(learned, "has_copy_engine", _granted)
    for module, name in (
        (streamed, "ENOUGH"), (joined_map, "ENOUGH"), (learned, "ENOUGH"), (activated_map, "LEAST"),
        (learned_map, "LEAST"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 1)

    def keep(graph: torch.fx.GraphModule, inputs: object) -> Any:
        names = [str(getattr(node.target, "_opname", "")) for node in graph.graph.nodes]
        mine = [str(node.target).startswith("qkv.") for node in graph.graph.nodes]
        others = ("mm", "addmm", "bmm", "cat", "sum", "native_layer_norm")
        found.append(Counter(name for name, own in zip(names, mine, strict=True) if own or name in others))
        return make_boxed_func(graph.forward)

    compile_, backend = torch.compile, aot_autograd(fw_compiler=keep, bw_compiler=keep)
    monkeypatch.setattr(
        torch, "compile", lambda code, dynamic: compile_(code, dynamic=dynamic, fullgraph=True, backend=backend)
    )
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def gradients(model: nn.Module, given: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        y = model(given).float()
    (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def assert_alike(model: nn.Module, given: Tensor) -> None:
    torch.manual_seed(0)
    perturb(model)
    expected = gradients(model.train(), given)
    with compiled_blocks(model, dynamic=False):
        assert reason_to_doubt(model, LanguageLoss(), TrainSettings(steps=1)) is None  # so it is recorded
        found = gradients(model, given)
    assert found.keys() == expected.keys()
    for name, right in expected.items():
        assert (found[name] - right).norm() <= 0.05 * right.norm() + 1e-3 * len(right) ** 0.5, name


def test_long_rows(graphs: list[Counter[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries, keys and values are maps of their own, whose gradients are laid side by side."""
    monkeypatch.setattr(learned, "MOST", 4)
    monkeypatch.setattr(joined_map, "LONG", 8)
    plain = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
    sizes = GPT2Sizes(vocabulary=23, positions=16, width=64, hidden=128, heads=2, layers=3, **plain)
    ids = torch.randint(0, 23, (2, 9), generator=torch.Generator().manual_seed(0))
    assert_alike(build("gpt2", sizes, HeadChoice("language")), ids)
    assert graphs == [{**THERE, "mapped": 5}, {**BACK, "side_by_side": 1}]


def test_short_rows(graphs: list[Counter[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """One product is read and learned as it lies; of the last block a slot of each row, by torch's attention."""
    monkeypatch.setattr(learned, "ENOUGH", 17 * 17)
    sizes = ViTSizes(patch=4, image=16, width=64, hidden=128, heads=2, layers=3)
    head = HeadChoice("classification", labels=("a", "b", "c"))
    pictures = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert_alike(build("vit", sizes, head), pictures)
    there, last, _, back = graphs
    assert not last["attend_rows"]
    assert there == {**THERE, "mapped": 3, "attend_rows": 1}
    assert back == {**BACK, "back_over_joined_rows": 1}
