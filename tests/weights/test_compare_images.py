"""`certify` for models of pictures: it agrees with the reference where it should, and sees what differs."""

import json

import pytest
import torch
from transformers import CLIPConfig, CLIPTextConfig, DeiTConfig, ViTConfig
from typer.testing import CliRunner

from qkv.cli.main import app_for
from qkv.errors import QkvError
from qkv.weights.certify import certify, compare_models
from qkv.weights.compare import settings_for
from qkv.weights.compare_images import with_end
from qkv.weights.save import save_model
from tests.models.small_images import small_model
from tests.parity.published import Case, reference_pair

PIXELS = {"image_size": 32, "patch_size": 8}
TOWER = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
WORDS = {"vocab_size": 41, "max_position_embeddings": 20, "eos_token_id": 40, "projection_dim": 16}
CASES = {
    "ViT": Case("ViTForImageClassification", ViTConfig(**TOWER, **PIXELS, num_labels=3)),
    "ViT, pooled": Case("ViTModel", ViTConfig(**TOWER, **PIXELS)),
    "DeiT": Case("DeiTForImageClassificationWithTeacher", DeiTConfig(**TOWER, **PIXELS, num_labels=3)),
    "CLIP": Case(
        "CLIPModel",
        CLIPConfig(text_config={**TOWER, **WORDS}, vision_config={**TOWER, **PIXELS}, projection_dim=16),
    ),
    "CLIP's texts": Case("CLIPTextModelWithProjection", CLIPTextConfig(**TOWER, **WORDS)),
    "CLIP's texts, as of old": Case("CLIPTextModel", CLIPTextConfig(**TOWER, **{**WORDS, "eos_token_id": 2})),
}


@pytest.mark.parametrize("name", CASES)
def test_a_published_folder_is_certified(name, tmp_path):
    pair = reference_pair(CASES[name], tmp_path)
    report = certify(tmp_path, rows=[1, 3])
    assert report.passed, [each for each in report.findings if not each.passed]
    assert report.architecture == CASES[name].architecture
    if name != "CLIP's texts" and "texts" not in name:
        sizes = {(each.setting.length, each.setting.width) for each in report.findings}
        assert sizes == {(8, 8), (8, 32), (32, 32), (48, 32)}
    with torch.no_grad():
        next(iter(pair.ours.parameters())).mul_(1.01)
    settings = settings_for(pair.ours, 20, rows=[2])
    assert not all(each.passed for each in compare_models(pair.ours, pair.reference, settings, dtypes=["float32"]))


def test_a_folder_of_our_own_is_exported_and_certified(tmp_path):
    save_model(small_model("deit", "distilled"), tmp_path)
    assert certify(tmp_path, rows=[2], dtypes=["float32"]).passed


def test_the_longest_side_is_bounded(tmp_path):
    save_model(small_model("vit", "classification"), tmp_path)
    report = certify(tmp_path, rows=[2], longest=12, dtypes=["float32"])
    assert {(each.setting.length, each.setting.width) for each in report.findings} == {(4, 4), (4, 12), (12, 12)}
    with pytest.raises(QkvError, match="reads rows of 1 to 18 pixels, so it cannot be compared at 19"):
        certify(tmp_path, longest=19)


@pytest.mark.parametrize(("family", "kind"), [("vit", "embedding")])
def test_what_cannot_be_compared_yet_says_so(family, kind, tmp_path):
    save_model(small_model(family, kind), tmp_path)
    with pytest.raises(QkvError, match=f"family {family} with this head cannot be certified yet"):
        certify(tmp_path)


def test_the_command_line_shows_sizes_of_pictures(tmp_path):
    save_model(small_model("vit", "classification"), tmp_path)
    result = CliRunner().invoke(app_for(["certify"]), ["certify", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "up to 18 pixels" in result.output
    assert "18×12" in result.output
    assert json.loads((tmp_path / "parity.json").read_text())["passed"]


def test_texts_end_once_where_their_last_real_token_is():
    ids, real = torch.tensor([[5, 1, 5, 2], [3, 5, 5, 1]]), torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    assert with_end(ids, real, 5, 6).tolist() == [[0, 1, 5, 2], [3, 0, 0, 5]]
    assert with_end(ids, real, None, 6).tolist() == [[0, 1, 5, 2], [3, 0, 0, 5]]
    assert with_end(ids, real, 3, 6).tolist() == [[5, 1, 3, 2], [4, 5, 5, 3]]
