"""Optimizers by name, each with a rate that suits it beside AdamW's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from qkv.errors import QkvError, nearest_or_all
from qkv.train.optimizers.adams import adamw
from qkv.train.optimizers.eight_bits import adamw_8bit
from qkv.train.optimizers.factored import adafactor
from qkv.train.optimizers.groups import RateRule
from qkv.train.optimizers.orthogonal import muon
from qkv.train.optimizers.signs import lion


@dataclass(frozen=True)
class OptimizerChoice:
    make: Callable[..., torch.optim.Optimizer]
    share: float  # the rate that suits it, where 1 suits AdamW
    has_moments: bool  # whether the betas and the epsilon of AdamW mean something to it


OPTIMIZERS = {
    "adamw": OptimizerChoice(adamw, 1.0, has_moments=True),
    "adamw8bit": OptimizerChoice(adamw_8bit, 1.0, has_moments=True),
    "muon": OptimizerChoice(muon, 1.0, has_moments=True),
    "lion": OptimizerChoice(lion, 0.2, has_moments=False),  # 3 to 10 times below [chen2023b §5]
    "adafactor": OptimizerChoice(adafactor, 10.0, has_moments=False),  # where AdamW takes 10⁻³, 10⁻² [shazeer2018]
}


def find_optimizer(name: str) -> OptimizerChoice:
    if name not in OPTIMIZERS:
        raise QkvError(f"There is no optimizer called {name!r}: {nearest_or_all(name, OPTIMIZERS)}")
    return OPTIMIZERS[name]


def chosen_optimizer(
    name: str,
    *,
    suits_adamw: float,
    learning_rate: float | None = None,
    weight_decay: float = 0.01,
    rates: RateRule | None = None,
    **moments: Any,
) -> Callable[..., torch.optim.Optimizer]:
    """Makes the optimizer of a name for a model: with this `learning_rate`, or one like the rate that suits AdamW.

    `weight_decay` is AdamW's too: another optimizer has it so much higher or lower that its usual rate takes as much
    from the weights. `moments` are AdamW's `betas` and `epsilon`, for those that have such.
    """
    chosen = find_optimizer(name)
    rate = suits_adamw * chosen.share if learning_rate is None else learning_rate
    if not 0 < rate < math.inf:
        raise QkvError(f"The learning rate must be above 0 and finite, but is {rate}.")
    own = moments if chosen.has_moments else {}
    return partial(chosen.make, learning_rate=rate, weight_decay=weight_decay / chosen.share, rates=rates, **own)
