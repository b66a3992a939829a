"""ViT and DeiT as timm saves them, against what timm answers: see `fixtures/make_timm.py`."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from qkv.errors import QkvError
from qkv.files import read_json
from qkv.models.catalogue import count_parameters
from qkv.weights.certify import open_reference
from qkv.weights.convert import convert
from qkv.weights.export import export
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.maps.timm import read_config, rules
from qkv.weights.rules import to_theirs
from qkv.weights.save import tensors_of
from tests.parity.fixtures.make_timm import RESOLUTIONS, pictures
from tests.parity.published import close

HERE = Path(__file__).parent / "fixtures"
WRITTEN = read_json(HERE / "timm.json")
CONFIGS: dict[str, Any] = WRITTEN["configs"]


def fixture(name: str, kind: str) -> dict[str, Tensor]:
    tensors = load_file(HERE / f"timm_{name}.safetensors")
    return {key.removeprefix(f"{kind}."): tensor for key, tensor in tensors.items() if key.startswith(f"{kind}.")}


def write(folder: Path, name: str, tensors: dict[str, Tensor] | None = None, **changes: Any) -> Path:
    save_file({**fixture(name, "model"), **(tensors or {})}, folder / "model.safetensors")
    config = {**CONFIGS[name], **changes}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_answers_are_those_of_timm_at_all_resolutions(name, tmp_path):
    model = load_model(write(tmp_path, name))
    for height, width in RESOLUTIONS:
        expected = fixture(name, "answer")[f"{height}x{width}"]
        close(model(pictures(model.sizes.channels, height, width)), expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_are_those_of_timm(name, tmp_path):
    model = load_model(write(tmp_path, name))
    answer = model(pictures(model.sizes.channels, 48, 24))
    (answer * torch.cos(torch.arange(answer.numel())).reshape(answer.shape)).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    found = to_theirs(rules(model.family, model.sizes.query_bias, model.head_choice), tensors_of(model))
    expected = fixture(name, "gradient")
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, atol=1e-4, rtol=1e-3, msg=key)


@pytest.mark.parametrize("name", ["vit", "deit_distilled", "vit_plain"])
@torch.no_grad()
def test_what_was_timm_s_is_exported_to_transformers(name, tmp_path):
    (tmp_path / "timm").mkdir()
    folder = export(write(tmp_path / "timm", name), tmp_path / "out")
    config = read_json(folder / "config.json")
    opened, keys = open_reference(transformers, config["architectures"][0], folder)
    assert not any(keys.values())
    assert config["layer_norm_eps"] == 1e-6
    found = opened(pictures(PUBLISHED[config["model_type"]].sizes_of(config).channels, 32, 32))
    close(found.last_hidden_state if name == "vit_plain" else found.logits, fixture(name, "answer")["32x32"])


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@torch.no_grad()
def test_a_folder_with_a_pickle_is_rewritten(dtype, tmp_path):
    folder = tmp_path / "timm"
    folder.mkdir()
    tensors = load_file(write(folder, "vit") / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(QkvError, match="a pickle: `qkv convert"):
        load_model(folder)
    found = load_model(convert(folder, tmp_path / "out", dtype=dtype))(pictures(3, 32, 32))
    expected = fixture("vit", "answer")["32x32"]
    torch.testing.assert_close(found, expected, atol=2e-5 if dtype is None else 0.1, rtol=1e-4)


@pytest.mark.parametrize("architecture", WRITTEN["counts"])
def test_a_name_stands_for_the_sizes_that_it_has_in_timm(architecture):
    family, sizes, head = read_config({"architecture": architecture, "num_classes": 1000}, Path("folder"))
    assert count_parameters(family, sizes, head) == WRITTEN["counts"][architecture]


def test_a_published_configuration_is_read():
    """As the hub has it: without arguments, the size of pictures and the labels beside."""
    config = {
        "architecture": "vit_base_patch32_384",
        "num_classes": 2,
        "num_features": 768,
        "global_pool": "token",
        "label_names": ["n01440764", "n01443537"],
        "label_descriptions": {"n01440764": "tench", "n01443537": "goldfish"},
        "pretrained_cfg": {"tag": "augreg_in21k_ft_in1k", "input_size": [3, 384, 384], "mean": [0.5, 0.5, 0.5]},
    }
    family, sizes, head = read_config(config, Path("folder"))
    assert (family, sizes.image, sizes.patch, sizes.width, sizes.epsilon) == ("vit", 384, 32, 768, 1e-6)
    assert head.labels == ("n01440764", "n01443537")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"architecture": "swin_tiny_patch4_window7_224"}, "holds timm's swin_tiny_patch4_window7_224; of timm's"),
        ({"architecture": "vit_base_patch16_clip_224"}, "qkv reads vit_"),
        ({"global_pool": "avg"}, "with global_pool 'avg'; qkv reads those with 'token'"),
        ({"model_args": {"init_values": 1e-5}}, "with init_values 1e-05; qkv reads those with None"),
        ({"model_args": {"reg_tokens": 4}}, "with reg_tokens 4"),
        ({"model_args": {"twist": 1}}, "arguments that qkv does not know: twist"),
        ({"model_args": [1]}, '"model_args" must be an object'),
        ({"num_features": 9}, "num_features 9 for 12"),
        ({"extra": 1}, "keys that timm does not write: extra"),
        ({"pretrained_cfg": {"input_size": [3, 32, 48]}}, "square pictures"),
        ({"label_names": ["a", "b"]}, "must name each of its 5 classes"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_not_read_is_refused(changes, complaint, tmp_path):
    with pytest.raises(QkvError) as raised:
        load_model(write(tmp_path, "vit", **changes))
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("tensor", "complaint"),
    [
        ("blocks.0.ls1.gamma", "LayerScale"),
        ("reg_token", "register tokens"),
        ("norm_pre.weight", "a norm before the first block"),
        ("fc_norm.weight", "a norm after the mean"),
        ("something", "no place for: something"),
    ],
)
def test_tensors_of_other_kinds_of_vit_are_refused(tensor, complaint, tmp_path):
    with pytest.raises(QkvError, match=complaint):
        load_model(write(tmp_path, "vit", {tensor: torch.ones(12)}))
