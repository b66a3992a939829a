"""What the tests of optimizers share: a model with a stack, gradients, and runs that are cut and gone on with."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.train.optimizers import adafactor, adamw, adamw_8bit, lion, muon
from tests.train.tiny import TinyModel, train_tiny

# As they are made for TinyModel, which is no stack of blocks, and whose parameters are small.
FOR_TINY: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adamw": partial(adamw, learning_rate=1e-2),
    "adamw8bit": partial(adamw_8bit, learning_rate=1e-2, smallest=1),
    "muon": partial(muon, learning_rate=1e-2, matrices=lambda model: {"mix.weight"}),
    "lion": partial(lion, learning_rate=1e-3),
    "adafactor": partial(adafactor, learning_rate=1e-2, weight_decay=0.1),
}


def small_gpt2(**changes: Any) -> nn.Module:
    sizes = {"vocabulary": 40, "positions": 16, "width": 16, "hidden": 32, "heads": 2, "layers": 2}
    model: nn.Module = build("gpt2", GPT2Sizes(**{**sizes, **changes}))
    return model


def one_parameter(shape: tuple[int, ...], seed: int = 0) -> nn.Module:
    model = nn.Module()
    generator = torch.Generator().manual_seed(seed)
    model.weight = nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
    return model


def gradients(shape: tuple[int, ...], number: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) * 10.0**-step for step in range(number)]


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, given: list[Tensor]) -> Tensor:
    """The one parameter after a step with each gradient."""
    for gradient in given:
        model.weight.grad = gradient.clone()
        optimizer.step()
    return model.weight.detach()


def run(folder: Path, name: str, steps: int, **more: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = TinyModel()
    _, model, optimizer = train_tiny(folder, model=model, optimizer=FOR_TINY[name](model), steps=steps, **more)
    return model, optimizer
