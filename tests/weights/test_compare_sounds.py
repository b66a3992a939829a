"""Sounds compared: equal models are found equal, and a change is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ASTConfig, Wav2Vec2Config

from qkv.weights.compare_sounds import hears_sounds, sound_answers
from tests.models.small_text import small_model
from tests.parity.published import Case, close, reference_pair
from tests.parity.test_wav2vec2 import SMALL, STABLE

CASES = {
    "ctc": Case("Wav2Vec2ForCTC", Wav2Vec2Config(**SMALL)),
    "stable": Case("Wav2Vec2ForSequenceClassification", Wav2Vec2Config(**STABLE)),
    "pretraining": Case("Wav2Vec2ForPreTraining", Wav2Vec2Config(**SMALL)),
    "pictures": Case(
        "ASTModel",
        ASTConfig(hidden_size=12, num_hidden_layers=1, num_attention_heads=2, num_mel_bins=20, max_length=30),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_the_same_model_answers_the_same_and_another_does_not(name: str, padded: bool, tmp_path: Path) -> None:
    pair = reference_pair(CASES[name], tmp_path)
    assert hears_sounds(pair.ours)

    def both(seed: int) -> list[Any]:
        return sound_answers(pair.ours, pair.reference, 9, 5, padded, seed)

    for seed in (0, 7):
        for _, found, expected in both(seed):
            assert found.shape == expected.shape
            close(found, expected)
    last = next(iter(pair.ours.stack.blocks[-1].feed_forward.mixer.parameters()))
    last += 0.1 * torch.randn_like(last)
    _, found, expected = both(0)[0]
    assert (found - expected).abs().max() > 1e-3


def test_texts_are_no_sounds() -> None:
    assert not hears_sounds(small_model("bert"))
