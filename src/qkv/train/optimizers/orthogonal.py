"""Muon: a matrix moves by its momentum made orthogonal, so that rare directions learn as well. [jordan2024]"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.linear import JoinedLinear
from qkv.parts.programs import is_served
from qkv.parts.reversible import ReversibleStack
from qkv.parts.stack import Stack
from qkv.train.optimizers.groups import (
    TABLES,
    DecayRule,
    RateRule,
    cut_groups,
    decay_groups,
    decay_matrices,
    rate_groups,
    trainable,
)
from qkv.train.optimizers.own import OwnOptimizer, adam_state, adam_step, alike, check_rates, decay, stacked

# Of the polynomial a x + b x³ + c x⁵, which takes any singular value towards 1, roughly and fast. [jordan2024]
COEFFICIENTS = (3.4445, -4.7750, 2.0315)

# Says which parameters are matrices that Muon takes, given the model: their names.
MatrixRule = Callable[[nn.Module], set[str]]


def orthogonalised(matrices: Tensor, steps: int = 5) -> Tensor:
    """About U Vᵀ of each matrix U S Vᵀ, by Newton-Schulz iterations. [n r c] → [n r c] [jordan2024]

    Half precision is enough for it, and is taken where products in it are fast.
    """
    a, b, c = COEFFICIENTS
    narrow = is_served(matrices) and matrices.dtype == torch.float32
    x = matrices.bfloat16() if narrow else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x  # products of the shorter side
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)  # no singular value above 1
    for _ in range(steps):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


def hidden_matrices(model: nn.Module) -> set[str]:
    """The matrices within a stack of blocks. What leads into it and the head are for AdamW. [jordan2024]"""
    owners = dict(model.named_modules())
    kinds = (Stack, ReversibleStack)
    stacks = [f"{name}." if name else "" for name, module in owners.items() if isinstance(module, kinds)]
    found = set()
    for name, parameter in model.named_parameters():
        within = any(name.startswith(stack) for stack in stacks)
        table = isinstance(owners[name.rpartition(".")[0]], (*TABLES, nn.modules.conv._ConvNd))
        if within and not table and parameter.ndim in (2, 3):
            found.add(name)
    return found


class Muon(OwnOptimizer):
    """Groups with `pieces` are matrices, the others are for AdamW.

    `pieces` are the heights of the matrices that a parameter holds one below the other, such as the maps to queries,
    keys and values, each made orthogonal by itself; () for one that is whole. A parameter of three dimensions is a
    stack of matrices.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        pieces: tuple[int, ...] | None = None,
    ) -> None:
        shares = {"first beta": betas[0], "second beta": betas[1]}
        check_rates("Muon", lr=lr, eps=eps, weight_decay=weight_decay, momentum=momentum, **shares)
        defaults = {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "pieces": pieces})

    def update(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        if group["pieces"] is None:
            how = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
            adam_step(parameters, gradients, self.states(parameters, adam_state), **how)
            return
        states = self.states(parameters, lambda parameter: {"momentum": torch.zeros_like(parameter)})
        momenta = [state["momentum"] for state in states]
        torch._foreach_mul_(momenta, group["momentum"])
        torch._foreach_add_(momenta, gradients)  # B = μ B + G
        ahead = torch._foreach_add(gradients, momenta, alpha=group["momentum"])  # as Nesterov's: G + μ B
        decay(parameters, group["lr"] * group["weight_decay"])
        for some in alike([None] * len(ahead), [each.numel() for each in ahead]):
            self._move([parameters[number] for number in some], [ahead[number] for number in some], group)

    def _move(self, parameters: list[Tensor], ahead: list[Tensor], group: dict[str, Any]) -> None:
        """Whole matrices are made orthogonal; ranks that hold parts of them all do so, and move each its own part."""
        wholes = [_whole(each) for each in ahead]
        places = [
            each.detach() if whole is update else torch.zeros_like(whole)
            for each, update, whole in zip(parameters, ahead, wholes, strict=True)
        ]
        updates = [piece for each in wholes for piece in _matrices(each, group["pieces"])]
        targets = [piece for each in places for piece in _matrices(each, group["pieces"])]
        for numbers in alike([each.shape for each in updates], [each.numel() for each in updates]):
            moved = orthogonalised(stacked([updates[number] for number in numbers]))
            # Updates of the size of AdamW's, whatever the shape: one rate and one decay serve both. [liu2025 §2.2]
            size = 0.2 * math.sqrt(max(moved.shape[-2:]))
            torch._foreach_add_([targets[number] for number in numbers], moved.unbind(), alpha=-group["lr"] * size)
        for parameter, update, whole, place in zip(parameters, ahead, wholes, places, strict=True):
            if whole is not update:
                parameter.detach().add_(_shared_out(place, parameter))


def _whole(tensor: Tensor) -> Tensor:
    """All of a tensor that ranks hold parts of."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _shared_out(tensor: Tensor, like: Any) -> Tensor:
    """This rank's part of what all have, by the way that another tensor is divided; nothing is sent."""
    from torch.distributed.tensor import distribute_tensor  # there already where a tensor is divided

    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def muon(
    model: nn.Module,
    *,
    learning_rate: float = 1e-3,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    betas: tuple[float, float] = (0.9, 0.95),
    epsilon: float = 1e-8,
    decays: DecayRule = decay_matrices,
    rates: RateRule | None = None,
    matrices: MatrixRule = hidden_matrices,
    adamw_factor: float = 1.0,
) -> Muon:
    """Muon for the matrices of the stacks, AdamW (`betas`, `epsilon`) for embeddings, heads, norms and biases, the
    latter at `adamw_factor` times the rate.

    DIFFERS [jordan2024]: updates have the size that AdamW's have, by which its rates and decay can be kept. [liu2025]
    """
    chosen = matrices(model) & {name for name, _ in trainable(model)}
    if not chosen:
        raise QkvError(
            f"Muon is for the matrices of a stack of blocks, and this {type(model).__name__} has none that learns: "
            "take adamw, or say in `matrices` which they are."
        )
    groups = decay_groups(model, weight_decay, decays)
    groups = cut_groups(model, groups, lambda owner, name, _: {"pieces": _pieces(owner) if name in chosen else None})
    if rates is not None:
        groups = rate_groups(model, groups, learning_rate, rates)
    if adamw_factor != 1:
        groups = [
            {**group, "lr": group.get("lr", learning_rate) * (adamw_factor if group["pieces"] is None else 1)}
            for group in groups
        ]
    return Muon(groups, lr=learning_rate, momentum=momentum, betas=betas, eps=epsilon)


def _pieces(owner: nn.Module) -> tuple[int, ...]:
    return tuple(owner.outputs.values()) if isinstance(owner, JoinedLinear) else ()


def _matrices(tensor: Tensor, pieces: tuple[int, ...]) -> tuple[Tensor, ...]:
    if tensor.ndim == 3:
        return tensor.unbind()
    return tensor.split(pieces) if pieces else (tensor,)
