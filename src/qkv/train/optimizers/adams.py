"""Adam as published, and AdamW, by torch's fused kernels."""

import torch
from torch import nn

from qkv.train.optimizers.groups import DecayRule, RateRule, decay_groups, decay_matrices, rate_groups, trainable

# Devices whose kernel updates all parameters in one launch, and can skip an update without asking the host.
FUSED_DEVICES = {"cpu", "cuda", "mps", "xpu"}


def adam(
    model: nn.Module,
    *,
    learning_rate: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
) -> torch.optim.Adam:
    """Adam with its paper's defaults [kingma2015 alg.1]; the Transformer took .9, .98 and 1e-9 [vaswani2017 §5.3]."""
    parameters = [parameter for _, parameter in trainable(model)]
    return torch.optim.Adam(parameters, lr=learning_rate, betas=betas, eps=epsilon, fused=_can_fuse(model))


def adamw(
    model: nn.Module,
    *,
    learning_rate: float = 1e-3,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    decays: DecayRule = decay_matrices,
    rates: RateRule | None = None,
) -> torch.optim.AdamW:
    """Adam with decay taken from the weights and not from the gradient [loshchilov2019 alg.2].

    With `rates` some parameters learn more slowly than others.
    """
    groups = decay_groups(model, weight_decay, decays)
    if rates is not None:
        groups = rate_groups(model, groups, learning_rate, rates)
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=epsilon, fused=_can_fuse(model))


def _can_fuse(model: nn.Module) -> bool:
    return all(
        parameter.device.type in FUSED_DEVICES and parameter.is_floating_point() for parameter in model.parameters()
    )
