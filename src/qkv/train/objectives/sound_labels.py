"""One label a sound."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from qkv.data.labelled_sounds import LabelledSoundBatch, PreparedSounds
from qkv.data.sound_features import SoundFeatures
from qkv.models.image_model import ImageModel
from qkv.models.sound_model import SoundModel
from qkv.parts.context import Ledger
from qkv.train.objectives.cross_entropy import check_smoothing
from qkv.train.objectives.images import mixed_entropy, right_answers
from qkv.train.objectives.loss import Loss, Predictions


@dataclass(frozen=True, kw_only=True)
class SoundLabelLoss:
    """Cross-entropy of the class of each sound; of a mixed one, of both classes by their shares. [gong2021 §3.1]

    `features` prepare the sounds of a batch where they are; None: they are prepared already.
    """

    counts: ClassVar[str] = "sounds"

    features: SoundFeatures | None = None
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing)

    def __call__(self, model: SoundModel | ImageModel, batch: LabelledSoundBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: SoundModel | ImageModel, batch: LabelledSoundBatch) -> dict[str, Loss]:
        """The loss, and the share of sounds whose class is the likeliest, and among the five likeliest."""
        prepared = batch.prepared(self.features)
        logits = _heard(model, prepared)
        loss = mixed_entropy(logits, prepared, self.smoothing)
        return {"loss": Loss(loss, batch.labelled), **right_answers(logits, batch)}

    def predictions(
        self, model: SoundModel | ImageModel, batch: LabelledSoundBatch, ledger: Ledger | None = None
    ) -> Predictions:
        """What the model says of the very sounds that another model is asked about."""
        logits = _heard(model, batch.prepared(self.features), ledger)
        return Predictions(logits, batch.labels, batch.labels >= 0, batch.labelled)


def _heard(model: SoundModel | ImageModel, prepared: PreparedSounds, ledger: Ledger | None = None) -> Tensor:
    """[b c]"""
    if isinstance(model, SoundModel):
        logits: Tensor = model(prepared.values, lengths=prepared.lengths, ledger=ledger)
        return logits
    pictured: Tensor = model(prepared.values, ledger=ledger)
    return pictured
