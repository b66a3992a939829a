"""What hidden frames were, told apart from other hidden frames of the same sound. [baevski2020 §3.2]

Shapes: b rows, n frames, m hidden frames of the batch, k distractors, p width in which frames are compared.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.sound_rows import HiddenBatch
from qkv.errors import QkvError
from qkv.models.sound_model import SoundModel
from qkv.parts.precision import widened, without_autocast
from qkv.parts.quantise import perplexity
from qkv.parts.sound_heads import Compared, ContrastiveHead
from qkv.train.objectives.loss import Loss


@dataclass(frozen=True, kw_only=True)
class FrameLoss:
    """The contrastive loss, plus `diversity` times the share of the codebooks' entries that are not used."""

    counts: ClassVar[str] = "hidden frames"

    temperature: float = 0.1  # of the cosines
    diversity: float = 0.1

    def __call__(self, model: SoundModel, batch: HiddenBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: SoundModel, batch: HiddenBatch) -> dict[str, Loss]:
        """Both losses together and apart, how often the right frame is found, and how many entries are in use."""
        if not isinstance(model.head, ContrastiveHead):
            raise QkvError("Learning from sound alone needs a model with the head 'pretraining'.")
        hidden = len(batch.places)
        compared = model(batch.waves, lengths=batch.lengths, hidden_frames=batch.hidden_frames)
        with without_autocast(batch.waves):
            logits = self.logits(compared, batch)  # [m 1+k]
            right = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
            contrastive = F.cross_entropy(logits, right, reduction="sum")
            used = perplexity(widened(compared.shares), batch.hidden_frames)
            entries = compared.shares.shape[2] * compared.shares.shape[3]
            unused = (entries - used) / entries * hidden  # [baevski2020 eq.4], counted in hidden frames
        found = (logits.argmax(-1) == 0).sum()
        return {
            "loss": Loss(contrastive + self.diversity * unused, hidden),
            "contrastive": Loss(contrastive, hidden),
            "accuracy": Loss(found, hidden),
            "entries_used": Loss(used * hidden, hidden),
        }

    def logits(self, compared: Compared, batch: HiddenBatch) -> Tensor:
        """Cosines between what is predicted and what was there, first the right one. [baevski2020 eq.3] [m 1+k]"""
        wanted = widened(compared.wanted).flatten(0, 1)  # [b·n p]
        predicted = widened(compared.predicted).flatten(0, 1)[batch.places]  # [m p]
        candidates = wanted[torch.cat((batch.places[:, None], batch.distractors), 1)]  # [m 1+k p]
        cosines = F.cosine_similarity(predicted[:, None], candidates, dim=-1)
        # A distractor that was quantised to the very same is no wrong answer.
        same = (candidates[:, 1:] == candidates[:, :1]).all(-1)
        same = torch.cat((torch.zeros_like(same[:, :1]), same), 1)
        return (cosines / self.temperature).masked_fill(same, -torch.inf)
