"""ViT and DeiT against the reference library's, with noise on every parameter: outputs, gradients, files both ways."""

import pytest
import torch
import transformers
from transformers import DeiTConfig, ViTConfig

from qkv.errors import QkvError
from qkv.files import read_json
from qkv.weights.certify import open_reference
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from tests.models.small_images import small_model
from tests.parity.pictures import check_picture_gradients, check_pictures, check_pictures_both_ways
from tests.parity.published import Case, close, reference_pair

CONFIG = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
}
ALONE = {**CONFIG, "num_hidden_layers": 1, "num_attention_heads": 1}
CASES = {
    "pooled": Case("ViTModel", ViTConfig(**CONFIG)),
    "classification": Case("ViTForImageClassification", ViTConfig(**CONFIG, num_labels=3)),
    "one layer, one head, one channel, no query bias, relu": Case(
        "ViTForImageClassification",
        ViTConfig(**ALONE, num_labels=5, num_channels=1, qkv_bias=False, hidden_act="relu", layer_norm_eps=1e-3),
    ),
    "small patches, gelu_new": Case("ViTModel", ViTConfig(**{**CONFIG, "patch_size": 4}, hidden_act="gelu_new")),
    "sides in a list, quick_gelu": Case(
        "ViTModel", ViTConfig(**{**CONFIG, "image_size": [32, 32]}, hidden_act="quick_gelu")
    ),
    "DeiT, pooled": Case("DeiTModel", DeiTConfig(**CONFIG)),
    "DeiT, classification": Case("DeiTForImageClassification", DeiTConfig(**CONFIG, num_labels=3)),
    "DeiT, distilled": Case("DeiTForImageClassificationWithTeacher", DeiTConfig(**CONFIG, num_labels=3)),
    "DeiT, one layer, no query bias": Case(
        "DeiTForImageClassificationWithTeacher", DeiTConfig(**ALONE, num_labels=5, qkv_bias=False, hidden_act="silu")
    ),
}


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    return reference_pair(CASES[request.param], tmp_path_factory.mktemp("reference"))


def test_outputs_agree_at_all_resolutions(pair):
    check_pictures(pair)


def test_gradients_agree(pair, tmp_path):
    check_picture_gradients(pair, tmp_path)


def test_what_is_exported_the_reference_opens(pair, tmp_path):
    check_pictures_both_ways(pair, tmp_path)


@pytest.mark.parametrize("family", ["vit", "deit", "clip-image"])
@torch.no_grad()
def test_the_stream_alone_is_exported_as_a_bare_encoder(family, tmp_path):
    """Which has a layer over the class token, and gets one of zeros."""
    model = small_model(family)
    save_published(model, tmp_path, PUBLISHED)
    architecture = PUBLISHED[read_json(tmp_path / "config.json")["model_type"]].architectures["states"]
    opened, keys = open_reference(transformers, architecture, tmp_path)
    assert not any(keys.values())
    pictures = torch.randn(2, 3, 12, 12)
    close(model(pictures), opened(pictures).last_hidden_state)


def test_what_the_reference_has_no_place_for_is_not_written(tmp_path):
    with pytest.raises(QkvError, match="None of the published forms of the family vit has such sizes"):
        save_published(small_model("vit", pooling="mean"), tmp_path, PUBLISHED)
    with pytest.raises(QkvError, match="has no embedding head for the family vit"):
        save_published(small_model("vit", "embedding"), tmp_path, PUBLISHED)


@pytest.mark.parametrize("family", ["vit", "deit"])
def test_a_stem_of_convolutions_is_refused_by_name(family, tmp_path):
    with pytest.raises(QkvError, match="has a stem of 2 convolutions before its patches, and the other library"):
        save_published(small_model(family, "classification", stem=2, patch=1), tmp_path / "new", PUBLISHED)
    assert not (tmp_path / "new").exists()


def test_oblong_pictures_are_refused():
    config = {"model_type": "vit", **CONFIG, "image_size": [32, 48]}
    with pytest.raises(QkvError, match=r"square here; the config.json has image_size \[32, 48\]"):
        PUBLISHED["vit"].sizes_of(config)
