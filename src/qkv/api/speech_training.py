"""Learning to write down speech from sounds and what is said in them. [baevski2020 §3.3]"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from qkv.api.choices import DESK, Sizes
from qkv.api.how import Training
from qkv.api.runs import check_folder, divided
from qkv.api.sound_runs import VALIDATION_SECONDS, duration_of, fingerprint_of_waves, new_sound_model, run_on_sounds
from qkv.data.letters import Letters, write_letters
from qkv.data.plan import Batching, RowCount
from qkv.data.sound_features import WaveFeatures
from qkv.data.sound_processor import write_sound_processor
from qkv.data.sound_rows import SpokenRows
from qkv.data.stored_sounds import SpokenWaves
from qkv.errors import QkvError
from qkv.generate.listen import Listener
from qkv.generate.untuned import UntunedSound
from qkv.models.head_choice import HeadChoice
from qkv.models.wav2vec2 import hiding
from qkv.train.adjust import HeadFirst
from qkv.train.objectives.ctc import CTCLoss
from qkv.train.objectives.spoken_errors import SpokenErrors
from qkv.train.optimizers import adamw
from qkv.train.schedules import Schedule, TriStage
from qkv.train.settings import TrainSettings
from qkv.weights.load import with_head

# Sizes that no weight knows: they may change when a loaded model learns a task.
CHANGEABLE = frozenset({
    "dropout", "hidden_dropout", "attention_dropout", "frame_dropout", "head_dropout", "layer_dropout", "augment",
    "hidden_share", "hidden_length", "hidden_least", "hidden_channel_share", "hidden_channel_length",
    "hidden_channel_least",
})  # fmt: skip

FOR_LITTLE_SPEECH = partial(adamw, learning_rate=3e-4, betas=(0.9, 0.98))


@dataclass(frozen=True, kw_only=True)
class SpeechTraining(Training):
    """How a model learns to write down speech; what is not said otherwise is as published. [baevski2020 §4.3]

    `head_first` and `frozen_frames` are for a loaded model: a new one learns all from the start.
    """

    head_first: int = 0  # updates in which the new head alone learns
    frozen_frames: bool = True  # whether the convolutions stay as they are
    batching: Batching = RowCount(16)  # noqa: RUF009 (frozen)
    schedule: Schedule = TriStage()  # noqa: RUF009 (frozen)
    settings: TrainSettings = TrainSettings(  # noqa: RUF009 (frozen)
        steps=2000, evaluate_every=200, save_every=200, keep=2, watch="wer"
    )


def train_listener(
    data: SpokenWaves,
    folder: Path | str,
    *,
    valid: SpokenWaves | None = None,
    model: UntunedSound | Listener | None = None,
    sizes: Sizes | None = None,
    features: WaveFeatures = WaveFeatures(),  # noqa: B008 (frozen)
    how: SpeechTraining = SpeechTraining(),  # noqa: B008 (frozen)
    evaluate: Callable[[Listener], Mapping[str, float]] | None = None,
) -> Listener:
    """Learn to write down speech letter by letter with CTC; the model is returned, and left in `folder`.

    Without `model` a new one is trained, of `sizes`. With one, the letters of the texts get a new head above what it
    knows (a `Listener` keeps its own), and `sizes` may change what no weight knows: dropout, and how much is hidden
    while it learns. Figures of validation: the loss a letter, word error rate (wer) and letter error rate (cer).
    """
    folder = Path(folder)
    check_folder(folder, how.resume, how.overwrite)
    items = list(zip(data.waves, data.texts, strict=True))
    held = [] if valid is None else list(zip(valid.waves, valid.texts, strict=True))
    if valid is None and how.hold_out:
        items, held = divided(items, how.hold_out, key=lambda item: item[1])
    torch.manual_seed(how.settings.seed)
    use = _listener(model, [text for _, text in items], sizes, features)
    network = use.model
    if model is not None and how.frozen_frames:
        network.frames.requires_grad_(False)
    objective = CTCLoss(blank=use.letters.blank)

    def rows_of(some: Sequence[tuple[Tensor, str]]) -> SpokenRows:
        ids = [use.letters.encode(text) for _, text in some]
        return SpokenRows([wave for wave, _ in some], ids, frames=network.frames.frames_of)

    hide_frames, hide_channels = hiding(network.sizes)
    training = replace(
        rows_of(items),
        hide_frames=hide_frames,
        hide_channels=hide_channels,
        width=network.sizes.width,
        seed=how.settings.seed,
    )
    rate, everything = use.features.rate, [*items, *held]
    try:
        return run_on_sounds(
            use,
            objective,
            how,
            folder,
            optimizer=how.optimizer or FOR_LITTLE_SPEECH,
            rows=lambda epoch: replace(training, epoch=epoch),
            held=rows_of(held) if held else None,
            measure=SpokenErrors(objective, use.letters.space),
            samples=VALIDATION_SECONDS * rate,
            evaluate=None if evaluate is None else lambda _: evaluate(use),
            found=f"{len(items):,} sounds to learn from ({duration_of(items, rate)}), {len(held):,} to validate on",
            data={"head_first": how.head_first, "frozen_frames": how.frozen_frames, "new": model is None},
            fingerprint=fingerprint_of_waves([wave for wave, _ in everything], [text for _, text in everything]),
            adjust=HeadFirst(how.head_first) if model is not None and how.head_first else None,
            leave=lambda where: _leave(where, use),
        )
    finally:
        network.requires_grad_(True)


def _listener(
    model: UntunedSound | Listener | None, texts: Sequence[str], sizes: Sizes | None, features: WaveFeatures
) -> Listener:
    """A new model, or a loaded one with a head for the letters of the texts."""
    head = HeadChoice("ctc")
    if model is None:
        letters = Letters.of_texts(texts)
        return Listener(new_sound_model(sizes or DESK, head, vocabulary=len(letters)), letters, features)
    changes = {} if sizes is None else sizes
    if isinstance(changes, str) or (wrong := sorted(changes.keys() - CHANGEABLE)):
        what = changes if isinstance(changes, str) else wrong[0]
        raise QkvError(f"A loaded model keeps its sizes, and {what} is one: dropout and what is hidden may change.")
    if isinstance(model, Listener):
        letters = model.letters
        if unknown := sorted(set("".join(texts)) - {" "} - set(letters.tokens)):
            raise QkvError(f"The texts hold letters that this model cannot write: {' '.join(unknown)}.")
    else:
        letters = Letters.of_texts(texts)
    network = with_head(model.model, head, **{**changes, "vocabulary": len(letters)})
    return Listener(network, letters, model.features)


def _leave(folder: Path, use: Listener) -> None:
    write_letters(folder, use.letters)
    write_sound_processor(folder, use.features)
