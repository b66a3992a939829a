"""ViT and DeiT against the reference library's, with noise on every parameter: outputs, gradients, files both ways."""

import pytest
from transformers import DeiTConfig, ViTConfig

from tests.parity.pictures import check_picture_gradients, check_pictures, check_pictures_both_ways
from tests.parity.published import Case, reference_pair

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
