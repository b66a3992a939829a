"""Hidden frames told apart: the reference's losses, and a model that learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Wav2Vec2Config

from qkv.data.plan import PlannedBatch
from qkv.data.sound_rows import HiddenBatch, HiddenRows, SpokenRows
from qkv.data.span_hiding import SpanHiding
from qkv.errors import QkvError
from qkv.models.sound_model import SoundModel
from qkv.train.objectives.ctc import CTCLoss
from qkv.train.objectives.sound_pretraining import FrameLoss
from tests.models.small_sounds import new_sound, small_sound
from tests.parity.published import Case, reference_pair
from tests.parity.test_wav2vec2 import SMALL

SAMPLES = [1500, 1203, 2000]


def batch_for(model: SoundModel, **options: object) -> HiddenBatch:
    torch.manual_seed(5)
    waves = [torch.randn(length) for length in SAMPLES]
    rows = HiddenRows(waves, frames=model.frames.frames_of, hide=SpanHiding(0.5, 4, 1), distractors=7, **options)
    return rows.batch(PlannedBatch(np.arange(3), max(SAMPLES), 1, 1))


@pytest.mark.parametrize("learning", [False, True])
def test_the_losses_are_those_of_the_reference(tmp_path: Path, learning: bool) -> None:
    """While learning the choices are random, so the reference is given the same noise."""
    off = dict.fromkeys(("hidden_dropout", "activation_dropout", "attention_dropout", "layerdrop"), 0.0)
    config = Wav2Vec2Config(**{**SMALL, "feat_extract_norm": "layer"}, **off, mask_feature_prob=0.0)
    pair = reference_pair(Case("Wav2Vec2ForPreTraining", config), tmp_path)
    batch = batch_for(pair.ours)
    slots = batch.hidden_frames.shape[1]
    negatives = torch.zeros(*batch.hidden_frames.shape, 7, dtype=torch.long)
    negatives.flatten(0, 1)[batch.places] = batch.distractors
    mask = (torch.arange(batch.waves.shape[1]) < batch.lengths[:, None]).long()
    pair.ours.train(learning), pair.reference.train(learning)
    before = pair.reference.quantizer.register_forward_pre_hook(lambda *_: torch.manual_seed(9) and None)
    same = pair.ours.head.quantiser.register_forward_pre_hook(lambda *_: torch.manual_seed(9) and None)
    expected = pair.reference(
        batch.waves, attention_mask=mask, mask_time_indices=batch.hidden_frames, sampled_negative_indices=negatives
    )
    found = FrameLoss().measure(pair.ours, batch)
    before.remove(), same.remove()
    assert slots == pair.ours.frames.count(max(SAMPLES))
    for name, other in (("loss", expected.loss), ("contrastive", expected.contrastive_loss)):
        torch.testing.assert_close(found[name].total, other, atol=1e-3, rtol=1e-4)
        assert found[name].count == len(batch.places) == int(batch.hidden_frames.sum())
    used = found["entries_used"].total / found["entries_used"].count
    torch.testing.assert_close(used, expected.codevector_perplexity, atol=1e-4, rtol=1e-4)


def test_a_distractor_that_is_the_same_is_no_wrong_answer() -> None:
    model = small_sound("base", "pretraining")
    batch = batch_for(model)
    batch = replace(batch, distractors=batch.places[:, None].expand(-1, 3).clone())
    with torch.no_grad():
        measured = FrameLoss(diversity=0.0).measure(model, batch)
    assert float(measured["loss"].total) == pytest.approx(0, abs=1e-5)
    assert float(measured["accuracy"].total) == len(batch.places)


def test_filler_hides_nothing_and_other_epochs_hide_others() -> None:
    model = small_sound("base", "pretraining")
    batch, again, later = (batch_for(model, epoch=epoch) for epoch in (0, 0, 1))
    assert not batch.hidden_frames[3].any()
    assert torch.equal(batch.places, again.places)
    assert torch.equal(batch.distractors, again.distractors)
    assert not torch.equal(batch.hidden_frames, later.hidden_frames)
    rows = torch.arange(4).repeat_interleave(batch.hidden_frames.shape[1])
    assert (rows[batch.distractors] == rows[batch.places][:, None]).all()
    assert batch.hidden_frames.flatten()[batch.distractors].all()


def test_a_model_learns_to_find_hidden_frames_again() -> None:
    torch.manual_seed(0)
    model = new_sound("prenorm", "pretraining").train()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    batch = batch_for(model)
    losses = []
    for _ in range(60):
        loss = FrameLoss()(model, batch)
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
        losses.append(float(loss.total) / loss.count)
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.2


def test_what_cannot_be_learned_from_is_refused() -> None:
    model = small_sound()
    batch = batch_for(model)
    with pytest.raises(QkvError, match="head 'pretraining'"):
        FrameLoss()(model, batch)
    rows = HiddenRows([torch.randn(40)], frames=small_sound().frames.frames_of)
    with pytest.raises(QkvError, match="No span of 10 frames"):
        rows.batch(PlannedBatch(np.arange(1), 40, 1))


@pytest.mark.parametrize("sizes", ["base", "prenorm"])
def test_losses_at_the_precision_of_training(sizes: str) -> None:
    """Under autocast both losses are computed in single precision, and are about what they are without it."""
    writer, finder = new_sound(sizes, "ctc"), new_sound(sizes, "pretraining")
    hidden = batch_for(finder)
    waves = [torch.randn(1000), torch.randn(700)]
    rows = SpokenRows(waves, [[1, 2, 2, 3], [4]], frames=writer.frames.frames_of)
    spoken = rows.batch(PlannedBatch(np.arange(2), 1000, 1, 1))
    for model, objective, batch in ((writer, CTCLoss(), spoken), (finder, FrameLoss(), hidden)):
        expected = objective(model, batch)
        with torch.autocast("cpu", torch.bfloat16):
            found = objective(model, batch)
        assert found.total.dtype == torch.float32
        assert float(found.total) == pytest.approx(float(expected.total), rel=0.1)
        found.total.backward()
        assert all(each.grad.isfinite().all() for each in model.parameters() if each.grad is not None)
