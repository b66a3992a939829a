"""What was said: the loss of all paths, alone and in batches, and as the reference has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

from qkv.data.labelled_sounds import LabelledSounds
from qkv.data.plan import PlannedBatch
from qkv.data.sound_features import FilterBank
from qkv.data.sound_rows import SpokenRows
from qkv.data.span_hiding import SpanHiding
from qkv.errors import QkvError
from qkv.generate.ctc import ctc_log_probability, read_greedily
from qkv.models.ast import ASTSizes
from qkv.models.catalogue import build
from qkv.models.head_choice import HeadChoice
from qkv.models.sound_model import SoundModel
from qkv.train.objectives.ctc import CTCLoss
from qkv.train.objectives.sound_labels import SoundLabelLoss
from qkv.weights.load import load_model
from tests.models.small_sounds import LABELS, SHORTEST, new_sound, small_sound
from tests.parity.test_wav2vec2 import SMALL

TEXTS = [[1, 2, 3], [4, 4], [5], []]
SAMPLES = [333, 200, SHORTEST, 150]


def rows(model: SoundModel, **options: object) -> SpokenRows:
    torch.manual_seed(5)
    return SpokenRows([torch.randn(length) for length in SAMPLES], TEXTS, frames=model.frames.frames_of, **options)


def planned(filler: int = 0, wider: int = 0) -> PlannedBatch:
    return PlannedBatch(np.arange(4), max(SAMPLES) + wider, 1, filler)


@pytest.mark.parametrize("sizes", ["base", "prenorm"])
def test_the_loss_is_that_of_all_paths(sizes: str) -> None:
    model = small_sound(sizes)
    data = rows(model)
    with torch.no_grad():
        loss = CTCLoss()(model, data.batch(planned(filler=2, wider=50)))
        expected = sum(
            ctc_log_probability(model(wave[None])[0], text, 0)
            for wave, text in zip(data.waves, TEXTS, strict=True)
            if text
        )
    assert float(loss.total) == pytest.approx(-expected, rel=1e-4)
    assert loss.count == 6


def test_the_loss_is_that_of_the_reference(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Wav2Vec2Config(**{**SMALL, "feat_extract_norm": "layer"}, ctc_loss_reduction="sum", pad_token_id=0)
    reference = Wav2Vec2ForCTC(config).eval()
    reference.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    batch = rows(model).batch(planned())
    mask = (torch.arange(batch.waves.shape[1]) < batch.lengths[:, None]).long()
    labels = batch.letters.masked_fill(torch.arange(3) >= batch.letter_lengths[:, None], -100)
    some = slice(0, 3)  # the reference counts a sound in which nothing is said
    expected = reference(batch.waves[some], attention_mask=mask[some], labels=labels[some]).loss
    torch.testing.assert_close(CTCLoss()(model, batch).total, expected, atol=1e-4, rtol=1e-4)


def test_spans_are_hidden_while_learning_and_others_in_every_epoch() -> None:
    model = new_sound()
    hide = {"hide_frames": SpanHiding(0.5, 3, 1), "hide_channels": SpanHiding(0.3, 2, 1), "width": 12}
    batch, again, later = (rows(model, **hide, epoch=epoch).batch(planned()) for epoch in (0, 0, 1))
    assert batch.hidden_frames is not None
    assert batch.hidden_channels is not None
    assert torch.equal(batch.hidden_frames, again.hidden_frames)
    assert not torch.equal(batch.hidden_frames, later.hidden_frames)
    assert (batch.hidden_frames.sum(1) <= batch.frame_lengths).all()
    plain = rows(model).batch(planned())
    assert torch.equal(CTCLoss()(model, batch).total, CTCLoss()(model, plain).total)
    model.train()
    assert not torch.allclose(CTCLoss()(model, batch).total, CTCLoss()(model, plain).total)


def test_a_model_learns_to_write_what_it_hears() -> None:
    torch.manual_seed(0)
    model = new_sound("prenorm", hidden_share=0.0)
    batch = rows(model).batch(planned())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        loss = CTCLoss()(model, batch)
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
    assert float(loss.total) < 1
    with torch.no_grad():
        logits = model(batch.waves, lengths=batch.lengths)
    for row, text in enumerate(TEXTS[:3]):
        assert read_greedily(logits[row, : batch.frame_lengths[row]], 0).ids == text


def test_texts_that_cannot_fit_are_refused_before_anything_is_learned() -> None:
    model = small_sound()
    with pytest.raises(QkvError, match="Sound 0 has 1 frames, too few for its 2 letters"):
        SpokenRows([torch.randn(SHORTEST)], [[1, 2]], frames=model.frames.frames_of)
    with pytest.raises(QkvError, match="two alike a blank between"):
        SpokenRows([torch.randn(SHORTEST + 20)], [[1, 1]], frames=model.frames.frames_of)
    with pytest.raises(QkvError, match="2 texts"):
        SpokenRows([torch.randn(100)], [[1], [2]], frames=model.frames.frames_of)
    with pytest.raises(QkvError, match="no sound"):
        SpokenRows([], [], frames=model.frames.frames_of)


def test_labels_of_sounds() -> None:
    model = small_sound("base", "classification")
    data = LabelledSounds([torch.randn(length) for length in SAMPLES], np.array([0, 2, 1, 2]), LABELS)
    batch = data.batch(planned(filler=1))
    measured = SoundLabelLoss().measure(model, batch)
    logits = torch.cat([model(wave[None]) for wave in data.waves])
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 2, 1, 2]), reduction="sum")
    torch.testing.assert_close(measured["loss"].total, expected, atol=1e-4, rtol=1e-4)
    assert measured["accuracy"].count == 4


def test_labels_of_pictures_of_sounds() -> None:
    """An AST learns from samples, which become pictures where the batch is."""
    torch.manual_seed(0)
    sizes = ASTSizes(
        bands=16, frames=20, patch=8, frequency_stride=4, time_stride=4, width=12, hidden=16, heads=2, layers=1
    )
    model = build("ast", sizes, HeadChoice("classification", ("low", "high")))
    time = torch.arange(3000) / 16000
    waves = [torch.sin(6.28 * frequency * time) for frequency in (150, 180, 5000, 6000)]
    batch = LabelledSounds(waves, np.array([0, 0, 1, 1]), ("low", "high")).batch(PlannedBatch(np.arange(4), 3200, 1, 1))
    objective = SoundLabelLoss(features=FilterBank(bands=16, frames=20))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(30):
        measured = objective.measure(model, batch)
        optimizer.zero_grad()
        (measured["loss"].total / measured["loss"].count).backward()
        optimizer.step()
    assert int(measured["accuracy"].total) == measured["accuracy"].count == 4
