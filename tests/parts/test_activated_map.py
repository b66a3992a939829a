"""Maps with their activation in one program, against torch's operations: who takes it, and that it learns the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts import activated_map
from qkv.parts.feedforward import ACTIVATIONS, MLP, ChunkedMLP, gelu
from qkv.parts.linear import JoinedLinear


def _granted(device: torch.device) -> bool:
    return True


_granted._dynamo_marked_constant = True  # type: ignore[attr-defined]


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The program is taken wherever it would be on such a GPU; the list says for which activations."""
    taken: list[str] = []

    def stand_in(x: Tensor, linear: nn.Linear, activation: str) -> Tensor:
        taken.append(activation)
        return ACTIVATIONS[activation](F.linear(x, linear.weight, linear.bias))

    monkeypatch.setattr(activated_map, "runs_our_own", lambda x: type(x) in (Tensor, nn.Parameter))
    monkeypatch.setattr(activated_map.product, "runs_on", _granted)
    monkeypatch.setattr(activated_map, "LEAST", 1)
    monkeypatch.setattr(activated_map, "activated_map", stand_in)
    return taken


def mlp(**options: bool) -> MLP:
    return MLP(16, 32, gelu, **options).to(torch.bfloat16).eval().requires_grad_(False)


def test_a_plain_feed_forward_takes_it(everywhere: list[str]) -> None:
    x = torch.randn(3, 5, 16, dtype=torch.bfloat16)
    for part in (mlp(), mlp(bias=False), ChunkedMLP(16, 32, gelu, chunk=3).to(torch.bfloat16)):
        everywhere.clear()
        with torch.no_grad():
            found = part(x)
        assert set(everywhere) == {"gelu"}
        torch.testing.assert_close(found, part.outer(gelu(part.inner(x))), atol=2e-2, rtol=2e-2)


def test_others_do_not(everywhere: list[str]) -> None:
    x = torch.randn(3, 5, 16, dtype=torch.bfloat16)
    overridden, hooked, other, replaced = mlp(), mlp(), mlp(), mlp()
    overridden.inner.forward = lambda x: F.linear(x, overridden.inner.weight) + 1  # type: ignore[method-assign]
    hooked.inner.register_forward_hook(lambda module, given, made: made + 1)
    other.activation = torch.tanh
    replaced.inner = nn.Sequential(replaced.inner)  # type: ignore[assignment]
    for part in (overridden, hooked, other, replaced):
        torch.testing.assert_close(part.hidden(x), part.activation(part.inner(x)))
    mlp().hidden(x.clone().requires_grad_())  # whoever asks for a gradient
    MLP(16, 32).requires_grad_(False)(x.float())  # wide numbers
    MLP(12, 32).requires_grad_(False).to(x)(x[..., :12])  # rows that the copy engine does not take
    mlp()(x[:0])  # nothing
    assert everywhere == []


def test_autocast_narrows_as_ever(everywhere: list[str]) -> None:
    part, x = MLP(16, 32, gelu).eval(), torch.randn(3, 5, 16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = part(x)
        assert everywhere == ["gelu"]
        torch.testing.assert_close(found, part.outer(gelu(part.inner(x))))


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "silu"])
def test_on_a_cpu_it_is_one_call_of_the_quicker_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    kept = activated_map.cpu_maps.product

    def noted(*given: Any) -> Tensor:
        called.append(given[3])
        return kept(*given)

    monkeypatch.setattr(activated_map.cpu_maps, "product", noted)
    monkeypatch.setattr(activated_map.cpu_maps, "mkl_is_slow", lambda: True)
    monkeypatch.setattr(activated_map.cpu_maps, "SMALL", 1)
    part, x = MLP(16, 32, ACTIVATIONS[name]).eval(), torch.randn(3, 5, 16)
    expected = part.hidden(x)
    assert called == []  # gradients may be asked for
    with torch.no_grad():
        torch.testing.assert_close(part.hidden(x), expected, atol=2e-6, rtol=1e-5)
        assert called == ([] if name == "silu" else [name])
        part.inner.register_forward_hook(lambda module, given, made: made + 1)
        called.clear()
        part.hidden(x)
    assert called == []


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The way with gradients is taken on a CPU too, by operators that do the same in torch's; the list says which."""
    called: list[str] = []

    def both(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
        called.append("both")
        z = F.linear(x, weight, None if bias is None else bias.to(x.dtype))
        return z, ACTIVATIONS[activation](z)

    def times_slope(above: Tensor, outer: Tensor, z: Tensor, activation: str) -> tuple[Tensor, Tensor]:
        called.append("slope")
        assert activation == "gelu"
        dz = torch.ops.aten.gelu_backward(above @ outer, z)
        return dz, dz.sum(0, dtype=torch.float32)

    activated_map._both_operator.register_kernel("cpu")(both)
    activated_map._times_slope_operator.register_kernel("cpu")(times_slope)
    monkeypatch.setattr(activated_map, "runs_operators", lambda x: True)
    monkeypatch.setattr(activated_map.product, "runs_on", _granted)
    monkeypatch.setattr(activated_map, "LEAST", 1)
    return called


def gradients(part: MLP, call: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.dtype == torch.float32):
        y = call(x)
    asked = [each for each in (x, *part.parameters()) if each.requires_grad]
    return [y.detach(), *torch.autograd.grad(y.float().sin().sum(), asked)]


def plainly(part: MLP) -> Callable[[Tensor], Tensor]:
    return lambda x: part.outer(part.activation(part.inner(x)))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_are_those_of_the_parts(operators: list[str], dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    part, x = MLP(16, 32, gelu, bias=bias).to(dtype), torch.randn(3, 5, 16, dtype=dtype)
    for frozen in (None, part.inner.weight):
        operators.clear()
        if frozen is not None:
            frozen.requires_grad_(False)
        found, expected = gradients(part, part, x), gradients(part, plainly(part), x)
        assert operators == ["both", "slope"]
        for mine, other in zip(found, expected, strict=True):
            assert mine.dtype == other.dtype
            torch.testing.assert_close(mine.float(), other.float(), atol=4e-2, rtol=2e-2)


def test_dropout_takes_the_parts(operators: list[str]) -> None:
    part, x = MLP(16, 32, gelu, dropout=0.5).to(torch.bfloat16), torch.randn(3, 5, 16, dtype=torch.bfloat16)
    part(x)
    assert operators == []
    part.eval()(x)
    assert operators == ["both"]


@pytest.mark.slow
def test_a_compiler_sees_operators_for_all_lengths(operators: list[str]) -> None:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    torch.manual_seed(0)
    part, graphs = MLP(16, 32, gelu), []

    def compile_(graph: torch.fx.GraphModule, given: object) -> Callable[..., object]:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=compile_, bw_compiler=compile_)
    compiled = torch.compile(part, dynamic=True, fullgraph=True, backend=backend)
    for length in (5, 7):
        x = torch.randn(3, length, 16)
        for mine, other in zip(gradients(part, compiled, x), gradients(part, plainly(part), x), strict=True):
            torch.testing.assert_close(mine.float(), other.float(), atol=4e-2, rtol=2e-2)
    assert len(graphs) == 2  # forwards and backwards, once
    assert operators == ["both", "slope"] * 2


@pytest.fixture
def products(everywhere: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The same of maps without an activation; the list says which of the two programs ran."""

    def mapped(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        everywhere.append("map" + activation)
        return F.linear(x, weight, bias)

    def added(x: Tensor, weight: Tensor, stream: Tensor) -> None:
        everywhere.append("sum")
        stream.addmm_(x, weight.t())

    monkeypatch.setattr(activated_map.product, "activated_map", mapped)
    monkeypatch.setattr(activated_map.product, "add_map", added)
    return everywhere


def test_a_map_and_a_sum_of_an_answer_take_it(products: list[str]) -> None:
    joined = JoinedLinear(16, {"query": 32, "key": 8}).to(torch.bfloat16).eval()
    x, stream = torch.randn(3, 5, 16).bfloat16(), torch.randn(15, 40).bfloat16()
    with torch.no_grad():
        found = joined.together(x)
        expected = stream + F.linear(x.flatten(0, 1), joined.weight)
        activated_map.add_map(stream, x.flatten(0, 1), joined.weight)
    assert products == ["map", "sum"]
    assert torch.equal(found, F.linear(x, joined.weight, joined.bias))
    torch.testing.assert_close(stream, expected, atol=2e-2, rtol=2e-2)


def test_other_maps_and_sums_do_not(products: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = torch.randn(15, 16).bfloat16(), torch.randn(40, 16).bfloat16(), torch.randn(40).bfloat16()
    odd, stream = torch.randn(15, 12).bfloat16(), torch.randn(15, 40).bfloat16()
    activated_map.linear_map(x, weight.clone().requires_grad_(), bias)
    activated_map.linear_map(odd, weight[:, :12], bias)
    activated_map.linear_map(x.float(), weight.float(), bias.float())
    activated_map.linear_map(x, weight.as_subclass(type("Other", (Tensor,), {})), bias)  # type: ignore[arg-type]
    activated_map.add_map(torch.randn(15, 41).bfloat16()[:, 1:], x, weight)  # rows that the copy engine cannot write
    with torch.autocast("cpu", torch.float16):
        activated_map.linear_map(x, weight, bias)
    monkeypatch.setattr(activated_map, "MOST_INPUTS", 15)
    activated_map.linear_map(x, weight, bias)
    activated_map.add_map(stream, x, weight)
    assert products == []


def test_a_sum_is_normed_by_the_program_where_a_cluster_has_whole_rows(
    products: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def added(x: Tensor, weight: Tensor, bias: Tensor, stream: Tensor, norm: activated_map.product.Norm) -> None:
        products.append("norm")
        total = stream + F.linear(x, weight, bias)
        stream.copy_(F.layer_norm(total, total.shape[1:], norm.gain, norm.shift, norm.epsilon))

    monkeypatch.setattr(activated_map.product, "add_normed_map", added)
    monkeypatch.setattr(activated_map, "MOST_INPUTS", 15)  # which says nothing of it
    linear, norm = nn.Linear(16, 384).bfloat16(), nn.LayerNorm(384).bfloat16()
    x, stream = torch.randn(15, 16).bfloat16(), torch.randn(15, 384).bfloat16()
    fits = activated_map.fits_normed
    with torch.no_grad():
        assert fits(stream, x, linear.weight)
        expected = norm(stream + linear(x))
        numbers = activated_map.product.Norm(norm.weight, norm.bias, norm.eps, rms=False)
        activated_map.add_normed_map(stream, x, linear, numbers)
        assert products == ["norm"]
        torch.testing.assert_close(stream, expected, atol=2e-2, rtol=2e-2)
        assert not fits(stream[:, :320], x, linear.weight[:320])  # that no blocks of a cluster share out
        assert not fits(stream.float(), x.float(), linear.weight.float())
        assert not fits(stream, x, linear.weight.float())
        assert not fits(torch.randn(15, 385).bfloat16()[:, 1:], x, linear.weight)
        assert not fits(stream, x[:, :12], linear.weight[:, :12])
        monkeypatch.setattr(activated_map, "LEAST", 15 * 384 + 1)
        assert not fits(stream, x, linear.weight)
        monkeypatch.setattr(activated_map, "LEAST", 1)
        assert fits(stream, x, linear.weight)
    assert not fits(stream, x, linear.weight)  # that learns


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_it_learns_the_same(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    """Against float64, and no further off than torch's operators in narrow numbers are; rows lie apart in memory."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a GPU with a copy engine")
    torch.manual_seed(0)
    monkeypatch.setattr(activated_map, "LEAST", 1)
    part = MLP(72, 136, gelu).cuda()
    wide = copy.deepcopy(part).double()
    call = torch.compile(part, dynamic=True) if compiled else part
    for length in (33, 50):
        x = torch.randn(length, 5, 72, device="cuda").transpose(0, 1)
        exactly = gradients(wide, plainly(wide), x.double())
        found, usual = gradients(part, call, x), gradients(part, plainly(part), x)
        for mine, other, best in zip(found, usual, exactly, strict=True):
            allowed = (other.double() - best).norm() * 1.5 + 1e-3 * best.norm()
            assert (mine.double() - best).norm() <= allowed
    assert activated_map.fits_trained(x, part.inner, part.outer) is False  # no autocast here: numbers are wide
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        assert activated_map.fits(x, part.inner, "gelu")
        torch.testing.assert_close(part(x), plainly(part)(x), atol=3e-2, rtol=3e-2)
        assert part(x[:0]).shape == (0, length, 72)
