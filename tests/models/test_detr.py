"""What a model that finds objects promises, beside its parity with the reference."""

from dataclasses import fields, replace

import pytest
import torch

from qkv.errors import QkvError
from qkv.models.catalogue import build, config_of, count_parameters, find_family
from qkv.models.detr import DetrSizes
from qkv.models.head_choice import HeadChoice
from qkv.parts.context import Ledger
from qkv.weights.load import load_model, with_head
from qkv.weights.save import save_model
from tests.models.small import perturb

LABELS = ("ant", "bee", "cat")
SIZES = DetrSizes(
    stem=4, stage_widths=(8, 12), stage_depths=(1, 2), map_norm="batch", queries=5, width=16, encoder_hidden=20,
    decoder_hidden=24, encoder_heads=2, decoder_heads=4, encoder_layers=2, decoder_layers=3,
)  # fmt: skip
OBJECTS = HeadChoice("detection", LABELS)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = build("detr", SIZES, OBJECTS).eval()
    perturb(made)
    return made


def test_every_query_says_a_class_and_a_box(model):
    logits, boxes = model(torch.randn(2, 3, 40, 56))
    assert logits.shape == (2, 5, 4)
    assert boxes.shape == (2, 5, 4)
    assert ((boxes > 0) & (boxes < 1)).all()


@torch.no_grad()
def test_what_is_padding_is_not_looked_at(model):
    """Whatever stands there; the real pixels near it aside, which convolutions show some of it."""
    images = torch.randn(2, 3, 64, 64)
    mask = torch.ones(2, 64, 64, dtype=torch.bool)
    mask[1, 32:] = False
    scene = model.encode(images, pixel_mask=mask)
    assert scene.tokens.documents.sum(1).tolist() == [64, 32]
    other = images.clone()
    other[1, :, 48:] += 100.0  # far enough from what is real
    for one, changed in zip(model(images, pixel_mask=mask), model(other, pixel_mask=mask), strict=True):
        torch.testing.assert_close(one, changed)
    assert not torch.allclose(model(images)[0], model(other)[0])


@torch.no_grad()
def test_a_picture_is_answered_the_same_in_any_company(model):
    images = torch.randn(3, 3, 48, 32)
    together = model(images)
    for row in range(3):
        for alone, one in zip(model(images[row : row + 1]), together, strict=True):
            torch.testing.assert_close(alone[0], one[row], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_the_last_of_every_layer_is_the_answer(model):
    images = torch.randn(2, 3, 48, 32)
    layers = model.every_layer(images)
    assert len(layers) == 3
    for one, other in zip(layers[-1], model(images), strict=True):
        assert torch.equal(one, other)
    assert not torch.allclose(layers[0].logits, layers[1].logits)


def test_every_parameter_learns(model):
    model.zero_grad()
    found = model(torch.randn(2, 3, 48, 64))
    sum((each * torch.randn_like(each)).sum() for each in found).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name
    model.zero_grad()


@torch.no_grad()
def test_a_saved_model_is_loaded_as_it_was(model, tmp_path):
    save_model(model, tmp_path)
    again, images = load_model(tmp_path), torch.randn(1, 3, 37, 53)
    assert (again.sizes, again.head_choice) == (SIZES, OBJECTS)
    for one, other in zip(again(images), model(images), strict=True):
        assert torch.equal(one, other)
    config = config_of(model)
    assert find_family("detr").sizes({**config["sizes"], "stage_widths": [8, 12]}) == SIZES


def test_the_count_without_memory_is_the_count(model):
    assert count_parameters("detr", SIZES, OBJECTS) == sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def test_another_head_keeps_what_the_model_has_learned(model):
    images = torch.randn(1, 3, 32, 32)
    states = with_head(model, HeadChoice("states")).eval()
    torch.testing.assert_close(states(images), with_head(states, HeadChoice("states")).eval()(images))
    assert states(images).shape == (1, 5, 16)
    with pytest.raises(QkvError, match="has a states head"):
        states.every_layer(images)


@torch.no_grad()
def test_weights_of_attention_are_recorded(model):
    ledger = Ledger(model, {"weights"})
    model(torch.randn(2, 3, 32, 48), ledger=ledger)
    shapes = {name: weights[0].shape for name, weights in ledger.entries.items()}
    assert shapes["encoder.blocks.0.attention.mixer/weights"] == (2, 2, 24, 24)
    assert shapes["decoder.blocks.2.attention.mixer/weights"] == (2, 4, 5, 5)
    assert shapes["decoder.blocks.2.cross.mixer/weights"] == (2, 4, 5, 24)
    assert len(shapes) == 2 + 2 * 3


def test_dropout_falls_in_training_alone(model):
    for name in [field.name for field in fields(SIZES) if field.name.endswith("dropout")]:
        none = dict.fromkeys([field.name for field in fields(SIZES) if field.name.endswith("dropout")], 0.0)
        made = build("detr", replace(SIZES, map_norm="frozen", **{**none, name: 0.5}), OBJECTS)
        perturb(made)
        images = torch.randn(1, 3, 32, 32)
        assert not all(torch.equal(made.train()(images)[0], made(images)[0]) for _ in range(5)), name
        assert torch.equal(made.eval()(images)[0], made(images)[0])


def test_it_compiles(model):
    images, mask = torch.randn(2, 3, 48, 32), torch.ones(2, 48, 32, dtype=torch.bool)
    torch._dynamo.reset()
    found = torch.compile(model, backend="eager", fullgraph=True)(images, pixel_mask=mask)
    for one, other in zip(found, model(images, pixel_mask=mask), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_what_cannot_be_built_or_read_is_refused(model):
    with pytest.raises(QkvError, match="stage_widths of family detr"):
        replace(SIZES, stage_widths=(8, "16"))
    with pytest.raises(QkvError, match="no classification head"):
        build("detr", SIZES, HeadChoice("classification", LABELS))
    with pytest.raises(QkvError, match="one entry a pixel"):
        model(torch.randn(1, 3, 32, 32), pixel_mask=torch.ones(1, 32, 31, dtype=torch.bool))
    with pytest.raises(QkvError, match="3 channels"):
        model(torch.randn(1, 1, 32, 32))
