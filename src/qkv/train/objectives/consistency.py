"""R-Drop: two passes over a batch with different dropout must agree, which regularises where data is little. [wu2021]

Shapes: b rows, t target positions, v vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.precision import widened
from qkv.train.objectives.cross_entropy import smoothed_cross_entropy
from qkv.train.objectives.loss import Loss
from qkv.train.objectives.sequence_to_sequence import Pairs, SequenceToSequenceLoss, predicted


@dataclass(frozen=True, kw_only=True)
class ConsistentLoss:
    """Mean smoothed cross-entropy of two passes, plus how far their predictions lie apart.

    (L₁ + L₂) / 2 + α/2 · ½ (KL(p₁‖p₂) + KL(p₂‖p₁)): half of [wu2021 §2.1], so that it compares with the plain loss.
    """

    smoothing: float = 0.1
    weight: float = 5.0  # α; the paper's choice for translation

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise QkvError(f"The weight of the consistency loss must be 0 or more, but is {self.weight}.")

    def __call__(self, model: nn.Module, batch: Pairs) -> Loss:
        # Both passes in one: the rows twice, each copy with dropout of its own.
        source = batch.source.repeat(2, 1)
        source_lengths = None if batch.padding is None else batch.padding.repeat(2)
        target = batch.target.repeat(2, 1)
        logits = model(source, source_lengths, target[:, :-1])  # [2b t v]
        wanted, real = predicted(target, batch.target_lengths.repeat(2))  # [2b t] each
        entropy, _ = smoothed_cross_entropy(logits, wanted, real, self.smoothing)
        apart = divergence(*logits.chunk(2)).masked_fill(~real.chunk(2)[0], 0.0).sum()
        total = (entropy + self.weight / 2 * apart) / 2
        return Loss(total, batch.target_tokens)

    def measure(self, model: nn.Module, batch: Pairs) -> dict[str, Loss]:
        """Without dropout the two passes are one: validation is that of the plain loss."""
        return SequenceToSequenceLoss(smoothing=self.smoothing).measure(model, batch)


def divergence(first: Tensor, second: Tensor) -> Tensor:
    """KL(p‖q) + KL(q‖p) of two predictions given as logits: Σ (p − q)(log p − log q). [… v] each → […]"""
    log_p, log_q = torch.log_softmax(widened(first), -1), torch.log_softmax(widened(second), -1)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)
