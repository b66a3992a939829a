"""One label a sound."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F

from qkv.data.sound_features import SoundFeatures
from qkv.data.sound_rows import LabelledSoundBatch
from qkv.models.image_model import ImageModel
from qkv.models.sound_model import SoundModel
from qkv.parts.context import Ledger
from qkv.parts.precision import widened
from qkv.train.objectives.loss import Loss, Predictions


@dataclass(frozen=True, kw_only=True)
class SoundLabelLoss:
    """Cross-entropy of the classes of sounds.

    `features` prepare the sounds of a batch where they are; None: they are prepared already.
    """

    counts: ClassVar[str] = "sounds"

    features: SoundFeatures | None = None
    smoothing: float = 0.0

    def __call__(self, model: SoundModel | ImageModel, batch: LabelledSoundBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: SoundModel | ImageModel, batch: LabelledSoundBatch) -> dict[str, Loss]:
        """The loss, and the share of sounds that get their label."""
        said = self.predictions(model, batch)
        logits, wanted = widened(said.logits), said.wanted
        loss = F.cross_entropy(logits, wanted, ignore_index=-1, label_smoothing=self.smoothing, reduction="sum")
        right = (logits.argmax(-1) == wanted).sum()
        return {"loss": Loss(loss, said.count), "accuracy": Loss(right, said.count)}

    def predictions(
        self, model: SoundModel | ImageModel, batch: LabelledSoundBatch, ledger: Ledger | None = None
    ) -> Predictions:
        given, lengths = batch.waves, batch.lengths
        if self.features is not None:
            prepared = self.features(given, lengths)
            given, lengths = prepared.values, prepared.lengths
        if isinstance(model, SoundModel):
            logits = model(given, lengths=lengths, ledger=ledger)  # [b c]
        else:
            logits = model(given, ledger=ledger)
        return Predictions(logits, batch.wanted, batch.wanted >= 0, batch.labelled)
