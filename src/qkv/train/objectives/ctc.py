"""What was said, when no one says where: the probability of a text over all its paths through the frames.

Shapes: b rows, n frames, l letters, v tokens.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from qkv.data.sound_rows import SpokenBatch
from qkv.models.sound_model import SoundModel
from qkv.parts.precision import widened, without_autocast
from qkv.train.objectives.loss import Loss


@dataclass(frozen=True, kw_only=True)
class CTCLoss:
    """-log p(text | sound), summed over sounds and counted in letters. [graves2006 eq.8]"""

    counts: ClassVar[str] = "letters"
    decides_on_host: ClassVar[bool] = True

    blank: int = 0

    def __call__(self, model: SoundModel, batch: SpokenBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: SoundModel, batch: SpokenBatch) -> dict[str, Loss]:
        return {"loss": self.of_logits(self.logits(model, batch), batch)}

    def logits(self, model: SoundModel, batch: SpokenBatch) -> Tensor:
        """What the model hears in each frame [b n v]; what is to be hidden is, while it learns."""
        logits: Tensor = model(
            batch.waves,
            lengths=batch.lengths,
            hidden_frames=batch.hidden_frames if model.training else None,
            hidden_channels=batch.hidden_channels if model.training else None,
        )
        return logits

    def of_logits(self, logits: Tensor, batch: SpokenBatch) -> Loss:
        with without_autocast(logits):
            log = widened(logits).log_softmax(-1).transpose(0, 1)  # [n b v]
            loss = F.ctc_loss(
                log, batch.letters, batch.frame_lengths, batch.letter_lengths, blank=self.blank, reduction="none"
            )
        return Loss(loss.where(batch.letter_lengths > 0, 0.0).sum(), batch.spoken)  # filler says nothing
