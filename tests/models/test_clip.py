"""CLIP: two towers in one space, where texts end, and classes made of prompts."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES, build, config_of, count_parameters
from qkv.models.clip import ClipText
from qkv.models.head_choice import HeadChoice
from qkv.models.image_text_model import ImageTextModel
from qkv.weights.load import load_model
from qkv.weights.save import save_model
from tests.models.small import perturb, shrunk

END = 22


@pytest.fixture(scope="module")
def model() -> ImageTextModel:
    torch.manual_seed(0)
    made: ImageTextModel = build("clip", shrunk(FAMILIES["clip"].published["base-32"], image=12, patch=4, end=END))
    perturb(made)
    return made.eval()


def texts(rows: int = 4, length: int = 9) -> Tensor:
    ids = torch.randint(0, END, (rows, length))
    ids[:, -1] = END
    return ids


@torch.no_grad()
def test_logits_are_cosines_times_the_scale(model: ImageTextModel) -> None:
    images, ids = torch.randn(3, 3, 12, 12), texts()
    found = model(images, ids)
    assert found.logits.shape == (3, 4)
    torch.testing.assert_close(found.images.norm(dim=-1), torch.ones(3))
    torch.testing.assert_close(found.texts.norm(dim=-1), torch.ones(4))
    cosines = torch.cosine_similarity(model.image(images)[:, None], model.text(ids)[None], dim=-1)
    torch.testing.assert_close(found.logits, cosines * model.log_scale.exp())


def test_the_temperature_starts_at_seven_hundredths() -> None:
    fresh = build("clip", shrunk(FAMILIES["clip"].published["base-32"], image=12, patch=4))
    assert fresh.log_scale.exp().item() == pytest.approx(1 / 0.07)


@torch.no_grad()
def test_a_text_ends_with_the_token_that_ends_it(model: ImageTextModel) -> None:
    text, ids = model.text, texts()
    assert isinstance(text, ClipText)
    ids[0, 3], ids[1, 0] = END, END
    assert text.ends(ids).tolist() == [3, 0, 8, 8]
    other = ids.clone()
    other[0, 4:] = 5  # what comes after an end changes nothing
    torch.testing.assert_close(text(other), text(ids))
    torch.testing.assert_close(text(ids[:1, :4]), text(ids)[:1])
    other[0, 2] = (other[0, 2] + 1) % END
    assert not torch.allclose(text(other)[0], text(ids)[0], atol=1e-3)
    assert text.ends(ids[:, 4:8]).tolist() == [3, 3, 3, 3]  # cut short: all of it is text


@torch.no_grad()
def test_without_a_token_for_it_the_largest_ends_a_text() -> None:
    sizes = shrunk(FAMILIES["clip-text"].published["base"], end=None)
    model = build("clip-text", sizes, HeadChoice("projection")).eval()
    ids = torch.tensor([[3, 7, 20, 1, 20], [22, 7, 20, 1, 5]])
    assert model.ends(ids).tolist() == [2, 0]
    torch.testing.assert_close(model(ids)[:1], model(ids[:1, :3]))


@torch.no_grad()
def test_a_saved_model_is_loaded_as_it_was(model: ImageTextModel, tmp_path: Path) -> None:
    save_model(model, tmp_path)
    again, images, ids = load_model(tmp_path), torch.randn(2, 3, 8, 16), texts()
    assert (again.family, again.sizes) == (model.family, model.sizes)
    assert "head" not in config_of(model)
    for found, expected in zip(again(images, ids), model(images, ids), strict=True):
        assert torch.equal(found, expected)
    with pytest.raises(QkvError, match="has no choice of heads"):
        load_model(tmp_path, head=HeadChoice("states"))


@torch.no_grad()
def test_a_tower_is_saved_and_used_alone(model: ImageTextModel, tmp_path: Path) -> None:
    save_model(model.text, tmp_path / "text")
    save_model(model.image, tmp_path / "image")
    ids, images = texts(), torch.randn(2, 3, 12, 12)
    assert torch.equal(load_model(tmp_path / "text")(ids), model.text(ids))
    assert torch.equal(load_model(tmp_path / "image")(images), model.image(images))
    states = load_model(tmp_path / "text", head=HeadChoice("states"))(ids)
    torch.testing.assert_close(states, model.text.states(ids, model.text.context(ids)))


def test_every_parameter_learns(model: ImageTextModel) -> None:
    model.zero_grad()
    logits = model(torch.randn(3, 3, 12, 12), texts()).logits
    (logits * torch.randn_like(logits)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 1e-7, name


def test_the_count_without_memory_is_the_count(model: ImageTextModel) -> None:
    counted = count_parameters("clip", model.sizes)
    assert counted == sum(parameter.numel() for parameter in model.parameters())


def test_it_compiles(model: ImageTextModel) -> None:
    images, ids = torch.randn(2, 3, 12, 12), texts()
    torch._dynamo.reset()
    found = torch.compile(model, backend="eager", fullgraph=True)(images, ids)
    for one, other in zip(found, model(images, ids), strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), atol=1e-5, rtol=1e-4)


def test_a_fresh_model_tells_nothing_apart() -> None:
    """The first loss is that of a guess, or not far above."""
    torch.manual_seed(0)
    fresh = build("clip", shrunk(FAMILIES["clip"].published["base-32"], image=12, patch=4, end=END))
    logits = fresh(torch.randn(16, 3, 12, 12), texts(16)).logits
    loss = torch.nn.functional.cross_entropy(logits, torch.arange(16))
    assert math.log(16) * 0.5 < loss.item() < math.log(16) * 2.5
