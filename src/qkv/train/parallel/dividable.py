"""Which optimizers ranks can share: those that look at one number at a time. Each rank then updates what it holds."""

import torch

from qkv.errors import QkvError
from qkv.train.optimizers import Adafactor, AdamW8bit, Muon
from qkv.train.parallel.pieces import is_divided

# What each looks at, of which a rank holds only a part.
LOOKS_AT: dict[type[torch.optim.Optimizer], str] = {
    Adafactor: "rows and columns",
    AdamW8bit: "blocks of numbers",
    Muon: "whole matrices",
}


def refuse_undividable(optimizer: torch.optim.Optimizer) -> None:
    """Before training begins, and not when its state cannot be saved or, worse, after updates that no process makes."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    for kind, looks_at in LOOKS_AT.items():
        if isinstance(optimizer, kind) and any(is_divided(parameter) for parameter in parameters):
            raise QkvError(
                f"{kind.__name__} looks at {looks_at}, of which ranks hold parts only: train with adamw or lion, or in "
                "one process."
            )
