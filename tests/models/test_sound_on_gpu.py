"""Sound on a GPU: the same features, answers, losses and texts as on the CPU but for rounding.

pytest -m gpu tests/models
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from qkv.data.letters import Letters
from qkv.data.plan import PlannedBatch
from qkv.data.sound_features import FilterBank, LogMel, WaveFeatures
from qkv.data.sound_rows import HiddenRows, SpokenRows
from qkv.data.span_hiding import SpanHiding
from qkv.generate.listen import Listener
from qkv.train.objectives.ctc import CTCLoss
from qkv.train.objectives.sound_pretraining import FrameLoss
from tests.models.small_sounds import CASES, new_sound
from tests.models.test_sound_contract import LENGTHS, SAMPLES, answers

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


@pytest.fixture(autouse=True)
def exact() -> Any:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("features", [WaveFeatures(), FilterBank(frames=64), LogMel(seconds=1)], ids=repr)
def test_features(features: Any) -> None:
    waves, lengths = torch.randn(3, 16000) * 0.1, torch.tensor([16000, 9000, 401])
    expected = features(waves, lengths)
    for given in (lengths, lengths.to(DEVICE)):
        found = features(waves.to(DEVICE), given)
        assert found.values.is_cuda
        torch.testing.assert_close(found.values.cpu(), expected.values, atol=1e-4, rtol=1e-4)
        assert found.lengths.tolist() == expected.lengths.tolist()


@pytest.mark.parametrize("case", CASES, ids=" ".join)
@torch.no_grad()
def test_answers(case: tuple[str, str]) -> None:
    model, waves, lengths = new_sound(*case), torch.randn(3, SAMPLES), torch.tensor(LENGTHS)
    expected = answers(model, waves, lengths=lengths)
    counts = model.frames.frames_of(lengths).tolist()
    model = model.to(DEVICE)
    for given in (lengths, lengths.to(DEVICE)):
        found = answers(model, waves.to(DEVICE), lengths=given)
        for one, other in zip(found, expected, strict=True):
            for row, count in enumerate(counts):
                real = slice(0, count) if one.ndim > 2 else slice(None)
                torch.testing.assert_close(one[row, real].cpu(), other[row, real], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_losses_and_their_gradients(precision: torch.dtype) -> None:
    planned = PlannedBatch(np.arange(2), 1000, 1, 1)
    waves = [torch.randn(1000), torch.randn(700)]
    writer, finder = new_sound("prenorm", "ctc"), new_sound("base", "pretraining")
    spoken = SpokenRows(waves, [[1, 2, 2, 3], [4]], frames=writer.frames.frames_of).batch(planned)
    hidden = HiddenRows(waves, frames=finder.frames.frames_of, hide=SpanHiding(0.5, 4, 1), distractors=5).batch(planned)
    for model, objective, batch in ((writer, CTCLoss(), spoken), (finder, FrameLoss(), hidden)):
        expected = objective(model, batch)
        model.to(DEVICE)
        with torch.autocast(DEVICE, precision, enabled=precision != torch.float32):
            found = objective(model, batch.to(DEVICE))
        error = 1e-3 if precision == torch.float32 else 0.1
        assert float(found.total) == pytest.approx(float(expected.total), rel=error)
        assert found.count == expected.count
        found.total.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert gradients
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_texts() -> None:
    letters, waves = Letters(tuple("-|abcde"), space=1), [torch.randn(30000), torch.randn(900)]
    said = [
        Listener(new_sound("prenorm").to(device), letters, WaveFeatures(), window=0.5, overlap=0.1).run(waves)
        for device in ("cpu", DEVICE)
    ]
    for one, other in zip(*said, strict=True):
        same = sum(a.text == b.text for a, b in zip(one.words, other.words, strict=False))
        assert same >= 0.9 * len(one.words) > 0
