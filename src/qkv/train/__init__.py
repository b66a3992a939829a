"""Training: objectives, schedules, optimizers, the loop, checkpoints, run folders and metrics."""

from qkv.train.adapt import LayerwiseRates, LoRA, add_lora, freeze, load_adapter, merge, save_adapter
from qkv.train.average import MovingAverage, average_checkpoints
from qkv.train.checkpoint import Checkpoint, Checkpoints
from qkv.train.evaluation import ValidationLoss
from qkv.train.interrupts import Interrupted
from qkv.train.loop import train
from qkv.train.objectives import Loss, Objective, SequenceToSequenceLoss
from qkv.train.optimizers import adam, adamw, decay_everything, decay_matrices
from qkv.train.reporter import Reporter
from qkv.train.run_folder import RunFolder
from qkv.train.schedules import Constant, Cosine, InverseSquareRoot, Linear, Noam, Schedule, WarmupStableDecay
from qkv.train.settings import TrainSettings
from qkv.train.state import TrainResult

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Constant",
    "Cosine",
    "Interrupted",
    "InverseSquareRoot",
    "LayerwiseRates",
    "Linear",
    "LoRA",
    "Loss",
    "MovingAverage",
    "Noam",
    "Objective",
    "Reporter",
    "RunFolder",
    "Schedule",
    "SequenceToSequenceLoss",
    "TrainResult",
    "TrainSettings",
    "ValidationLoss",
    "WarmupStableDecay",
    "adam",
    "adamw",
    "add_lora",
    "average_checkpoints",
    "decay_everything",
    "decay_matrices",
    "freeze",
    "load_adapter",
    "merge",
    "save_adapter",
    "train",
]
