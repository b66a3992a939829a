"""`certify` of models that find boxes and points."""

import pytest
import torch

from qkv.models.catalogue import build
from qkv.models.detr import DetrSizes
from qkv.models.head_choice import HeadChoice
from qkv.models.vitpose import ViTPoseSizes
from qkv.weights.certify import certify, compare_models, open_reference, reference_library
from qkv.weights.compare import settings_for
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from qkv.weights.save import save_model
from tests.models.small import perturb

DETR = DetrSizes(
    stem=4, stage_widths=(8, 12), stage_depths=(1, 2), queries=5, width=16, encoder_hidden=20, decoder_hidden=24,
    encoder_heads=2, decoder_heads=4, encoder_layers=2, decoder_layers=2,
)  # fmt: skip
POSE = ViTPoseSizes(image=32, image_width=24, patch=8, width=16, hidden=32, heads=2, layers=2)
CASES = {
    "objects": ("detr", DETR, HeadChoice("detection", ("ant", "bee"))),
    "states": ("detr", DETR, HeadChoice("states")),
    "points": ("vitpose", POSE, HeadChoice("keypoints", ("nose", "ear"))),
}


@pytest.fixture(params=CASES)
def folder(request, tmp_path):
    torch.manual_seed(0)
    model = build(*CASES[request.param])
    perturb(model)
    save_model(model, tmp_path)
    return tmp_path


def test_a_folder_passes(folder):
    report = certify(folder, rows=(1, 3))
    assert report.passed, [each for each in report.findings if not each.passed]
    model = load_model(folder)
    kinds = {"detection": {"logits", "boxes"}, "states": {"states"}, "keypoints": {"maps"}}
    assert {each.answer for each in report.findings} == kinds[model.head_choice.kind]
    paddings = {"none"} if model.family == "vitpose" else {"none", "right"}
    assert {each.setting.padding for each in report.findings} == paddings
    assert {each.dtype for each in report.findings} == {"float32", "bfloat16"}


def test_a_model_that_is_not_the_reference_fails(folder, tmp_path):
    model = load_model(folder)
    save_published(model, tmp_path / "published", PUBLISHED)
    names = PUBLISHED[model.family].architectures
    reference, _ = open_reference(reference_library(), names[model.head_choice.kind], tmp_path / "published")
    with torch.no_grad():
        next(iter(model.parameters())).mul_(1.05)
    findings = compare_models(model, reference, settings_for(model, 64, rows=(1,)), dtypes=("float32",))
    assert findings
    assert not any(each.passed for each in findings)
