"""Whisper's classifier of sounds against the reference library's, with noise on every parameter."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor
from transformers import WhisperConfig, WhisperFeatureExtractor

import qkv
from qkv.api.sound_training import SoundTraining, train_sound_classifier
from qkv.data.labelled_sounds import LabelledSounds
from qkv.data.plan import RowCount
from qkv.errors import QkvError
from qkv.generate.sound_readers import SoundClassifier
from qkv.look.sound_maps import record_sound
from qkv.models.catalogue import count_parameters
from qkv.models.frame_model import FrameModel
from qkv.models.head_choice import HeadChoice
from qkv.models.whisper import ENCODER_SIZES
from qkv.train.settings import TrainSettings
from qkv.weights.certify import certify, open_reference
from qkv.weights.load import load_model, with_head
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.maps.whisper import WHISPER_ENCODER
from qkv.weights.published import save_published
from qkv.weights.rules import to_theirs
from qkv.weights.save import tensors_of
from tests.parity.published import Case, Pair, answers, close, reference_pair

SMALL = {
    "num_mel_bins": 10, "d_model": 24, "encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 40,
    "max_source_positions": 50, "vocab_size": 30, "decoder_layers": 1, "decoder_attention_heads": 2,
    "decoder_ffn_dim": 8, "pad_token_id": 3, "bos_token_id": 3, "eos_token_id": 3, "decoder_start_token_id": 3,
    "classifier_proj_size": 11, "num_labels": 5,
}  # fmt: skip
NAME = "WhisperForAudioClassification"
CASES = {
    "the last layer": Case(NAME, WhisperConfig(**SMALL)),
    "all layers": Case(NAME, WhisperConfig(**SMALL, use_weighted_layer_sum=True)),
    "relu, one layer, one head": Case(
        NAME,
        WhisperConfig(
            **{**SMALL, "encoder_layers": 1, "encoder_attention_heads": 1, "activation_function": "relu"},
            use_weighted_layer_sum=True,
        ),
    ),
}


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return reference_pair(CASES[request.param], tmp_path_factory.mktemp("reference"))


def frames(rows: int = 2) -> Tensor:
    return torch.randn(rows, 10, 100)


@torch.no_grad()
def test_outputs_agree(pair: Pair) -> None:
    assert isinstance(pair.ours, FrameModel)
    for rows in (1, 3):
        given = frames(rows)
        for one, other in zip(answers(pair.ours(given)), answers(pair.reference(given)), strict=True):
            close(one, other)


def test_gradients_agree(pair: Pair) -> None:
    """Of all that is learned; positions are given."""
    given, weights = frames(), torch.randn(2, 5)
    for model in (pair.ours, pair.reference):
        model.zero_grad()
        (answers(model(given))[0] * weights).sum().backward()
    gradients = copy.deepcopy(pair.ours)
    with torch.no_grad():
        for parameter, own in zip(gradients.parameters(), pair.ours.parameters(), strict=True):
            parameter.copy_(own.grad)
    rules = WHISPER_ENCODER.rules(pair.ours.sizes, pair.ours.head_choice)
    found = to_theirs(rules, tensors_of(gradients))
    learned = {name: each for name, each in pair.reference.named_parameters() if each.requires_grad}
    assert len(learned) == len(found) - 1
    for name, parameter in learned.items():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-4, rtol=1e-3, msg=name)


@torch.no_grad()
def test_what_is_exported_the_reference_opens(pair: Pair, tmp_path: Path) -> None:
    save_published(pair.ours, tmp_path, PUBLISHED, {"pad_token_id": 3})
    opened, keys = open_reference(transformers, NAME, tmp_path)
    assert keys == {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}
    given = frames()
    close(opened(given).logits, pair.reference(given).logits)
    assert certify(tmp_path, rows=(1, 2), dtypes=["float32"]).passed


def test_a_model_that_writes_is_still_one_that_writes(tmp_path: Path) -> None:
    """Both have one type, and the architecture tells."""
    transformers.WhisperForConditionalGeneration(WhisperConfig(**SMALL)).save_pretrained(tmp_path)
    assert load_model(tmp_path).family == "whisper"


@torch.no_grad()
def test_from_samples_to_labels(tmp_path: Path) -> None:
    """A published folder with its preparation: the same sound gets the same answer."""
    pair = reference_pair(CASES["all layers"], tmp_path)
    theirs = WhisperFeatureExtractor(feature_size=10, chunk_length=1)
    theirs.save_pretrained(tmp_path)
    wave = torch.sin(torch.arange(9001) / 7.0) * 0.3
    given = theirs(wave.numpy(), sampling_rate=16000, return_tensors="pt").input_features
    expected = pair.reference(given).logits[0].softmax(-1)
    use = qkv.load(tmp_path, "cpu")
    assert isinstance(use, SoundClassifier)
    found = use.run([wave])[0]
    torch.testing.assert_close(torch.tensor(list(found.probabilities.values())), expected, atol=1e-4, rtol=1e-3)
    with pytest.raises(QkvError, match="look at a Whisper"):
        record_sound(use, wave)


def test_it_learns_other_classes(tmp_path: Path) -> None:
    use = qkv.load(_saved(tmp_path / "published"), "cpu")
    waves = [torch.randn(8000) for _ in range(4)]
    data = LabelledSounds(waves, torch.tensor([0, 1, 0, 1]).numpy(), ("low", "high"))
    how = SoundTraining(batching=RowCount(2), settings=TrainSettings(steps=1, device="cpu", keep=1), hold_out=0.0)
    after = train_sound_classifier(data, tmp_path / "run", model=use, how=how)
    assert qkv.load(tmp_path / "run", "cpu").run(waves) == after.run(waves)


def _saved(folder: Path) -> Path:
    reference_pair(CASES["the last layer"], folder)
    return folder


@torch.no_grad()
def test_other_heads_hear_the_same(pair: Pair) -> None:
    plain = with_head(pair.ours, HeadChoice("states"))
    given = frames()
    expected = pair.reference.encoder(given).last_hidden_state
    close(plain(given), expected)
    vector = with_head(pair.ours, HeadChoice("embedding", pooling="mean"))
    close(vector(given), expected.mean(1))


def test_as_many_parameters_as_published() -> None:
    config = WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, num_labels=9)
    with torch.device("meta"):
        reference = transformers.WhisperForAudioClassification(config)
    positions = 1500 * 384  # given, and no parameter of ours
    expected = sum(parameter.numel() for parameter in reference.parameters()) - positions
    head = HeadChoice("classification", tuple("abcdefghi"))
    assert count_parameters("whisper-encoder", ENCODER_SIZES["tiny"], head) in (expected, expected + positions)
