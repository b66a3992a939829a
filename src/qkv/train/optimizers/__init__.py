"""Optimizers: AdamW, also in 8 bits, Muon, Lion and Adafactor, with one rule for which parameters decay."""

from qkv.train.optimizers.adams import FUSED_DEVICES, adam, adamw
from qkv.train.optimizers.choice import OPTIMIZERS, OptimizerChoice, chosen_optimizer, find_optimizer
from qkv.train.optimizers.eight_bits import AdamW8bit, adamw_8bit
from qkv.train.optimizers.factored import Adafactor, adafactor
from qkv.train.optimizers.groups import (
    TABLES,
    DecayRule,
    RateRule,
    decay_everything,
    decay_groups,
    decay_matrices,
    rate_groups,
)
from qkv.train.optimizers.orthogonal import Muon, hidden_matrices, muon
from qkv.train.optimizers.signs import Lion, lion

__all__ = [
    "FUSED_DEVICES",
    "OPTIMIZERS",
    "TABLES",
    "Adafactor",
    "AdamW8bit",
    "DecayRule",
    "Lion",
    "Muon",
    "OptimizerChoice",
    "RateRule",
    "adafactor",
    "adam",
    "adamw",
    "adamw_8bit",
    "chosen_optimizer",
    "decay_everything",
    "decay_groups",
    "decay_matrices",
    "find_optimizer",
    "hidden_matrices",
    "lion",
    "muon",
    "rate_groups",
]
