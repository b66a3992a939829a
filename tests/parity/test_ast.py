"""AST against the reference library's, with noise on every parameter: outputs, gradients, files both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor
from transformers import ASTConfig, ASTFeatureExtractor

from qkv.data.sound_processor import read_sound_processor
from qkv.models.catalogue import FAMILIES, count_parameters
from qkv.models.head_choice import HeadChoice
from qkv.weights.certify import open_reference
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from tests.parity.pictures import check_gradients_by_file
from tests.parity.published import Case, Pair, answers, close, reference_pair

SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "num_mel_bins": 32,
    "max_length": 64,
}
CASES = {
    "pooled": Case("ASTModel", ASTConfig(**SMALL)),
    "classification": Case("ASTForAudioClassification", ASTConfig(**SMALL, num_labels=5)),
    "other strides, no query bias, relu": Case(
        "ASTForAudioClassification",
        ASTConfig(
            **{**SMALL, "num_attention_heads": 1},
            patch_size=8,
            frequency_stride=6,
            time_stride=7,
            qkv_bias=False,
            hidden_act="relu",
            layer_norm_eps=1e-3,
            num_labels=2,
        ),
    ),
}


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return reference_pair(CASES[request.param], tmp_path_factory.mktemp("reference"))


def pictures(rows: int = 2) -> Tensor:
    """[b 1 m n]; the reference takes them on their side."""
    return torch.randn(rows, 1, 32, 64)


def of_reference(pair: Pair, given: Tensor) -> tuple[Tensor, ...]:
    return answers(pair.reference(given[:, 0].transpose(1, 2)))


@torch.no_grad()
def test_outputs_agree(pair: Pair) -> None:
    for rows in (1, 3):
        given = pictures(rows)
        for one, other in zip(answers(pair.ours(given)), of_reference(pair, given), strict=True):
            close(one, other)


def test_gradients_agree(pair: Pair, tmp_path: Path) -> None:
    given = pictures()
    check_gradients_by_file(pair, tmp_path, lambda: answers(pair.ours(given)), lambda: of_reference(pair, given))


@torch.no_grad()
def test_what_is_exported_the_reference_opens(pair: Pair, tmp_path: Path) -> None:
    save_published(pair.ours, tmp_path, PUBLISHED)
    opened, keys = open_reference(transformers, pair.case.architecture, tmp_path)
    assert keys == {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}
    given = pictures()
    found = answers(opened(given[:, 0].transpose(1, 2)))
    for one, other in zip(found, of_reference(pair, given), strict=True):
        close(one, other)


@torch.no_grad()
def test_from_samples_to_labels(tmp_path: Path) -> None:
    """A published folder with its preparation: the same sound gets the same answer."""
    config = ASTConfig(**{**SMALL, "num_mel_bins": 40}, num_labels=3)
    pair = reference_pair(Case("ASTForAudioClassification", config), tmp_path)
    theirs = ASTFeatureExtractor(num_mel_bins=40, max_length=64)
    theirs.save_pretrained(tmp_path)
    wave = torch.sin(torch.arange(9001) / 7.0) * 0.3
    expected = pair.reference(**theirs(wave.numpy(), sampling_rate=16000, return_tensors="pt")).logits
    found = load_model(tmp_path)(read_sound_processor(tmp_path)(wave[None]).values)
    close(found, expected)


@torch.no_grad()
def test_longer_and_shorter_sounds_are_read_too(pair: Pair) -> None:
    """The reference reads one length alone; ours stretches the positions."""
    for frames in (16, 50, 200):
        found = pair.ours(torch.randn(1, 1, 32, frames))
        assert all(each.isfinite().all() for each in answers(found))


def test_as_many_parameters_as_published() -> None:
    """Of the model published for AudioSet. [gong2021 §2.2]"""
    with torch.device("meta"):
        reference = transformers.ASTForAudioClassification(ASTConfig(num_labels=527))
    head = HeadChoice("classification", tuple(str(number) for number in range(527)))
    found = count_parameters("ast", FAMILIES["ast"].published["base"], head)
    assert found == sum(parameter.numel() for parameter in reference.parameters()) == 86_594_063
