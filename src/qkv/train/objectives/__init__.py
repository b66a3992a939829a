"""One file a loss. The objective owns the loss, not the model."""

from qkv.train.objectives.loss import Batch, Loss, Objective
from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss

__all__ = ["Batch", "Loss", "Objective", "SequenceToSequenceLoss"]
