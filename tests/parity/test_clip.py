"""CLIP and its towers against the reference library's, with noise on every parameter: outputs, gradients, files."""

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor
from transformers import CLIPConfig, CLIPTextConfig, CLIPVisionConfig

from qkv.models.catalogue import count_parameters
from qkv.models.clip import IMAGE_SIZES, SIZES, TEXT_SIZES
from qkv.models.head_choice import HeadChoice
from qkv.weights.certify import open_reference
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from tests.parity.pictures import (
    RESOLUTIONS,
    check_gradients_by_file,
    check_picture_gradients,
    check_pictures,
    check_pictures_both_ways,
)
from tests.parity.published import Case, Pair, answers, close, reference_pair

END = 40
TOWER = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
ALONE = {**TOWER, "num_hidden_layers": 1, "num_attention_heads": 1}
WORDS = {"vocab_size": 41, "max_position_embeddings": 20, "eos_token_id": END, "projection_dim": 16}
PIXELS = {"image_size": 32, "patch_size": 8, "projection_dim": 16}
IMAGES = {
    "pooled": Case("CLIPVisionModel", CLIPVisionConfig(**TOWER, **PIXELS)),
    "projection": Case("CLIPVisionModelWithProjection", CLIPVisionConfig(**TOWER, **PIXELS)),
    "one layer, one head, one channel, gelu": Case(
        "CLIPVisionModelWithProjection",
        CLIPVisionConfig(**ALONE, **PIXELS, num_channels=1, hidden_act="gelu", layer_norm_eps=1e-3),
    ),
}
TEXTS = {
    "pooled": Case("CLIPTextModel", CLIPTextConfig(**TOWER, **WORDS)),
    "projection": Case("CLIPTextModelWithProjection", CLIPTextConfig(**TOWER, **WORDS)),
    "one layer, one head, gelu": Case("CLIPTextModel", CLIPTextConfig(**ALONE, **WORDS, hidden_act="gelu")),
    "as old files have the end": Case(
        "CLIPTextModelWithProjection", CLIPTextConfig(**TOWER, **{**WORDS, "eos_token_id": 2})
    ),
}
BOTH = {
    "small": Case(
        "CLIPModel",
        CLIPConfig(
            text_config={**TOWER, **WORDS}, vision_config={**TOWER, **PIXELS, "hidden_size": 12}, projection_dim=16
        ),
    ),
    "other activations, another width": Case(
        "CLIPModel",
        CLIPConfig(
            text_config={**ALONE, **WORDS, "hidden_act": "relu"},
            vision_config={**TOWER, **PIXELS, "hidden_act": "gelu", "layer_norm_eps": 1e-3},
            projection_dim=9,
        ),
    ),
}


@pytest.fixture(scope="module", params=IMAGES)
def image_pair(request, tmp_path_factory):
    return reference_pair(IMAGES[request.param], tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="module", params=TEXTS)
def text_pair(request, tmp_path_factory):
    return reference_pair(TEXTS[request.param], tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="module", params=BOTH)
def both_pair(request, tmp_path_factory):
    return reference_pair(BOTH[request.param], tmp_path_factory.mktemp("reference"))


def random_texts(rows: int = 3, length: int = 20) -> Tensor:
    """Texts of several lengths: after the end comes padding, of which the reference is not told."""
    ids = torch.randint(0, END, (rows, length))
    for row in range(rows):
        end = length - 1 - 2 * row % length
        ids[row, end] = END
        ids[row, end + 1 :] = END if row % 2 else 0
    return ids


def test_pictures_agree_at_all_resolutions(image_pair):
    check_pictures(image_pair)


def test_gradients_of_pictures_agree(image_pair, tmp_path):
    check_picture_gradients(image_pair, tmp_path)


def test_a_tower_of_pictures_that_is_exported_the_reference_opens(image_pair, tmp_path):
    check_pictures_both_ways(image_pair, tmp_path)


@pytest.mark.parametrize("length", [1, 2, 9, 20])
@torch.no_grad()
def test_texts_agree_what_follows_their_end_included(text_pair, length):
    ids = random_texts(4, length)
    for one, other in zip(answers(text_pair.ours(ids)), answers(text_pair.reference(ids)), strict=True):
        close(one, other)


@torch.no_grad()
def test_texts_agree_where_padding_is_told(text_pair):
    ids, lengths = random_texts(), torch.tensor([20, 18, 16])
    real = torch.arange(20) < lengths[:, None]
    found = answers(text_pair.ours(ids, lengths=lengths))
    expected = answers(text_pair.reference(ids, attention_mask=real.long()))
    for one, other in zip(found, expected, strict=True):
        close(one[real] if one.ndim == 3 else one, other[real] if one.ndim == 3 else other)


def test_gradients_of_texts_agree(text_pair, tmp_path):
    ids = random_texts()
    check_gradients_by_file(
        text_pair, tmp_path, lambda: answers(text_pair.ours(ids)), lambda: answers(text_pair.reference(ids))
    )


def texts_of(pair: Pair, folder: Path) -> tuple[dict[str, list[str]], transformers.PreTrainedModel]:
    save_published(pair.ours, folder, PUBLISHED)
    opened, keys = open_reference(transformers, pair.case.architecture, folder)
    return keys, opened


@torch.no_grad()
def test_a_tower_of_texts_that_is_exported_the_reference_opens(text_pair, tmp_path):
    keys, opened = texts_of(text_pair, tmp_path)
    assert not any(keys.values())
    ids = random_texts()
    for one, other in zip(answers(opened(ids)), answers(text_pair.reference(ids)), strict=True):
        close(one, other)


@pytest.mark.parametrize("resolution", RESOLUTIONS, ids=str)
@torch.no_grad()
def test_likenesses_agree(both_pair, resolution):
    pictures, ids = torch.randn(2, 3, *resolution), random_texts()
    expected = answers(both_pair.reference(ids, pictures, interpolate_pos_encoding=True))
    for one, other in zip(both_pair.ours(pictures, ids), expected, strict=True):
        close(one, other)


def test_gradients_of_both_agree(both_pair, tmp_path):
    pictures, ids = torch.randn(3, 3, 32, 32), random_texts()
    check_gradients_by_file(
        both_pair,
        tmp_path,
        lambda: tuple(both_pair.ours(pictures, ids)),
        lambda: answers(both_pair.reference(ids, pictures)),
    )


@torch.no_grad()
def test_what_is_exported_the_reference_opens(both_pair, tmp_path):
    keys, opened = texts_of(both_pair, tmp_path)
    assert not any(keys.values())
    pictures, ids = torch.randn(2, 3, 32, 32), random_texts()
    for one, other in zip(answers(opened(ids, pictures)), answers(both_pair.reference(ids, pictures)), strict=True):
        close(one, other)


# As counted in the published files.
COUNTS = {
    "base-32": 151_277_313,
    "base-16": 149_620_737,
    "large-14": 427_616_513,
    "large-14-336": 427_944_193,
}


@pytest.mark.parametrize("size", COUNTS)
def test_the_parameters_of_every_published_size(size):
    assert count_parameters("clip", SIZES[size]) == COUNTS[size]
    towers = [("clip-text", TEXT_SIZES["base" if "base" in size else "large"]), ("clip-image", IMAGE_SIZES[size])]
    counted = sum(count_parameters(family, sizes, HeadChoice("projection")) for family, sizes in towers)
    assert counted + 1 == COUNTS[size]
