"""Initial values that several families share."""

from __future__ import annotations

from torch import nn

from qkv.parts.grouped import GroupedLinear
from qkv.parts.linear import JoinedLinear


def initialise_normal(model: nn.Module, deviation: float = 0.02) -> None:
    """N(0, deviation) for every matrix, those of experts too, and 0 for every bias, as the published code of GPT, BERT
    and their kin has it.

    DIFFERS [devlin2019]: BERT's code draws anew what lies more than two deviations away.
    """
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            matrices = parameter.ndim == 2 or isinstance(module, GroupedLinear)
            if matrices and not parameter.is_meta:  # what occupies no memory has no values either
                nn.init.normal_(parameter, std=deviation)
        if isinstance(module, nn.Linear | JoinedLinear) and module.bias is not None:
            nn.init.zeros_(module.bias)
