"""Maps by tensor cores, on a GPU or, with TRITON_INTERPRET=1, by Triton's interpreter on a CPU."""

import os
from dataclasses import replace

import pytest
import torch

from qkv.generate.choose import TheLikeliest
from qkv.generate.continuation import FromPrompts
from qkv.generate.fused import Map, Norm, plan_of
from qkv.generate.line import Line
from qkv.generate.standing import Standing
from qkv.generate.write import write
from tests.generate.stepped import model_of

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED:
    pytestmark = pytest.mark.gpu
DEVICE, NARROW = ("cpu", torch.float32) if INTERPRETED else ("cuda", torch.bfloat16)
TOLERANCE = 1e-5 if INTERPRETED else 1e-2


@pytest.fixture(autouse=True)
def single_precision(monkeypatch):
    """The interpreter knows no other."""
    from qkv.generate import step_maps_triton

    monkeypatch.setattr(step_maps_triton, "NARROW", (NARROW,))
    monkeypatch.setattr(step_maps_triton, "FEW", 3)


def numbers(*shape):
    return torch.randn(*shape).to(DEVICE)


def maps_for(rows, width):
    from qkv.generate.step_maps_triton import ByTensorCores, maps_of

    plan = plan_of(model_of("gpt2", DEVICE, width=width, heads=width // 16).to(NARROW))
    maps = maps_of(plan, numbers(rows, width) * 3 + 1, early=False)
    assert type(maps) is ByTensorCores
    return maps, plan.layers[0]


@pytest.mark.parametrize(("rows", "width", "outputs"), [(5, 48, 21), (8, 768, 96), (17, 144, 40), (32, 1008, 24)])
@pytest.mark.parametrize("rms", [False, True])
def test_norm_and_map(rows, width, outputs, rms):
    torch.manual_seed(0)
    maps, _ = maps_for(rows, width)
    weight, bias = (numbers(outputs, width) * width**-0.5).to(NARROW), numbers(outputs).to(NARROW)
    gain, shift = numbers(width).to(NARROW), None if rms else numbers(width).to(NARROW)
    y = torch.empty(rows, outputs, device=DEVICE, dtype=NARROW)
    maps.normed(Norm(gain, shift, 1e-5, rms, 0.5), Map(weight, None if rms else bias), y)
    x = maps.x.double()
    x = x if rms else x - x.mean(1, keepdim=True)
    h = x * (x.pow(2).mean(1, keepdim=True) + 1e-5).rsqrt() * gain.double() * 0.5
    if shift is not None:
        h = h + shift.double() * 0.5
    expected = h @ weight.double().T
    expected = expected if rms else expected + bias.double()
    torch.testing.assert_close(y.double(), expected, atol=TOLERANCE * float(expected.std()) * 3, rtol=TOLERANCE)


@pytest.mark.parametrize(("rows", "width", "inputs"), [(5, 48, 21), (8, 768, 3072), (17, 144, 1000), (32, 48, 2000)])
def test_map_and_sum(rows, width, inputs):
    torch.manual_seed(0)
    maps, _ = maps_for(rows, width)
    weight, bias = (numbers(width, inputs) * inputs**-0.5).to(NARROW), numbers(width).to(NARROW)
    h, before = numbers(rows, inputs).to(NARROW), maps.x.double()
    maps.added(h, Map(weight, bias))
    expected = before + h.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(maps.x.double(), expected, atol=1e-4, rtol=1e-5)  # the stream is not narrow


def test_activations_and_gates():
    torch.manual_seed(0)
    maps, layer = maps_for(6, 48)
    weight = (numbers(2 * 36, 48) * 0.2).to(NARROW)
    norm = Norm(numbers(48).to(NARROW), None, 1e-5, True)
    found = {}
    for gated in (False, True):
        y = torch.empty(6, 36, device=DEVICE, dtype=NARROW)
        maps.normed(norm, Map(weight, None), y, replace(layer, gated=gated, activation="relu"))
        found[gated] = y.double()
    x = maps.x.double()
    h = x * (x.pow(2).mean(1, keepdim=True) + 1e-5).rsqrt() * norm.gain.double()
    gate, value = (h @ weight.double().T).chunk(2, 1)
    tolerance = {"atol": 5 * TOLERANCE, "rtol": TOLERANCE}
    torch.testing.assert_close(found[False], gate.relu(), **tolerance)
    torch.testing.assert_close(found[True], gate.relu() * value, **tolerance)


@pytest.mark.skipif(not INTERPRETED, reason="narrow numbers may turn a token")
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_tokens_are_those_of_the_parts(kind):
    model, prompts = model_of(kind, DEVICE), [[3, 4, 5], [7], [6, 5, 4, 3, 8], [11, 12]]
    found = []
    for wrap in (lambda rows: rows, Standing):
        lines = [Line(prompt, 4, frozenset([2])) for prompt in prompts]
        for _ in write(wrap(FromPrompts(model, prompts, most=4)), lines, TheLikeliest()):
            pass
        found.append(lines)
    for line, other in zip(*found, strict=True):
        assert line.ids == other.ids
        assert line.log_probabilities == pytest.approx(other.log_probabilities, abs=2e-4)
