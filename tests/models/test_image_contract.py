"""What every model of pictures promises. A family that enters the catalogue is held to it at once."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.data.patch_hiding import PatchHiding
from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES, build, config_of, count_parameters, find_family
from qkv.models.head_choice import HeadChoice
from qkv.models.image_model import ImageModel
from qkv.parts.context import Ledger
from qkv.weights.load import load_model, with_head
from qkv.weights.save import save_model
from tests.models.small import perturb
from tests.models.small_images import IMAGE_FAMILIES, LABELS, choice, small_model, small_sizes

CASES = [(name, kind) for name in IMAGE_FAMILIES for kind in FAMILIES[name].heads]
ROWS, SIDE, PATCH = 3, 12, 4


@pytest.fixture(params=CASES, ids=" ".join)
def model(request: pytest.FixtureRequest) -> ImageModel:
    return small_model(*request.param)


@pytest.fixture(params=IMAGE_FAMILIES)
def usual(request: pytest.FixtureRequest) -> ImageModel:
    """The model of each family with its usual head."""
    return small_model(request.param)


def pictures(model: ImageModel, height: int = SIDE, width: int = SIDE, rows: int = ROWS) -> Tensor:
    return torch.randn(rows, model.sizes.channels, height, width)


def answers(model: ImageModel, images: Tensor) -> tuple[Tensor, ...]:
    """What the head says, as the tensors it consists of: [b s …] of tokens, [b …] of pictures."""
    found = model(images)
    return (found,) if isinstance(found, Tensor) else tuple(found)


def assert_close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("height", "width"), [(12, 12), (4, 4), (8, 20), (15, 13)])
@torch.no_grad()
def test_an_answer_has_the_shape_that_its_head_says(model: ImageModel, height: int, width: int) -> None:
    tokens = len(model.embed.prefix) + (height // PATCH) * (width // PATCH)
    expected = {
        "states": [(ROWS, tokens, model.sizes.width)],
        "pooled": [(ROWS, tokens, model.sizes.width), (ROWS, model.sizes.width)],
        "classification": [(ROWS, len(LABELS))],
        "distilled": [(ROWS, len(LABELS))],
        "embedding": [(ROWS, model.sizes.width)],
        "projection": [(ROWS, getattr(model.sizes, "projection", 0))],
        "masked": [(ROWS, tokens - len(model.embed.prefix), 8**model.sizes.channels)],
    }
    found = answers(model, pictures(model, height, width))
    assert [tuple(each.shape) for each in found] == expected[model.head_choice.kind]
    assert all(each.isfinite().all() and each.std() > 1e-3 for each in found)


@torch.no_grad()
def test_every_patch_matters_to_all(model: ImageModel) -> None:
    images = pictures(model)
    before = answers(model, images)
    for row in range(0, SIDE, PATCH):
        for column in range(0, SIDE, PATCH):
            other = images.clone()
            other[:, :, row : row + PATCH, column : column + PATCH] += 1.0
            for old, new in zip(before, answers(model, other), strict=True):
                assert ((new - old).abs().amax(-1) > 1e-5).all(), (row, column)


@torch.no_grad()
def test_the_place_of_a_patch_matters(model: ImageModel) -> None:
    images = pictures(model)
    for old, new in zip(answers(model, images), answers(model, images.roll(PATCH, -1)), strict=True):
        assert ((new - old).abs().flatten(1).amax(-1) > 1e-4).all()


@torch.no_grad()
def test_what_is_left_over_at_the_edges_is_not_read(model: ImageModel) -> None:
    images = pictures(model, SIDE + 3, SIDE + 1)
    assert_close(answers(model, images), answers(model, images[:, :, :SIDE, :SIDE]))


@torch.no_grad()
def test_a_picture_is_answered_the_same_in_any_company(model: ImageModel) -> None:
    images, order = pictures(model), torch.tensor([2, 0, 1])
    expected = answers(model, images)
    assert_close(answers(model, images[order]), tuple(each[order] for each in expected))
    assert_close(answers(model, images[1:2]), tuple(each[1:2] for each in expected))


@torch.no_grad()
def test_a_saved_model_is_loaded_as_it_was(model: ImageModel, tmp_path: Path) -> None:
    save_model(model, tmp_path)
    again, images = load_model(tmp_path), pictures(model, 20, 8)
    assert (again.family, again.sizes, again.head_choice) == (model.family, model.sizes, model.head_choice)
    for found, expected in zip(answers(again, images), answers(model, images), strict=True):
        assert torch.equal(found, expected)


def test_a_saved_configuration_says_what_to_build(model: ImageModel) -> None:
    config = config_of(model)
    assert find_family(config["family"]).sizes(config["sizes"]) == model.sizes
    assert HeadChoice.from_config(config["head"]) == model.head_choice


def test_every_parameter_learns(model: ImageModel) -> None:
    model.zero_grad()
    images = pictures(model, 16, 8)
    hides = model.embed.mask_token is not None
    hidden = PatchHiding().draw(ROWS, 8, np.random.default_rng(0), images) if hides else None
    given = model(images, hidden=hidden)
    found = (given,) if isinstance(given, Tensor) else tuple(given)
    sum((each * torch.randn_like(each)).sum() for each in found).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 1e-7, name


def test_the_count_without_memory_is_the_count(model: ImageModel) -> None:
    counted = count_parameters(model.family, model.sizes, model.head_choice)
    assert counted == sum(parameter.numel() for parameter in model.parameters())


def test_dropout_falls_in_training_alone(usual: ImageModel) -> None:
    for name in [field.name for field in fields(usual.sizes) if field.name.endswith("dropout")]:
        others = dict.fromkeys([each.name for each in fields(usual.sizes) if each.name.endswith("dropout")], 0.0)
        model = build(usual.family, replace(usual.sizes, **{**others, name: 0.5}), usual.head_choice).eval()
        perturb(model)
        images = pictures(model)
        assert_close(answers(model, images), answers(model, images))
        model.train()
        drawn = [answers(model, images)[0] for _ in range(6)]
        assert not all(torch.allclose(one, drawn[0]) for one in drawn), name


@torch.no_grad()
def test_what_is_no_picture_is_refused(usual: ImageModel) -> None:
    channels = usual.sizes.channels
    with pytest.raises(QkvError, match="smaller than one patch of 4 × 4"):
        usual(pictures(usual, 3, SIDE))
    with pytest.raises(QkvError, match=f"{channels} channels, height, width"):
        usual(torch.randn(ROWS, channels + 1, SIDE, SIDE))
    with pytest.raises(QkvError, match=f"{channels} channels, height, width"):
        usual(torch.randn(channels, SIDE, SIDE))


def test_a_head_that_the_family_lacks_is_refused(usual: ImageModel) -> None:
    for kind in ("language", "spans", "ctc"):
        with pytest.raises(QkvError, match=f"This family has no {kind} head: it has "):
            build(usual.family, usual.sizes, HeadChoice(kind))


@torch.no_grad()
def test_another_head_keeps_what_the_model_has_learned(model: ImageModel) -> None:
    images = pictures(model)
    found = with_head(model, choice("states")).eval()(images)
    torch.testing.assert_close(found, model.states(images, model.context(images)))


@torch.no_grad()
def test_weights_of_attention_are_recorded(usual: ImageModel) -> None:
    ledger, images = Ledger(usual, {"weights"}), pictures(usual)
    usual(images, ledger=ledger)
    assert len(ledger.entries) == usual.sizes.layers
    tokens = usual.embed.count(images)
    for (weights,) in ledger.entries.values():
        assert weights.shape == (ROWS, usual.sizes.heads, tokens, tokens)


def test_it_compiles(usual: ImageModel) -> None:
    """Traced as one graph and run as traced, no code generated."""
    images = pictures(usual, 16, 8)
    torch._dynamo.reset()
    found = torch.compile(usual, backend="eager", fullgraph=True)(images)
    found = (found,) if isinstance(found, Tensor) else tuple(found)
    sum(each.sum() for each in found).backward()
    assert_close(tuple(each.detach() for each in found), tuple(each.detach() for each in answers(usual, images)))


@pytest.mark.slow
def test_it_runs_as_generated_code(usual: ImageModel) -> None:
    images = pictures(usual)
    torch._dynamo.reset()
    found = torch.compile(usual)(images)
    found = (found,) if isinstance(found, Tensor) else tuple(found)
    assert_close(tuple(each.detach() for each in found), tuple(each.detach() for each in answers(usual, images)))


@pytest.mark.parametrize("family", IMAGE_FAMILIES)
def test_first_decisions_are_near_a_guess(family: str) -> None:
    torch.manual_seed(0)
    kind = "classification" if "classification" in FAMILIES[family].heads else FAMILIES[family].heads[0]
    model = build(family, small_sizes(family), choice(kind)).eval()
    assert answers(model, pictures(model))[0].std() < 1
