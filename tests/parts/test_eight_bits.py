import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkv.errors import QkvError
from qkv.generate.continuation import FromPrompts
from qkv.generate.prepare import prepare
from qkv.parts.eight_bits import FINEST, LEVELS, STEPS, Int8Linear, quantised
from qkv.parts.linear import JoinedLinear
from qkv.parts.narrow_maps import NarrowJoinedLinear
from qkv.weights.save import save_model
from tests.generate.language_models import PROMPTS, small_gpt
from tests.generate.models import small_model, sources
from tests.models.small import perturb


def rows(count: int, width: int) -> torch.Tensor:
    """Of all sizes, one of them zeros, one without a negative number."""
    x = torch.randn(count, width) * torch.logspace(-1, 3, count)[:, None]
    x[1] = 0.0
    x[2] = x[2].abs() + 3.0
    return x


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_an_answer_is_off_by_no_more_than_the_rounding(bias):
    torch.manual_seed(0)
    weight, x = torch.randn(40, 33) * torch.logspace(-3, 2, 40)[:, None], rows(9, 33)
    added = torch.randn(40) if bias else None
    layer = Int8Linear(weight, added)
    steps = weight.abs().amax(1, keepdim=True) / LEVELS  # [o 1]
    assert ((layer.dequantised() - weight).abs() <= 0.5001 * steps).all()
    step = (x.amax(1).clamp(min=0) - x.amin(1).clamp(max=0))[:, None] / STEPS  # [r 1]
    # Half a step of the input at every weight; and a whole one where the zero was rounded away from an end.
    allowed = step * layer.dequantised().abs().sum(1) + 0.5 * x.abs().sum(1, keepdim=True) * steps.T
    off = (layer(x) - F.linear(x, weight, added)).abs()
    assert (off <= 1.001 * allowed + 1e-5).all()
    assert off[3:].max() > 0
    torch.testing.assert_close(layer(x[1]), torch.zeros(40) if added is None else added, rtol=1e-6, atol=0)


@torch.no_grad()
def test_a_row_is_the_same_alone_and_in_any_company():
    torch.manual_seed(0)
    layer, x = Int8Linear(torch.randn(24, 65), torch.randn(24)), rows(9, 65)
    together = layer(x.view(3, 3, 65)).view(9, 24)
    for row, answer in zip(x, together, strict=True):
        torch.testing.assert_close(layer(row[None])[0], answer, rtol=1e-4, atol=1e-5 * float(1 + row.abs().max()))
        torch.testing.assert_close(layer(row), answer, rtol=1e-4, atol=1e-5 * float(1 + row.abs().max()))
    assert layer(x[:0]).shape == (0, 24)


@torch.no_grad()
def test_small_inputs_are_rounded_alike_in_any_company():
    torch.manual_seed(0)
    layer, x = Int8Linear(torch.randn(24, 65), None), 1e-3 * torch.randn(3, 65)
    for row, answer in zip(x, layer(x), strict=True):
        torch.testing.assert_close(layer(row[None])[0], answer, rtol=1e-4, atol=1e-6)
    assert (layer(x) - F.linear(x, layer.dequantised())).abs().max() < 65 * FINEST


def test_damaged_weights_are_refused():
    model = nn.Linear(4, 4)
    nn.init.constant_(model.weight, torch.nan)
    with pytest.raises(QkvError, match="damaged"):
        quantised(model)


@torch.no_grad()
def test_precision_and_scale_of_the_input():
    torch.manual_seed(0)
    weight, x = torch.randn(16, 32), torch.randn(3, 32)
    assert Int8Linear(weight, None)(x.bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(Int8Linear(weight, None, 0.25)(x), 0.25 * Int8Linear(weight, None)(x))


@torch.no_grad()
def test_joined_maps():
    torch.manual_seed(0)
    joined = JoinedLinear(32, {"query": 8, "key": 4, "value": 6}, bias=("query", "value"))
    nn.init.normal_(joined.bias)
    narrow, x, other = NarrowJoinedLinear(joined, Int8Linear), torch.randn(5, 32), torch.randn(5, 32)
    for found, wanted in (
        (narrow(x), joined(x)),
        (narrow.with_last_of(x, other), joined.with_last_of(x, other)),
    ):
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, atol=0.06, rtol=0)


@torch.no_grad()
def test_a_language_model_in_8_bits(monkeypatch):
    monkeypatch.setattr("qkv.parts.narrow_maps.SMALL", 1)
    model = small_gpt()
    perturb(model)
    narrow = quantised(copy.deepcopy(model))
    maps = [module for module in narrow.modules() if isinstance(module, Int8Linear)]
    assert len(maps) == 4 * model.sizes.layers + 1
    assert not any(type(module) is nn.Linear for module in narrow.modules())
    ids = torch.tensor([PROMPTS[2]])
    off, size = (narrow(ids) - model(ids)).abs().max(), model(ids).std()
    assert 0 < off < 0.1 * size
    assert torch.equal(narrow.embed.tokens.weight, model.embed.tokens.weight)
    for ready in (narrow, prepare(narrow)):  # step by step, and in company, as at once
        texts = FromPrompts(ready, PROMPTS, most=3)
        alone = FromPrompts(narrow, PROMPTS[2:3], most=3)
        torch.testing.assert_close(texts.begin()[2:3], alone.begin(), rtol=0, atol=float(0.03 * size))
        new = torch.full((len(PROMPTS), 1), 5)
        torch.testing.assert_close(texts.advance(new)[2:3], alone.advance(new[:1]), rtol=0, atol=float(0.03 * size))


@torch.no_grad()
def test_a_translator_in_8_bits(monkeypatch):
    monkeypatch.setattr("qkv.parts.narrow_maps.SMALL", 1)
    model = small_model()
    source, lengths = sources([7, 4], model.source_vocabulary)
    target = torch.randint(0, model.target_vocabulary, (2, 5))
    wanted = model(source, lengths, target)
    off = (quantised(model)(source, lengths, target) - wanted).abs().mean()
    assert 0 < off < 0.05 * wanted.std()


def test_small_matrices_stay_as_they_are():
    assert not any(isinstance(module, Int8Linear) for module in quantised(nn.Sequential(nn.Linear(16, 3))).modules())


def test_what_8_bits_are_not_for(tmp_path):
    model = quantised(small_gpt().bfloat16())
    model.head = Int8Linear(torch.randn(8, 8), None)
    with pytest.raises(QkvError, match="only answers"):
        model.train()
    with pytest.raises(QkvError, match="not saved"):
        save_model(model, tmp_path / "model")
    assert not any(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(QkvError, match="for the CPU"):
        quantised(nn.Linear(4, 4, device="meta"))
