"""ViTPose against the reference library's, with noise on every number: maps, gradients, files both ways, points."""

import copy
from dataclasses import replace

import pytest
import torch
import transformers
from transformers import VitPoseBackboneConfig, VitPoseConfig

from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.models.catalogue import count_parameters
from qkv.models.head_choice import HeadChoice
from qkv.models.vitpose import SIZES
from qkv.weights.certify import open_reference
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from tests.parity.pictures import check_gradients_by_file
from tests.parity.published import Case, Pair, close, perturb

BODY = {
    "image_size": [48, 32],
    "patch_size": [8, 8],
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "mlp_ratio": 2,
    "out_indices": [2],
}


def config(body: dict[str, object] | None = None, **changed: object) -> VitPoseConfig:
    return VitPoseConfig(backbone_config=VitPoseBackboneConfig(**{**BODY, **(body or {})}), num_labels=5, **changed)


CASES = {
    "plain": Case("VitPoseForPoseEstimation", config()),
    "deconvolved": Case("VitPoseForPoseEstimation", config(use_simple_decoder=False)),
    "one layer, no query bias, relu": Case(
        "VitPoseForPoseEstimation",
        config({"num_hidden_layers": 1, "out_indices": [1], "qkv_bias": False, "hidden_act": "relu"}),
    ),
}


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    torch.manual_seed(1)
    case, folder = CASES[request.param], tmp_path_factory.mktemp("reference")
    reference = transformers.VitPoseForPoseEstimation(copy.deepcopy(case.config)).eval()
    with torch.no_grad():
        for name, buffer in reference.named_buffers():
            if "running" in name:
                buffer += 0.2 * torch.rand_like(buffer)
    perturb(reference)
    reference.save_pretrained(folder)
    return Pair(case, reference, load_model(folder))


@torch.no_grad()
def test_maps_agree(pair):
    for rows in (1, 3):
        images = torch.randn(rows, 3, 48, 32)
        found = pair.ours(images)
        assert found.shape == (rows, 5, 24, 16)
        close(found, pair.reference(images).heatmaps)


def test_gradients_agree(pair, tmp_path):
    images = torch.randn(2, 3, 48, 32)
    check_gradients_by_file(pair, tmp_path, lambda: (pair.ours(images),), lambda: (pair.reference(images).heatmaps,))


@torch.no_grad()
def test_what_is_exported_the_reference_opens(pair, tmp_path):
    save_published(pair.ours, tmp_path, PUBLISHED)
    opened, keys = open_reference(transformers, pair.case.architecture, tmp_path)
    assert keys == {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}
    images = torch.randn(2, 3, 48, 32)
    close(opened(images).heatmaps, pair.reference(images).heatmaps)


@torch.no_grad()
def test_pictures_of_other_sizes_are_read_too(pair):
    """Which the reference refuses: positions are interpolated as a ViT's are."""
    assert pair.ours(torch.randn(1, 3, 80, 40)).shape == (1, 5, 40, 20)


@pytest.mark.parametrize(("size", "millions"), [("small", 22), ("base", 86), ("large", 307), ("huge", 632)])
def test_published_sizes(size, millions):
    """Those of the encoder, by its name; the small one was published later."""
    assert count_parameters("vitpose", SIZES[size]) == pytest.approx(millions * 1e6, rel=0.03)
    body = VitPoseBackboneConfig(
        hidden_size=SIZES[size].width, num_hidden_layers=1, num_attention_heads=SIZES[size].heads, out_indices=[1]
    )
    with torch.device("meta"):
        reference = transformers.VitPoseForPoseEstimation(
            VitPoseConfig(backbone_config=body, num_labels=17, use_simple_decoder=False)
        )
    points = HeadChoice("keypoints", tuple(map(str, range(17))))
    counted = count_parameters("vitpose", replace(SIZES[size], layers=1), points)
    assert counted == sum(parameter.numel() for parameter in reference.parameters())


def test_configurations_that_ask_for_something_else_are_refused(pair, tmp_path):
    save_published(pair.ours, tmp_path, PUBLISHED)
    whole = read_json(tmp_path / "config.json")
    body = whole["backbone_config"]
    for changed, reason in [
        ({"scale_factor": 2}, "scale_factor"),
        ({"backbone_config": {**body, "num_experts": 6}}, "num_experts"),
        ({"backbone_config": {**body, "out_indices": [0]}}, "from the last layer"),
        ({"backbone_config": None}, "lacks its backbone_config"),
    ]:
        write_json(tmp_path / "config.json", {**whole, **changed})
        with pytest.raises(QkvError, match=reason):
            load_model(tmp_path)
