"""Where an image model looks, and what it has learned of pictures."""

import numpy as np
import pytest
import torch
from PIL import Image

from qkv.data.preprocessing import Exactly, Normalise, Preprocessing
from qkv.generate.image_readers import ImageClassifier, ImageStateReader
from qkv.look.picture_maps import PictureRecord, patch_filters, position_similarity, record_picture, rolled_out
from tests.models.small_images import small_model

WAY = Preprocessing(resize=Exactly(12, 12), normalise=Normalise(1 / 255, (0.5,) * 3, (0.5,) * 3))


def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8))


def made(weights: np.ndarray, grid: tuple[int, int], prefix: int) -> PictureRecord:
    return PictureRecord("made", picture(), "", weights.astype(np.float32), grid, prefix, patch=4)


def test_every_head_of_every_layer_is_kept() -> None:
    model = small_model("vit", "classification")
    record = record_picture(ImageClassifier(model, WAY), picture())
    sizes = model.sizes
    assert record.weights.shape == (sizes.layers, sizes.heads, 10, 10)
    np.testing.assert_allclose(record.weights.sum(-1), 1, rtol=1e-5)
    assert record.grid == (3, 3)
    assert record.heads(0).shape == (sizes.heads, 3, 3)
    np.testing.assert_array_equal(record.heads(0)[1].ravel(), record.weights[0, 1, 0, 1:])
    assert record.picture.size == (12, 12)
    label, share = record.said.split()
    found = ImageClassifier(model, WAY).run([picture()])[0]
    assert (label, share) == (found.label, f"{found.probability:.1%}")


def test_a_model_with_two_tokens_before_the_patches_and_one_with_none() -> None:
    two = record_picture(ImageClassifier(small_model("deit", "distilled"), WAY), picture())
    assert (two.prefix, two.weights.shape[-1]) == (2, 11)
    none = record_picture(ImageStateReader(small_model("vit", "states", pooling="mean"), WAY), picture())
    assert (none.prefix, none.said) == (0, "")
    np.testing.assert_allclose(none.heads(0)[0].ravel(), none.weights[0, 0].mean(0), rtol=1e-5)
    assert none.rollout().shape == (3, 3)


def test_rollout_multiplies_the_layers() -> None:
    """Worked out by hand: two tokens, two layers of one head and of two."""
    first = np.array([[[1.0, 0.0], [1.0, 0.0]]] * 2)  # both tokens read the first
    second = np.array([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])  # heads that average to one half each
    found = rolled_out(np.stack([first, second]).astype(np.float32))
    np.testing.assert_allclose(found, [[0.875, 0.125], [0.625, 0.375]])
    np.testing.assert_allclose(found.sum(1), 1)


def test_distances_are_those_between_patches() -> None:
    """Patches of 4 pixels in a grid of 1 by 3: one head looks at itself, one everywhere, none at the class token."""
    own = np.eye(4)
    everywhere = np.full((4, 4), 0.25)
    far = made(np.stack([own, everywhere])[None], (1, 3), 1).distances()
    # From the ends (0 + 4 + 8) / 3, from the middle (4 + 0 + 4) / 3.
    np.testing.assert_allclose(far, [[0, (4 + 8 / 3 + 4) / 3]], rtol=1e-6)


def test_positions_are_compared_by_their_angle() -> None:
    model = small_model("vit", "classification")
    alike = position_similarity(model)
    assert alike.shape == (3, 3, 3, 3)
    weight = model.embed.position.weight.detach()
    expected = torch.nn.functional.cosine_similarity(weight[1 + 2], weight[1 + 7], dim=0)
    assert alike[0, 2, 2, 1] == pytest.approx(float(expected), abs=1e-5)
    assert alike[1, 1, 1, 1] == pytest.approx(1, abs=1e-5)


def test_filters_are_principal_components() -> None:
    model = small_model("vit", "classification")
    found = patch_filters(model, 5)
    assert found.shape == (5, 3, 4, 4)
    flat = found.reshape(5, -1)
    np.testing.assert_allclose(flat @ flat.T, np.eye(5), atol=1e-4)
    weights = model.embed.patches.weight.detach().flatten(1).numpy()
    spread = ((weights - weights.mean(0)) @ flat.T).var(0)
    assert (np.diff(spread) <= 1e-6).all()


def test_behind_convolutions_what_is_drawn_are_their_places_and_their_filters() -> None:
    model = small_model("vit", "classification", stem=2, patch=1)
    record = record_picture(ImageClassifier(model, WAY), picture())
    assert (record.grid, record.patch) == ((3, 3), 4)
    assert patch_filters(model).shape[1:] == (3, 3, 3)
