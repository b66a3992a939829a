"""Products of some rows in a step of decoding, against sums in double precision."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from qkv.generate import step_maps_cuda
from qkv.generate.fused import Map
from qkv.generate.step_maps_cuda import Tiling, tiling_of

ACTIVATIONS = {
    "": lambda z: z,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "gelu_quick": lambda z: z * torch.sigmoid(1.702 * z),
    "silu": F.silu,
    "relu": F.relu,
}
BITS = {torch.bfloat16: 8, torch.float16: 11}


@pytest.mark.parametrize("rows", [5, 16, 17, 64])
@pytest.mark.parametrize(("outputs", "inputs"), [(8, 8), (1600, 1600), (1600, 6400), (50257, 768), (96, 200)])
def test_blocks_have_inputs_and_room(rows, outputs, inputs):
    tiling = tiling_of(rows, outputs, inputs, False, 132)
    assert tiling.rows >= rows
    assert tiling.cluster <= -(-inputs // step_maps_cuda.INPUTS)  # none has nothing to do
    assert 2 * (tiling.shared + 1024) <= 228 * 1024  # two share a processor, which takes 1 KB for each


def inputs_of(rows, outputs, inputs, dtype, biases, seed=0):
    draw = torch.Generator("cuda").manual_seed(seed)

    def drawn(*shape, scale=1.0):
        return (torch.randn(*shape, generator=draw, device="cuda") * scale).to(dtype)

    return drawn(rows, inputs), drawn(outputs, inputs, scale=inputs**-0.5), drawn(biases) if biases else None


def exact(h, linear, activation, gated):
    weight, bias = linear.weight.double(), linear.bias
    y = h.double() @ weight.T
    if bias is not None:
        first, last = linear.gap
        y[:, :first] += bias[:first].double()
        y[:, last:] += bias[first:].double()
    if gated:
        gate, value = y.chunk(2, 1)
        return ACTIVATIONS[activation](gate) * value
    return ACTIVATIONS[activation](y)


def assert_rounded(found, wanted, dtype):
    """No further from the exact answer than rounding and sums in float32 take it."""
    room = wanted.abs() * 2.0 ** -BITS[dtype] + 1e-5 * wanted.abs().max()
    assert ((found.double() - wanted).abs() <= room).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("rows", [1, 5, 16, 31, 64])
@pytest.mark.parametrize(("outputs", "inputs"), [(8, 8), (200, 72), (257, 192), (1600, 1600), (768, 3072)])
def test_maps_are_those_of_exact_sums(rows, outputs, inputs, dtype):
    h, weight, bias = inputs_of(rows, outputs, inputs, dtype, outputs)
    room = h.new_full((rows + 1, outputs + 7 - (outputs + 7) % 8 + 8), 7.0)  # what lies around it stays as it is
    y = room[:rows, :outputs]
    step_maps_cuda.prepared(h, Map(weight, bias), y).run()
    assert_rounded(y, exact(h, Map(weight, bias), "", False), dtype)
    assert (room[rows:] == 7).all()
    assert (room[:, outputs:] == 7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("biased", [False, True])
def test_activations_and_gates(activation, gated, biased):
    outputs, times = 328, 2 if gated else 1
    h, weight, bias = inputs_of(9, outputs * times, 192, torch.bfloat16, outputs * times if biased else 0)
    y = h.new_empty(9, outputs)
    step_maps_cuda.prepared(h, Map(weight, bias), y, activation, gated).run()
    assert_rounded(y, exact(h, Map(weight, bias), activation, gated), torch.bfloat16)


@pytest.mark.gpu
def test_outputs_of_a_gap_have_no_bias():
    h, weight, bias = inputs_of(20, 300, 128, torch.bfloat16, 200)
    linear = Map(weight, bias, (100, 200))
    y = h.new_empty(20, 304)[:, :300]
    step_maps_cuda.prepared(h, linear, y).run()
    assert_rounded(y, exact(h, linear, "", False), torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("cluster", range(1, 9))
def test_sums_are_added_in_float32_with_the_same_bits_each_time(cluster):
    h, weight, bias = inputs_of(33, 200, 8 * 64 + 8, torch.bfloat16, 200)
    stream = torch.randn(33, 200, device="cuda")
    found = []
    for _ in range(3):
        y = stream.clone()
        step_maps_cuda.prepared(h, Map(weight, bias), y, tiling=Tiling(64, cluster)).run()
        found.append(y)
    wanted = stream.double() + exact(h, Map(weight, bias), "", False)
    assert ((found[0].double() - wanted).abs() <= 1e-5 * wanted.abs().max()).all()
    assert all(torch.equal(found[0], each) for each in found)


@pytest.mark.gpu
def test_what_is_no_number_stays_in_its_row():
    h, weight, bias = inputs_of(7, 96, 256, torch.bfloat16, 96)
    h[3, 100] = float("nan")
    y = h.new_empty(7, 96)
    step_maps_cuda.prepared(h, Map(weight, bias), y, "gelu").run()
    assert y[3].isnan().all()
    assert not y[[0, 1, 2, 4, 5, 6]].isnan().any()
