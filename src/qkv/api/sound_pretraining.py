"""Learning from sound alone, with no one saying what is said. [baevski2020 §3]"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from qkv.api.choices import DESK, Sizes
from qkv.api.how import Training
from qkv.api.runs import check_folder, divided
from qkv.api.sound_runs import VALIDATION_SECONDS, duration_of, fingerprint_of_waves, new_sound_model, run_on_sounds
from qkv.data.plan import Batching, RowCount
from qkv.data.sound_features import WaveFeatures
from qkv.data.sound_processor import write_sound_processor
from qkv.data.sound_rows import HiddenRows
from qkv.data.span_hiding import SpanHiding
from qkv.data.stored_sounds import JoinedSounds
from qkv.errors import QkvError
from qkv.generate.untuned import UntunedSound
from qkv.models.head_choice import HeadChoice
from qkv.train.adjust import FallingTemperature
from qkv.train.objectives.sound_pretraining import FrameLoss
from qkv.train.optimizers import adamw
from qkv.train.schedules import Schedule, TriStage
from qkv.train.settings import TrainSettings
from qkv.weights.load import with_head

AS_PUBLISHED = partial(adamw, learning_rate=5e-4, betas=(0.9, 0.98), epsilon=1e-6)


@dataclass(frozen=True, kw_only=True)
class SoundPretraining(Training):
    """How a model learns from sound alone; what is not said otherwise is as published. [baevski2020 §4.2]"""

    seconds: float = 8.0  # of a row: sounds are put one after the other and cut
    hide: SpanHiding = SpanHiding(0.65, 10, 2)  # noqa: RUF009 (frozen)
    distractors: int = 100
    temperature: FallingTemperature = FallingTemperature()  # noqa: RUF009 (frozen)
    frame_gradient: float = 0.1  # share of the gradient that the convolutions get
    objective: FrameLoss = FrameLoss()  # noqa: RUF009 (frozen)
    batching: Batching = RowCount(16)  # noqa: RUF009 (frozen)
    schedule: Schedule = TriStage(rise=0.08, hold=0.0)  # noqa: RUF009 (frozen)
    settings: TrainSettings = TrainSettings(steps=5000, evaluate_every=500, save_every=500, keep=2)  # noqa: RUF009


def pretrain_on_sounds(
    waves: Sequence[Tensor],
    folder: Path | str,
    *,
    groups: Sequence[str] | None = None,
    valid: Sequence[Tensor] | None = None,
    model: UntunedSound | None = None,
    sizes: Sizes = DESK,
    features: WaveFeatures = WaveFeatures(),  # noqa: B008 (frozen)
    how: SoundPretraining = SoundPretraining(),  # noqa: B008 (frozen)
) -> UntunedSound:
    """Learn to tell hidden frames from others of the same sound, with no one saying what is said.

    `waves` [t] are prepared by `features`, as `stored_waves` gives them; `groups` name who speaks, and only sounds of
    one group are put into one row. Figures of validation: the loss, the share of hidden frames that are found among
    their distractors, and how many entries of the codebooks are in use.
    """
    folder = Path(folder)
    check_folder(folder, how.resume, how.overwrite)
    names = list(groups) if groups is not None else [""] * len(waves)
    items, held = list(zip(waves, names, strict=True)), [(wave, "") for wave in valid or ()]
    if valid is None and how.hold_out:
        items, held = divided(items, how.hold_out, key=lambda item: _digest(item[0]))
    torch.manual_seed(how.settings.seed)
    if model is None:
        use = UntunedSound(new_sound_model(sizes, HeadChoice("pretraining")), features)
    else:
        use = UntunedSound(with_head(model.model, HeadChoice("pretraining")), model.features)
    network = use.model
    network.frames.gradient_share = how.frame_gradient
    rows_of = partial(_rows, how=how, use=use, seed=how.settings.seed)
    rate = use.features.rate
    try:
        return run_on_sounds(
            use,
            how.objective,
            how,
            folder,
            optimizer=how.optimizer or AS_PUBLISHED,
            rows=rows_of(_joined(items, how, use)),
            held=rows_of(_joined(held, how, use))(0) if held else None,
            measure=how.objective,
            samples=round(max(how.seconds, VALIDATION_SECONDS) * rate),
            found=f"{duration_of(items, rate)} of sound to learn from, {duration_of(held, rate)} to validate on",
            data={
                "seconds": how.seconds,
                "hide": repr(how.hide),
                "distractors": how.distractors,
                "temperature": repr(how.temperature),
                "frame_gradient": how.frame_gradient,
            },
            fingerprint=fingerprint_of_waves([wave for wave, _ in [*items, *held]], [name for _, name in items]),
            adjust=how.temperature,
            leave=lambda where: write_sound_processor(where, use.features),
        )
    finally:
        network.frames.gradient_share = 1.0


def _joined(items: Sequence[tuple[Tensor, str]], how: SoundPretraining, use: UntunedSound) -> JoinedSounds:
    frames = use.model.frames
    least = frames.shortest + frames.hop * (2 * how.hide.length - 1)  # room for two spans
    length = round(how.seconds * use.features.rate)
    if length < least:
        raise QkvError(f"Rows of {how.seconds} seconds are too short for spans of {how.hide.length} frames.")
    return JoinedSounds([wave for wave, _ in items], length, [name for _, name in items], least, seed=how.settings.seed)


def _rows(joined: JoinedSounds, *, how: SoundPretraining, use: UntunedSound, seed: int) -> Callable[[int], HiddenRows]:
    def rows(epoch: int) -> HiddenRows:
        return HiddenRows(
            joined(epoch),
            frames=use.model.frames.frames_of,
            hide=how.hide,
            distractors=how.distractors,
            epoch=epoch,
            seed=seed,
        )

    return rows


def _digest(wave: Tensor) -> str:
    return hashlib.sha256(wave.numpy().tobytes()).hexdigest()
