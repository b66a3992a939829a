"""AdamW that keeps its two moments in 8 bits each: a quarter of the memory. [dettmers2022]"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from qkv.train.optimizers.blocks import Codebook, in_blocks
from qkv.train.optimizers.groups import (
    TABLES,
    DecayRule,
    RateRule,
    cut_groups,
    decay_groups,
    decay_matrices,
    rate_groups,
)
from qkv.train.optimizers.own import OwnOptimizer, adam_state, adam_step, alike, check_rates, decay

SMALLEST = 4096  # numbers of a parameter, below which there is nothing to be saved


class AdamW8bit(OwnOptimizer):
    """Groups of `bits` 8 keep codes and scales, those of 32 are AdamW's."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        bits: int = 8,
    ) -> None:
        shares = {"first beta": betas[0], "second beta": betas[1]}
        check_rates("AdamW with 8 bits", lr=lr, eps=eps, weight_decay=weight_decay, **shares)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "bits": bits})
        self.books = {"exp_avg": Codebook(signed=True), "exp_avg_sq": Codebook(signed=False)}

    def update(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        if group["bits"] == 32:
            how = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
            adam_step(parameters, gradients, self.states(parameters, adam_state), **how)
            return
        states = self.states(parameters, self._new_state)
        decay(parameters, group["lr"] * group["weight_decay"])
        for numbers in alike([state["step"] for state in states], [each.numel() for each in parameters]):
            some = [states[number] for number in numbers]
            self._some(
                group, [parameters[number] for number in numbers], [gradients[number] for number in numbers], some
            )

    def _some(
        self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor], states: list[Any]
    ) -> None:
        """Parameters of one age, block after block: from codes to numbers, one step of Adam, and back."""
        (first_beta, second_beta), age = group["betas"], states[0]["step"]
        gradient = torch.cat([in_blocks(each) for each in gradients])  # [n 2048]
        first = self._read(states, "exp_avg").lerp_(gradient, 1 - first_beta)
        second = self._read(states, "exp_avg_sq")
        second.mul_(second_beta).addcmul_(gradient, gradient, value=1 - second_beta)
        self._write(states, "exp_avg", first)
        self._write(states, "exp_avg_sq", second)
        root = second.sqrt_().div_(math.sqrt(1 - second_beta**age)).add_(group["eps"])
        update = first.div_(root).mul_(group["lr"] / (1 - first_beta**age))
        parts = update.split([len(state["exp_avg"]) for state in states])
        own = [part.view(-1)[: each.numel()].view_as(each) for part, each in zip(parts, parameters, strict=True)]
        torch._foreach_sub_(parameters, own)

    def _new_state(self, parameter: Tensor) -> dict[str, Any]:
        state = {}
        for name, book in self.books.items():
            state[name], state[f"{name}_scale"] = book.encode(torch.zeros_like(in_blocks(parameter)))
        return state

    def _read(self, states: list[Any], name: str) -> Tensor:
        scales = torch.cat([state[f"{name}_scale"] for state in states])
        return self.books[name].decode(torch.cat([state[name] for state in states]), scales)

    def _write(self, states: list[Any], name: str, blocks: Tensor) -> None:
        indices, scales = self.books[name].encode(blocks)
        counts = [len(state[name]) for state in states]
        torch._foreach_copy_([state[name] for state in states], list(indices.split(counts)))
        torch._foreach_copy_([state[f"{name}_scale"] for state in states], list(scales.split(counts)))


def adamw_8bit(
    model: nn.Module,
    *,
    learning_rate: float = 1e-3,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    decays: DecayRule = decay_matrices,
    rates: RateRule | None = None,
    smallest: int = SMALLEST,
) -> AdamW8bit:
    """AdamW with the same numbers as ever, whose moments are kept in blocks of 8 bits.

    Tables keep 32, because their gradients are the most uneven [dettmers2022 §2.3], and so does what is small.
    DIFFERS [dettmers2022]: embeddings stay as the model has them, where the paper puts a norm behind them.
    """

    def bits(owner: nn.Module, name: str, parameter: nn.Parameter) -> dict[str, Any]:
        return {"bits": 32 if isinstance(owner, TABLES) or parameter.numel() < smallest else 8}

    groups = cut_groups(model, decay_groups(model, weight_decay, decays), bits)
    if rates is not None:
        groups = rate_groups(model, groups, learning_rate, rates)
    return AdamW8bit(groups, lr=learning_rate, betas=betas, eps=epsilon)
