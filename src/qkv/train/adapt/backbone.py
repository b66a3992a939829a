"""A network below a model that learns more slowly than what stands on it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from qkv.errors import QkvError


@dataclass(frozen=True)
class BackboneRate:
    """For `adamw(rates=...)`: a model's backbone gets this share of the learning rate. [carion2020 §A.4]"""

    share: float = 0.1
    name: str = "backbone"

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise QkvError(f"A backbone learns by a share of the rate above 0 and at most 1, not {self.share:g}.")

    def __call__(self, model: nn.Module, name: str) -> float:
        if not hasattr(model, self.name):
            raise QkvError(f"A {type(model).__name__} has no {self.name} that could learn at a rate of its own.")
        return self.share if name.startswith(f"{self.name}.") else 1.0
