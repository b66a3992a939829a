"""Training: objectives, schedules, optimizers, the loop, checkpoints, run folders and metrics.

A name is fetched when it is first used: those who only need a part of this room do not wait for all of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.train.adapt import LayerwiseRates, LoRA, add_lora, freeze, load_adapter, merge, save_adapter
    from qkv.train.average import MovingAverage, average_checkpoints
    from qkv.train.checkpoint import Checkpoint, Checkpoints
    from qkv.train.evaluation import ValidationLoss
    from qkv.train.find_rate import FindRate, RateFound, RateSearch
    from qkv.train.interrupts import Interrupted
    from qkv.train.loop import train
    from qkv.train.objectives import Loss, Objective, SequenceToSequenceLoss
    from qkv.train.optimizers import (
        adafactor,
        adam,
        adamw,
        adamw_8bit,
        chosen_optimizer,
        decay_everything,
        decay_matrices,
        lion,
        muon,
    )
    from qkv.train.reporter import Reporter
    from qkv.train.run_folder import RunFolder
    from qkv.train.schedules import Constant, Cosine, InverseSquareRoot, Linear, Noam, Schedule, WarmupStableDecay
    from qkv.train.settings import TrainSettings
    from qkv.train.state import TrainResult
    from qkv.train.watchers import TensorBoard, Tracker, Watcher

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Constant",
    "Cosine",
    "FindRate",
    "Interrupted",
    "InverseSquareRoot",
    "LayerwiseRates",
    "Linear",
    "LoRA",
    "Loss",
    "MovingAverage",
    "Noam",
    "Objective",
    "RateFound",
    "RateSearch",
    "Reporter",
    "RunFolder",
    "Schedule",
    "SequenceToSequenceLoss",
    "TensorBoard",
    "Tracker",
    "TrainResult",
    "TrainSettings",
    "ValidationLoss",
    "WarmupStableDecay",
    "Watcher",
    "adafactor",
    "adam",
    "adamw",
    "adamw_8bit",
    "add_lora",
    "average_checkpoints",
    "chosen_optimizer",
    "decay_everything",
    "decay_matrices",
    "freeze",
    "lion",
    "load_adapter",
    "merge",
    "muon",
    "save_adapter",
    "train",
]

_NAMES = {
    "adapt": "LayerwiseRates LoRA add_lora freeze load_adapter merge save_adapter",
    "average": "MovingAverage average_checkpoints",
    "checkpoint": "Checkpoint Checkpoints",
    "evaluation": "ValidationLoss",
    "find_rate": "FindRate RateFound RateSearch",
    "interrupts": "Interrupted",
    "loop": "train",
    "objectives": "Loss Objective SequenceToSequenceLoss",
    "optimizers": "adafactor adam adamw adamw_8bit chosen_optimizer decay_everything decay_matrices lion muon",
    "reporter": "Reporter",
    "run_folder": "RunFolder",
    "schedules": "Constant Cosine InverseSquareRoot Linear Noam Schedule WarmupStableDecay",
    "settings": "TrainSettings",
    "state": "TrainResult",
    "watchers": "TensorBoard Tracker Watcher",
}
_HOMES = {name: f"qkv.train.{file}" for file, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'qkv.train' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
