"""DETR against the reference library's, with noise on every parameter: outputs, gradients, losses, files both ways."""

import copy

import pytest
import torch
import transformers
from torch import Tensor
from transformers import DetrConfig, ResNetConfig

from qkv.errors import QkvError
from qkv.files import read_json, read_tensors, write_json, write_tensors
from qkv.models.catalogue import build, count_parameters
from qkv.models.detr import SIZES, DetrSizes
from qkv.models.head_choice import HeadChoice
from qkv.weights.certify import open_reference
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.maps.detr import BODY
from qkv.weights.published import save_published
from tests.parity.pictures import check_gradients_by_file
from tests.parity.published import Case, Pair, close, perturb

BODY_CONFIG = {"embedding_size": 8, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 2, 1, 2]}
CONFIG = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 48,
    "num_queries": 7,
    "num_labels": 5,
}


def config(body: dict[str, object] | None = None, **changed: object) -> DetrConfig:
    described = ResNetConfig(**{**BODY_CONFIG, **(body or {})}, out_features=["stage4"])
    return DetrConfig(use_timm_backbone=False, backbone_config=described, **{**CONFIG, **changed})


CASES = {
    "objects": Case("DetrForObjectDetection", config()),
    "states": Case("DetrModel", config()),
    "basic blocks, one label, one query, gelu": Case(
        "DetrForObjectDetection",
        config(
            {"layer_type": "basic", "depths": [2, 1, 1, 1]}, num_labels=1, num_queries=1, activation_function="gelu"
        ),
    ),
}
# Height and width: with something left over at every stride, oblong either way, and one token.
RESOLUTIONS = [(64, 64), (97, 131), (200, 33), (32, 32), (7, 5)]


def reference_pair(case: Case, folder: object) -> Pair:
    """The reference with noise on every number, statistics too, and ours as read from what the reference wrote."""
    torch.manual_seed(1)
    reference = getattr(transformers, case.architecture)(copy.deepcopy(case.config)).eval()
    with torch.no_grad():
        for name, buffer in reference.named_buffers():
            if "normalization" in name or "bn" in name or "downsample" in name:
                buffer += 0.2 * torch.rand_like(buffer)
    for parameter in reference.parameters():  # the reference freezes the first stages
        parameter.requires_grad_(True)
    perturb(reference)
    reference.save_pretrained(folder)
    return Pair(case, reference, load_model(folder))


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    return reference_pair(CASES[request.param], tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    return reference_pair(CASES["objects"], tmp_path_factory.mktemp("reference"))


def answers(output) -> tuple[Tensor, ...]:
    if isinstance(output, Tensor):
        return (output,)
    if isinstance(output, tuple):
        return tuple(output)
    if hasattr(output, "pred_boxes"):
        return (output.logits, output.pred_boxes)
    return (output.last_hidden_state,)


def padded(height: int, width: int, rows: int = 3) -> tuple[Tensor, Tensor]:
    """Pictures of several sizes in one batch, zeros where one of them is padding."""
    mask = torch.zeros(rows, height, width, dtype=torch.bool)
    for row in range(rows):
        mask[row, : max(1, height - row * height // 4), : max(1, width - row * width // 3)] = True
    return torch.randn(rows, 3, height, width) * mask[:, None], mask


@pytest.mark.parametrize(("height", "width"), RESOLUTIONS)
@torch.no_grad()
def test_outputs_agree_at_all_resolutions(pair, height, width):
    for rows in (1, 3):
        images = torch.randn(rows, 3, height, width)
        for found, expected in zip(answers(pair.ours(images)), answers(pair.reference(images)), strict=True):
            close(found, expected)


@pytest.mark.parametrize(("height", "width"), RESOLUTIONS)
@torch.no_grad()
def test_padded_batches_agree(pair, height, width):
    images, mask = padded(height, width)
    found = answers(pair.ours(images, pixel_mask=mask))
    for one, other in zip(found, answers(pair.reference(images, pixel_mask=mask.long())), strict=True):
        close(one, other)


def test_gradients_agree(pair, tmp_path):
    images, mask = padded(70, 99)
    check_gradients_by_file(
        pair,
        tmp_path,
        lambda: answers(pair.ours(images, pixel_mask=mask)),
        lambda: answers(pair.reference(images, pixel_mask=mask.long())),
    )


@torch.no_grad()
def test_every_layer_is_what_a_shorter_decoder_says(detector):
    """The reference's layers cut off one by one: its own auxiliary outputs are normed on the way, ours are not."""
    images, mask = padded(64, 80)
    layers = detector.ours.every_layer(images, pixel_mask=mask)
    assert len(layers) == 3
    for count, found in enumerate(layers, start=1):
        shorter = copy.deepcopy(detector.reference)
        shorter.model.decoder.layers = shorter.model.decoder.layers[:count]
        for one, other in zip(found, answers(shorter(images, pixel_mask=mask.long())), strict=True):
            close(one, other)


@torch.no_grad()
def test_what_is_exported_the_reference_opens(pair, tmp_path):
    save_published(pair.ours, tmp_path, PUBLISHED)
    opened, keys = open_reference(transformers, pair.case.architecture, tmp_path)
    assert keys == {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}
    images, mask = padded(50, 70)
    given = {"pixel_values": images, "pixel_mask": mask.long()}
    for one, other in zip(answers(opened(**given)), answers(pair.reference(**given)), strict=True):
        close(one, other)


def timm_name(name: str) -> str:
    """A tensor of the residual network as timm calls it."""
    kinds = {"convolution": "conv", "normalization": "bn"}
    place, _, kind = name.removeprefix(BODY).rpartition(".")
    *outer, part = place.split(".")
    if outer[0] == "embedder":
        return f"{BODY}{kinds[part]}1.{kind}"
    stage, block = int(outer[2]) + 1, outer[4]
    if outer[5] == "shortcut":
        return f"{BODY}layer{stage}.{block}.downsample.{'0' if part == 'convolution' else '1'}.{kind}"
    return f"{BODY}layer{stage}.{block}.{kinds[part]}{int(outer[6]) + 1}.{kind}"


def as_published(folder, out, backbone: str, **changed: object) -> None:
    """A folder as it is published: timm's names, and a configuration that knows the network by its name."""
    out.mkdir()
    tensors = read_tensors(folder / "model.safetensors")
    write_tensors(
        out / "model.safetensors",
        {timm_name(name) if name.startswith(BODY) else name: tensor for name, tensor in tensors.items()},
    )
    whole = read_json(folder / "config.json")
    older = {"backbone_config": None, "use_timm_backbone": True, "backbone": backbone, "scale_embedding": False}
    older |= {"classifier_dropout": 0.0, "max_position_embeddings": 1024, "num_hidden_layers": 1}
    write_json(out / "config.json", {**whole, **older, **changed})


@torch.no_grad()
def test_a_network_by_the_names_of_timm_is_read(tmp_path):
    body = {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "layer_type": "basic"}
    pair = reference_pair(Case("DetrForObjectDetection", config(body)), tmp_path / "reference")
    as_published(tmp_path / "reference", tmp_path / "published", "resnet18")
    again, images = load_model(tmp_path / "published"), torch.randn(2, 3, 70, 50)
    assert again.sizes == pair.ours.sizes
    for one, other in zip(again(images), pair.ours(images), strict=True):
        close(one, other)


@pytest.mark.parametrize("dilation", [False, True])
@pytest.mark.parametrize("backbone", ["resnet18", "resnet50"])
@torch.no_grad()
def test_networks_of_timm_agree(backbone, dilation, tmp_path):
    pytest.importorskip("timm")
    described = DetrConfig(backbone=backbone, dilation=dilation, **CONFIG)
    pair = reference_pair(Case("DetrForObjectDetection", described), tmp_path / "reference")
    images, mask = padded(97, 130)
    given = {"pixel_values": images, "pixel_mask": mask.long()}
    for found, expected in zip(pair.ours(images, pixel_mask=mask), answers(pair.reference(**given)), strict=True):
        close(found, expected)
    save_published(pair.ours, tmp_path / "again", PUBLISHED)
    opened, keys = open_reference(transformers, pair.case.architecture, tmp_path / "again")
    assert keys == {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}
    for one, other in zip(answers(opened(**given)), answers(pair.reference(**given)), strict=True):
        close(one, other)


# As facebook/detr-resnet-50 has it.
PUBLISHED_CONFIG = {
    "activation_dropout": 0.0, "activation_function": "relu", "architectures": ["DetrForObjectDetection"],
    "attention_dropout": 0.0, "auxiliary_loss": False, "backbone": "resnet50", "bbox_cost": 5,
    "bbox_loss_coefficient": 5, "class_cost": 1, "classifier_dropout": 0.0, "d_model": 256,
    "decoder_attention_heads": 8, "decoder_ffn_dim": 2048, "decoder_layerdrop": 0.0, "decoder_layers": 6,
    "dice_loss_coefficient": 1, "dilation": False, "dropout": 0.1, "encoder_attention_heads": 8,
    "encoder_ffn_dim": 2048, "encoder_layerdrop": 0.0, "encoder_layers": 6, "eos_coefficient": 0.1, "giou_cost": 2,
    "giou_loss_coefficient": 2, "id2label": {"0": "N/A", "1": "person", "2": "N/A"}, "init_std": 0.02,
    "init_xavier_std": 1.0, "is_encoder_decoder": True, "label2id": {"N/A": 2, "person": 1},
    "mask_loss_coefficient": 1, "max_position_embeddings": 1024, "model_type": "detr", "num_channels": 3,
    "num_hidden_layers": 6, "num_queries": 100, "position_embedding_type": "sine", "scale_embedding": False,
    "torch_dtype": "float32", "transformers_version": "4.27.0.dev0", "use_pretrained_backbone": True,
    "use_timm_backbone": True,
}  # fmt: skip


def test_published_configurations_are_the_published_sizes():
    read = PUBLISHED["detr"].sizes_of
    assert read(PUBLISHED_CONFIG) == SIZES["resnet-50"]
    assert read({**PUBLISHED_CONFIG, "dilation": True}) == SIZES["resnet-50-dc5"]
    assert read({**PUBLISHED_CONFIG, "backbone": "resnet101"}) == SIZES["resnet-101"]
    for sizes in SIZES.values():
        assert read(PUBLISHED["detr"].config.write(sizes)) == sizes


def small_dc5() -> DetrSizes:
    return DetrSizes(
        stage_widths=(64, 128, 256, 512), stage_depths=(2, 2, 2, 2), residual="basic", last_stride=1, queries=3,
        width=16, encoder_hidden=16, decoder_hidden=16, encoder_heads=2, decoder_heads=2, encoder_layers=1,
        decoder_layers=1,
    )  # fmt: skip


@torch.no_grad()
def test_a_dilated_network_is_written_and_read_by_the_names_of_timm(tmp_path):
    model = build("detr", small_dc5(), HeadChoice("detection", ("cat", "dog"))).eval()
    save_published(model, tmp_path, PUBLISHED)
    written = read_json(tmp_path / "config.json")
    assert written["dilation"] is True
    assert written["backbone_config"]["output_stride"] == 16
    assert f"{BODY}layer4.1.bn2.running_var" in read_tensors(tmp_path / "model.safetensors")
    again, images = load_model(tmp_path), torch.randn(1, 3, 64, 96)
    assert again.sizes == model.sizes
    for one, other in zip(again(images), model(images), strict=True):
        close(one, other)


@pytest.mark.parametrize("size", ["resnet-50", "resnet-101"])
def test_published_sizes_have_the_reference_count(size):
    depths = list(SIZES[size].stage_depths)
    with torch.device("meta"):
        reference = transformers.DetrForObjectDetection(
            DetrConfig(
                use_timm_backbone=False,
                backbone_config=ResNetConfig(depths=depths, out_features=["stage4"]),
                num_labels=91,
            )
        )
    labels = HeadChoice("detection", tuple(f"{number}" for number in range(91)))
    counted = count_parameters("detr", SIZES[size], labels)
    assert counted == sum(parameter.numel() for parameter in reference.parameters())
    assert counted == pytest.approx({"resnet-50": 41e6, "resnet-101": 60e6}[size], rel=0.02)  # [carion2020 tab.1]
    assert counted == count_parameters("detr", SIZES[f"{size}-dc5"], labels)


def test_configurations_that_ask_for_something_else_are_refused(detector, tmp_path):
    save_published(detector.ours, tmp_path, PUBLISHED)
    whole = read_json(tmp_path / "config.json")
    body = whole["backbone_config"]
    for changed, reason in [
        ({"auxiliary_loss": True}, "auxiliary_loss"),
        ({"position_embedding_type": "learned"}, "position_embedding_type"),
        ({"backbone_config": {**body, "downsample_in_bottleneck": True}}, "downsample_in_bottleneck"),
        ({"backbone_config": {**body, "model_type": "swin"}}, "residual one, not 'swin'"),
        ({"backbone_config": {"model_type": "timm_backbone", "backbone": "vgg16"}}, "not 'vgg16'"),
        ({"backbone_config": None, "use_timm_backbone": False}, "lacks backbone_config"),
        ({"dilation": True}, "no dilation"),
        ({"new_key": 1}, "new_key"),
    ]:
        write_json(tmp_path / "config.json", {**whole, **changed})
        with pytest.raises(QkvError, match=reason):
            load_model(tmp_path)
