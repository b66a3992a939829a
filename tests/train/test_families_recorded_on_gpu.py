"""Every family with its own objective on a GPU: recorded steps, as they come by default, learn what plain ones learn.

pytest -m gpu tests/train/test_families_recorded_on_gpu.py
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qkv.data.box_rows import BoxBatch
from qkv.data.captioned import CaptionBatch
from qkv.data.image_rows import ImageBatch
from qkv.data.labelled_sounds import LabelledSoundBatch
from qkv.data.masking import MaskedBatch
from qkv.data.packing import LanguageBatch
from qkv.data.pairs import PairBatch
from qkv.data.plan import PlannedBatch
from qkv.data.preprocessing import Normalise
from qkv.data.sound_rows import HiddenRows, SpokenRows
from qkv.data.span_hiding import SpanHiding
from qkv.models.catalogue import FAMILIES, build
from qkv.models.detr import DetrSizes
from qkv.models.head_choice import HeadChoice
from qkv.train.cost.step import AlwaysThis
from qkv.train.objectives import SequenceToSequenceLoss
from qkv.train.objectives.consistency import ConsistentLoss
from qkv.train.objectives.ctc import CTCLoss
from qkv.train.objectives.detection import SetPredictionLoss
from qkv.train.objectives.embeddings import PairClassifier, PairClassLoss
from qkv.train.objectives.expert_losses import with_expert_losses
from qkv.train.objectives.image_text import ImageTextLoss
from qkv.train.objectives.images import HardDistillationLoss, ImageClassificationLoss
from qkv.train.objectives.language import LanguageLoss
from qkv.train.objectives.masked import MaskedLoss
from qkv.train.objectives.masked_patches import MaskedPatchLoss
from qkv.train.objectives.sound_labels import SoundLabelLoss
from qkv.train.objectives.sound_pretraining import FrameLoss
from qkv.train.settings import TrainSettings
from qkv.train.step import Stepper
from tests.generate.speech import SIZES as WHISPER
from tests.models.small import CASES as TRANSLATORS
from tests.models.small import shrunk
from tests.models.small import small_model as small_translator
from tests.models.small_images import IMAGE_FAMILIES
from tests.models.small_images import small_model as small_image_model
from tests.models.small_sounds import new_sound
from tests.models.small_text import TEXT_FAMILIES
from tests.models.small_text import small_model as small_text_model
from tests.train.objectives.small import all_of, small_bert
from tests.train.objectives.test_embeddings import PAIRS
from tests.train.objectives.test_on_gpu import CASES as OBJECTIVES

pytestmark = pytest.mark.gpu

STEPS = 9  # of which a record replays the last, also where two of a batch's numbers turn out to be the host's
NORMALISE = Normalise(1 / 255, (0.5,) * 3, (0.5,) * 3)
Made = tuple[nn.Module, Any, Any]  # a model, its objective and a batch


def ids(rows: int, length: int) -> Tensor:
    return torch.randint(4, 19, (rows, length), generator=torch.Generator().manual_seed(length))


def text(family: str) -> Made:
    head = "language" if "language" in FAMILIES[family].heads else "masked"
    model = small_text_model(family, head)
    length = min(16, model.longest or 16)
    if head == "language":
        tokens = ids(4, length + 1)
        batch: Any = LanguageBatch(tokens, torch.ones_like(tokens), False, 4 * length, 4 * length)
        return model, with_expert_losses(model, LanguageLoss()), batch
    places = torch.arange(0, 4 * length, 3)
    batch = MaskedBatch(ids(4, length), torch.full((4,), length), None, places, ids(1, len(places))[0])
    return model, MaskedLoss(), batch


def translation(case: str, consistent: bool = False) -> Made:
    model = small_translator(case)
    batch = PairBatch(ids(4, 9), torch.tensor([9, 9, 7, 4]), ids(4, 8), torch.tensor([8, 5, 6, 8]))
    objective = ConsistentLoss() if consistent else with_expert_losses(model, SequenceToSequenceLoss())
    return model, objective, batch


def heard() -> Made:
    model = build("whisper", replace(WHISPER, dropout=0.1))
    batch = PairBatch(
        torch.randn(3, WHISPER.mels, 100), torch.full((3,), 100), ids(3, 7), torch.full((3,), 7), 18, False
    )
    return model, SequenceToSequenceLoss(), batch


def pictures(count: int = 6) -> Tensor:
    return torch.randint(0, 256, (count, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def picture(family: str) -> Made:
    model = small_image_model(family, "distilled" if family == "deit" else "classification")
    batch = ImageBatch(pictures(), torch.arange(6) % 3, 6, seed=1)
    if family == "deit":
        teacher = copy.deepcopy(small_image_model("vit", "classification"))
        return model, HardDistillationLoss(teacher, normalise=NORMALISE), batch
    return model, ImageClassificationLoss(normalise=NORMALISE), batch


def patches() -> Made:
    batch = ImageBatch(pictures(), torch.zeros(6, dtype=torch.long), 6, seed=1)
    return small_image_model("vit", "masked"), MaskedPatchLoss(normalise=NORMALISE), batch


def captions() -> Made:
    model = build("clip", shrunk(FAMILIES["clip"].published["base-32"], image=12, patch=4, end=22))
    texts = torch.cat([ids(5, 6), torch.full((5, 1), 22)], 1)
    return model, ImageTextLoss(), CaptionBatch(pictures(5), texts, torch.full((5,), 7), NORMALISE, seed=3)


def boxes() -> Made:
    sizes = DetrSizes(
        stem=8, stage_widths=(8, 16), stage_depths=(1, 1), residual="basic", map_norm="batch", queries=4, width=32,
        encoder_hidden=32, decoder_hidden=32, encoder_heads=2, decoder_heads=2, encoder_layers=1, decoder_layers=2,
    )  # fmt: skip
    batch = BoxBatch(torch.randn(4, 3, 32, 32), None, torch.arange(4)[:, None] % 2, torch.rand(4, 1, 4) / 2, 4)
    return build("detr", sizes, HeadChoice("detection", ("bright", "dark"))), SetPredictionLoss(), batch


def hidden_frames() -> Made:
    model = new_sound(kind="pretraining", layer_dropout=0.2, dropout=0.1)
    rows = HiddenRows(
        [torch.randn(1500) for _ in range(3)], frames=model.frames.frames_of, hide=SpanHiding(0.5, 4, 1), distractors=7
    )
    return model, FrameLoss(), rows.batch(PlannedBatch(np.arange(3), 1500, 1, 0))


def letters() -> Made:
    model = new_sound(kind="ctc")
    rows = SpokenRows([torch.randn(333) for _ in range(2)], [[1, 2, 3], [4, 4]], frames=model.frames.frames_of)
    return model, CTCLoss(), rows.batch(PlannedBatch(np.arange(2), 333, 1, 0))


def sounds() -> Made:
    batch = LabelledSoundBatch(torch.randn(3, 400), torch.full((3,), 400), torch.arange(3), 3, seed=5)
    return new_sound(kind="classification"), SoundLabelLoss(), batch


def spectra() -> Made:
    sizes = shrunk(next(iter(FAMILIES["ast"].published.values())), frames=32, bands=16)
    model = build("ast", sizes, HeadChoice("classification", ("bad", "fair", "good")))
    batch = LabelledSoundBatch(torch.randn(3, 1, 16, 32), torch.full((3,), 32), torch.arange(3), 3, seed=5)
    return model, SoundLabelLoss(), batch


def two_texts() -> Made:
    model = PairClassifier(small_bert("embedding", pooling="mean"), 12, 3)
    values: Any = np.arange(5) % 3
    return model, PairClassLoss(), all_of(replace(PAIRS, values=values))


def of_objective(case: str) -> Made:
    make, objective, rows = OBJECTIVES[case]
    return make(), copy.deepcopy(objective), all_of(rows)


LEARNED = [name for name in TEXT_FAMILIES if {"language", "masked"} & set(FAMILIES[name].heads)]
RECORDED: dict[str, Callable[[], Made]] = {
    **{name: lambda name=name: text(name) for name in LEARNED if name != "reformer"},  # type: ignore[misc]
    **{name: lambda name=name: translation(name) for name in TRANSLATORS if name in FAMILIES and name != "rnn"},  # type: ignore[misc]
    "whisper": heard,
    "two passes": lambda: translation("transformer", consistent=True),
    **{name: lambda name=name: picture(name) for name in IMAGE_FAMILIES if name in ("vit", "deit")},  # type: ignore[misc]
    "clip": captions,
    "ast": spectra,
    "two texts": two_texts,
    **{name: lambda name=name: of_objective(name) for name in OBJECTIVES},  # type: ignore[misc]
}
# What the way through waits for the device, or what is not looked into: plain steps, of which nothing is said.
PERHAPS: dict[str, Callable[[], Made]] = {
    "rnn": lambda: translation("rnn"),
    "sounds with a class": sounds,
    "hidden frames": hidden_frames,
}
NEVER: dict[str, Callable[[], Made]] = {
    "reformer": lambda: text("reformer"),
    "detr": boxes,
    "letters": letters,
    "hidden patches": patches,
}
WAITS = ("classes with weights",)  # the weights are sent to the device with every batch


def trained(make: Callable[[], Made], record: bool | None) -> tuple[Tensor, Tensor, Tensor, Stepper]:
    """Losses and norms, how far each weight has moved, the state of random numbers."""
    torch.manual_seed(0)
    model, objective, batch = make()
    model = copy.deepcopy(model).cuda().train()
    start = torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])
    said: list[str] = []
    settings = TrainSettings(steps=1, device="cuda", precision="float32", record=record)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    stepper = Stepper(model, objective, optimizer, settings, say=said.append)
    batches: Any = AlwaysThis(batch.to("cuda"), torch.device("cuda"))
    torch.manual_seed(1)
    updates = [stepper.update(batches) for _ in range(STEPS)]
    told = torch.stack([torch.stack([update.total, update.norm, *update.beside.values()]) for update in updates])
    moved = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]) - start
    assert said == [], "nobody asked"
    return told.cpu(), moved.cpu(), torch.cuda.get_rng_state(), stepper


def check(make: Callable[[], Made]) -> Stepper:
    told, moved, chance, plain = trained(make, record=False)
    again, same, drawn, stepper = trained(make, record=None)
    assert plain.recorded is None
    assert moved.norm() > 1e-3
    assert torch.equal(chance, drawn)
    torch.testing.assert_close(again, told, rtol=1e-3, atol=1e-4)
    assert (same - moved).norm() < 1e-2 * moved.norm()
    return stepper


@pytest.mark.parametrize("case", RECORDED)
def test_recorded_steps_learn_what_plain_ones_learn(case: str) -> None:
    stepper = check(RECORDED[case])
    assert stepper.recorded is not None
    if case not in WAITS:
        assert stepper.recorded.figures()["replayed"] > 0, stepper.recorded.figures()
    stepper.forget_records()


@pytest.mark.parametrize("case", PERHAPS)
def test_what_may_wait_for_the_device_learns_all_the_same(case: str) -> None:
    check(PERHAPS[case]).forget_records()


@pytest.mark.parametrize("case", NEVER)
def test_what_is_known_to_wait_is_never_tried(case: str) -> None:
    *_, stepper = trained(NEVER[case], record=None)
    assert stepper.recorded is None
