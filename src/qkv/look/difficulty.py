"""Why a deep stack is hard to train, measured: gradients by sub-layer, shares of branches, change of the output.

All of them run the model as it stands, without dropout, on what `forward` or `loss` gives it, and leave it as it was.
Answers are told by stack: `encoder` and `decoder`, or `stack`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.context import Context
from qkv.parts.residual import Admin, DeepNorm, PostNorm, PreNorm, ReZero
from qkv.parts.stack import Stack
from qkv.train.by_layer import gradient_norms, stacks_of

Forward = Callable[[], object]  # runs the model once
MakeLoss = Callable[[], Tensor]  # runs it and says how wrong it is
Perturbation = Callable[[nn.Module], None]  # changes the weights of a model's blocks in place
ByStep = dict[str, dict[str, float]]  # by stack, then by sub-layer: "1 attention"


@dataclass(frozen=True)
class RandomNoise:
    """Independent noise on every matrix of the blocks, `share` of the root mean square of its numbers. [liu2020 §4.2]

    Vectors and single numbers (biases, norms, ω, α) stay.
    """

    share: float = 0.01
    seed: int = 0

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> None:
        matrices = [parameter for parameter in block_parameters(model) if parameter.ndim >= 2]
        generator = torch.Generator(matrices[0].device).manual_seed(self.seed)
        for matrix in matrices:
            noise = torch.empty_like(matrix).normal_(generator=generator)
            matrix.add_(noise * matrix.square().mean().sqrt() * self.share)


@dataclass(frozen=True)
class FirstUpdate:
    """Adam's first update: parameters of the blocks move by `rate` against their gradients' sign. [kingma2015 alg.1]"""

    loss: MakeLoss
    rate: float = 1e-4

    def __call__(self, model: nn.Module) -> None:
        with _gradients(model, self.loss), torch.no_grad():
            for parameter in block_parameters(model):
                if parameter.grad is not None:
                    parameter.sub_(self.rate * parameter.grad.sign())


def output_change(model: nn.Module, forward: Forward, perturb: Perturbation) -> dict[str, list[float]]:
    """|F(x, W) - F(x, W*)|² for each number of the output, after each block of each stack. [liu2020 §4.2]

    What would leave a stack that ended there is compared: where a stack has a last norm, it is put there. So one deep
    model tells of all lesser depths, if its wiring does not depend on depth (DeepNorm's does). Padding does not count,
    where the context tells it.
    """
    kept = {parameter: parameter.detach().clone() for parameter in block_parameters(model)}
    before = _after_each_block(model, forward)
    try:
        perturb(model)
        after = _after_each_block(model, forward)
    finally:
        with torch.no_grad():
            for parameter, value in kept.items():
                parameter.copy_(value)
    return {
        name: [(one - other).square().mean().item() for one, other in zip(found, after[name], strict=True)]
        for name, found in before.items()
    }


def parameter_gradient_norms(model: nn.Module, loss: MakeLoss) -> dict[str, list[float]]:
    """Of each block of each stack: the norm of the gradient of its parameters."""
    with _gradients(model, loss):
        return {name: [norm.item() for norm in norms] for name, norms in gradient_norms(model).items()}


def stream_gradient_norms(model: nn.Module, loss: MakeLoss) -> ByStep:
    """|∂L/∂x_i| for the stream x_i that leaves each sub-layer: whether gradients vanish on the way. [liu2020 fig.3]"""
    found: ByStep = {}

    def watch(stack: str, name: str, step: nn.Module) -> list[Any]:
        return [step.register_forward_hook(_keep_gradient(found, stack, name))]

    with _watching(model, watch), _gradients(model, loss):
        return found


def branch_shares(model: nn.Module, forward: Forward) -> ByStep:
    """Var[f_i] / Var[stream + f_i]: how much each sub-layer's own answer makes up of what it hands on. [liu2020 §4.1]

    Their sum is what the change of the output grows with: each share stays the same in post-norm, and falls as 1/i in
    pre-norm, where the stream grows.
    """
    found: ByStep = {}

    def watch(stack: str, name: str, step: nn.Module) -> list[Any]:
        seen: list[Tensor] = []  # the mixer's answer

        def share(total: Tensor) -> None:
            answer = seen.pop() * (step.alpha if isinstance(step, ReZero) else 1.0)
            found.setdefault(stack, {})[name] = (answer.float().var() / total.float().var()).item()

        if not isinstance(step, PostNorm | Admin | DeepNorm | PreNorm | ReZero):
            raise QkvError(f"What a mixer makes up of the stream is not known of a {type(step).__name__}.")
        answers = step.mixer.register_forward_hook(lambda _, given, answer: seen.append(answer))
        if isinstance(step, PreNorm | ReZero):
            return [answers, step.register_forward_hook(lambda _, given, total: share(total))]
        return [answers, step.norm.register_forward_pre_hook(lambda _, given: share(given[0]))]

    with _watching(model, watch), _evaluating(model), torch.no_grad():
        forward()
    return found


def block_parameters(model: nn.Module) -> list[nn.Parameter]:
    """All of the blocks of all stacks, each once; embeddings and head are left out."""
    return list(dict.fromkeys(one for stack in stacks_of(model).values() for one in stack.blocks.parameters()))


def _after_each_block(model: nn.Module, forward: Forward) -> dict[str, list[Tensor]]:
    """What would leave each stack after each of its blocks, real tokens only. [tokens d]"""
    found: dict[str, list[Tensor]] = {}

    def keep(name: str, stack: Stack) -> Callable[..., None]:
        def remember(_: nn.Module, given: tuple[Tensor, Context], x: Tensor) -> None:
            ctx = given[1]
            leaving = x if stack.norm is None else stack.norm(x, ctx)
            documents = ctx.tokens.documents  # [b s]
            found.setdefault(name, []).append(leaving if documents is None else leaving[documents > 0])

        return remember

    stacks = stacks_of(model)
    hooks = [block.register_forward_hook(keep(name, stack)) for name, stack in stacks.items() for block in stack.blocks]
    try:
        with _evaluating(model), torch.no_grad():
            forward()
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _keep_gradient(found: ByStep, stack: str, name: str) -> Callable[..., None]:
    def keep(gradient: Tensor) -> None:
        found[stack][name] = gradient.norm().item()

    def watch(_: nn.Module, given: object, x: Tensor) -> None:
        found.setdefault(stack, {})[name] = 0.0  # in the order of the pass; gradients come the other way round
        x.register_hook(keep)

    return watch


@contextmanager
def _watching(model: nn.Module, watch: Callable[[str, str, nn.Module], list[Any]]) -> Iterator[None]:
    """`watch` puts hooks on every sub-layer, given its stack and its name; they are taken off again."""
    hooks: list[Any] = []
    try:
        for stack, module in stacks_of(model).items():
            for number, block in enumerate(module.blocks, start=1):
                for name, step in block.named_children():
                    hooks += watch(stack, f"{number} {name}", step)
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _gradients(model: nn.Module, loss: MakeLoss) -> Iterator[None]:
    """Inside, parameters have the gradients of the loss; afterwards none."""
    model.zero_grad(set_to_none=True)
    try:
        with _evaluating(model), torch.enable_grad():
            loss().backward()
        yield
    finally:
        model.zero_grad(set_to_none=True)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
