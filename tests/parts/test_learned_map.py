"""A map that learns by products of our own, against torch's; on a CPU operators stand for the programs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts import learned_map, product
from qkv.parts.linear import JoinedLinear


def _granted(device: torch.device) -> bool:
    return True


_granted._dynamo_marked_constant = True  # type: ignore[attr-defined]


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ours are taken on a CPU too, by operators that do the same in torch's; the list says which."""
    called: list[str] = []

    def there(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        called.append("there")
        return F.linear(x, weight, None if bias is None else bias.to(x.dtype))

    def across(x: Tensor, weight: Tensor) -> Tensor:
        called.append("across")
        return x @ weight

    learned_map._mapped_operator.register_kernel("cpu")(there)
    learned_map._across_operator.register_kernel("cpu")(across)
    monkeypatch.setattr(learned_map, "runs_operators", lambda x: True)
    monkeypatch.setattr(product, "runs_on", _granted)
    monkeypatch.setattr(learned_map, "LEAST", 1)
    return called


@pytest.mark.parametrize("frozen", [None, "x", "weight"])
def test_it_learns_as_a_linear_map_does(operators: list[str], frozen: str | None) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 5, 16, requires_grad=frozen != "x"), nn.Parameter(torch.randn(24, 16))
    weight.requires_grad_(frozen != "weight")
    bias, above = torch.randn(24), torch.randn(2, 5, 24)
    asked = [each for each in (x, weight) if each.requires_grad]
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = learned_map.learned_map(x, weight, bias), F.linear(x, weight, bias)
    assert operators == ["there"]
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected)
    right = dict(zip(asked, torch.autograd.grad(expected, asked, above.to(expected.dtype)), strict=True))
    if weight.requires_grad:  # in as many bits as it is summed
        rounded = above.to(found.dtype).double(), x.detach().to(found.dtype).double()
        right[weight] = torch.einsum("bsn,bsk->nk", *rounded).float()
    gradients = torch.autograd.grad(found, asked, above.to(found.dtype))
    torch.testing.assert_close(gradients, tuple(right.values()))
    assert operators == ["there", "across"][: 1 if frozen == "x" else 2]


def test_others_are_torchs(operators: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(3, 16, dtype=torch.bfloat16), torch.randn(24, 16, dtype=torch.bfloat16)
    learned_map.learned_map(x.float(), weight.float())  # wide
    learned_map.learned_map(x[:, :12], weight[:, :12])  # rows that the copy engine does not take
    learned_map.learned_map(x, weight[:20])
    with torch.no_grad():
        learned_map.learned_map(x, weight)  # nothing to learn
    monkeypatch.setattr(learned_map, "LEAST", 1000)
    learned_map.learned_map(x, weight)  # little to do
    assert operators == []


def test_a_map_into_a_place_is_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    x, weight, bias = (torch.randn(size).bfloat16() for size in ((3, 16), (24, 16), (24,)))
    y = torch.empty(3, 24, dtype=torch.bfloat16)
    for each in (None, bias):
        learned_map.map_into(y, x, weight, each)
        torch.testing.assert_close(y, F.linear(x, weight, each))
    monkeypatch.setattr(product, "map_into", lambda *given: called.append("ours"))
    monkeypatch.setattr(product, "runs_on", _granted)
    monkeypatch.setattr(learned_map, "runs_our_own", lambda x: True)
    monkeypatch.setattr(learned_map, "LEAST", 1)
    learned_map.map_into(y, x, weight, bias)
    assert called == ["ours"]
    learned_map.map_into(y.float(), x.float(), weight.float())  # wide
    odd = torch.empty(3, 25, dtype=torch.bfloat16)[:, 1:]  # a place that the copy engine does not take
    learned_map.map_into(odd, x, weight)
    torch.testing.assert_close(odd, x @ weight.T)
    assert called == ["ours"]


def test_a_bias_apart_is_in_the_maps_and_learns_nothing_of_them() -> None:
    torch.manual_seed(0)
    joined = JoinedLinear(16, {"query": 8, "key": 8}, bias=("query",))
    nn.init.normal_(joined.bias)
    x = torch.randn(3, 16)
    found, bias = joined.with_bias_apart(x)
    assert torch.equal(found, joined.together(x))
    assert torch.equal(bias, joined.whole_bias())
    found.sum().backward()
    assert joined.bias.grad is None
    assert joined.weight.grad is not None
    joined.together = lambda x: F.linear(x, joined.weight)  # type: ignore[method-assign]  # in 8 bits
    found, bias = joined.with_bias_apart(x)
    assert bias is None
    assert torch.equal(found, F.linear(x, joined.weight))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(300, 72, 200), (1, 768, 768), (5000, 768, 2304)])
def test_on_a_gpu_products_are_torchs(
    monkeypatch: pytest.MonkeyPatch, rows: int, inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    if not product.runs_on(torch.device("cuda")):
        pytest.skip("needs a Hopper GPU")
    monkeypatch.setattr(learned_map, "LEAST", 1)
    torch.manual_seed(0)
    x, weight = (
        torch.randn(rows, inputs, device="cuda").to(dtype),
        torch.randn(outputs, inputs, device="cuda").to(dtype),
    )
    bias, above = torch.randn(outputs, device="cuda"), torch.randn(rows, outputs, device="cuda").to(dtype)
    near = {"atol": 0.02 if dtype == torch.bfloat16 else 0.003, "rtol": 0.01}
    for b in (bias, bias[8:].to(dtype), None):
        matrix = weight if b is None else weight[: len(b)]
        right = x.double() @ matrix.double().T + (0 if b is None else b.double())
        torch.testing.assert_close(learned_map.mapped(x, matrix, b).double(), right, **near)
        y = torch.empty(rows, len(matrix), device="cuda", dtype=dtype)
        learned_map.map_into(y, x, matrix, None if b is None else b.to(dtype))
        torch.testing.assert_close(y.double(), right, **near)
    torch.testing.assert_close(
        learned_map.mapped_across(above, weight).double(), above.double() @ weight.double(), **near
    )
    gradient = learned_map.weight_gradient(above, x, wide=True)
    assert gradient.dtype == torch.float32
    torch.testing.assert_close(gradient.double(), above.double().T @ x.double(), atol=1e-3, rtol=1e-4)
    assert learned_map.weight_gradient(above, x, wide=False).dtype == dtype
