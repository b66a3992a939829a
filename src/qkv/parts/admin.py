"""Admin's start and end: ω from a profile of what the mixers answer, and a trained ω folded into its neighbours."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from qkv.data.doubles import doubled
from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention, CrossAttention
from qkv.parts.context import Context
from qkv.parts.feedforward import MLP
from qkv.parts.norm import LayerNorm
from qkv.parts.residual import Admin
from qkv.parts.stack import Stack


class _Spread:
    """The variance of all numbers that were added, over any number of passes."""

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, 0.0, 0.0

    def add(self, values: Tensor) -> None:
        wide = doubled(values)
        self.count += values.numel()
        self.total += wide.sum().item()
        self.squares += wide.square().sum().item()

    def variance(self) -> float:
        return (self.squares - self.total**2 / self.count) / max(self.count - 1, 1)


def profile_admin(stack: nn.Module, forward: Callable[[], object]) -> None:
    """Set every ω of a stack: ω_i = √(Σ_{j<i} Var[f_j]), from the variances of the mixers' answers. [liu2020 §4.3]

    `forward` runs the stack on real input while every ω is 1; where it runs several batches, all of them count. Padding
    does not, where the context tells it.
    """
    steps = {module.mixer: module for module in stack.modules() if isinstance(module, Admin)}
    spreads: dict[nn.Module, _Spread] = {}  # by mixer, in the order of the pass

    def remember(mixer: nn.Module, inputs: tuple[Tensor, Context], output: Tensor) -> None:
        documents = inputs[1].tokens.documents  # [b s]
        spreads.setdefault(mixer, _Spread()).add(output if documents is None else output[documents > 0])

    hooks = [mixer.register_forward_hook(remember) for mixer in steps]
    with torch.no_grad():
        for step in steps.values():
            step.omega.fill_(1.0)
        try:
            forward()
        finally:
            for hook in hooks:
                hook.remove()
        if spreads.keys() != steps.keys():
            raise QkvError("A profile needs a pass through every step: the given forward left some of them out.")
        before = 0.0
        for mixer, spread in spreads.items():
            if before:  # the first ω stays 1: nothing lies before it
                steps[mixer].omega.fill_(before**0.5)
            before += spread.variance()


def profile_stacks(model: nn.Module, forward: Callable[[], object]) -> None:
    """Balance all of a model that Admin wires, each stack for itself; a model without Admin is left as it is."""
    for stack in model.modules():
        if isinstance(stack, Stack) and any(isinstance(step, Admin) for step in stack.modules()):
            profile_admin(stack, forward)


@torch.no_grad()
def fold_admin(stack: Stack) -> None:
    """Make every ω but the first 1, and the stack compute what it did: trained, Admin is post-norm. [liu2020 §4.3]

    The norm before a step takes its ω, and the step's mixer, which reads that norm too, divides by it again. Before the
    first step there is no norm: its ω stays, and only where it is 1 are the weights those of a plain post-norm stack.
    """
    steps = [step for number in stack.order for step in stack.blocks[number].children()]
    if len(set(steps)) < len(steps):
        raise QkvError("A block that runs again and again has one ω for all its turns, which no single norm can take.")
    folds = [_fold(norm, step) for norm, step in pairwise(steps)]  # all are known before any is changed
    for norm, reads, omega in folds:
        norm.weight.mul_(omega)
        if norm.bias is not None:
            norm.bias.mul_(omega)
        reads.div_(omega)  # column by column: [rows width]
        omega.fill_(1.0)


def _fold(before: nn.Module, step: nn.Module) -> tuple[LayerNorm, Tensor, Tensor]:
    """The norm that can take a step's ω, the matrix that can undo it, and the ω."""
    if not isinstance(before, Admin) or not isinstance(step, Admin) or not isinstance(before.norm, LayerNorm):
        raise QkvError("Only a stack of Admin steps with layer norms can be folded into post-norm.")
    if bool((step.omega == 0).any()):
        raise QkvError("An ω of 0 cannot be folded: what the mixer reads would be lost.")
    return before.norm, reading_matrix(step.mixer), step.omega


def reading_matrix(mixer: nn.Module) -> Tensor:
    """The matrix through which a mixer reads the stream. [rows width]"""
    match mixer:
        case Attention():
            return mixer.project.weight
        case CrossAttention():
            return mixer.query.weight
        case MLP():
            return mixer.inner.weight
    raise QkvError(f"A {type(mixer).__name__} reads the stream in a way that no ω can be folded into.")
