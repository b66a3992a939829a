"""LoRA: a loaded model stays as it is and learns a low-rank update of some of its matrices. [hu2022]"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from qkv.errors import QkvError, nearest_or_all
from qkv.models.attention_choice import weights_by_choice
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import MultiHead
from qkv.parts.block import Block
from qkv.parts.feedforward import MLP, GatedMLP
from qkv.parts.linear import JoinedLinear
from qkv.parts.low_rank import AdaptedJoinedLinear, AdaptedLinear, LowRank
from qkv.train.run_folder import SaveModel
from qkv.weights.published import FOR_A_TASK

TARGETS = ("query", "key", "value", "out", "inner", "outer")  # the maps of attentions and of feed-forwards


@dataclass(frozen=True)
class LoRA:
    """Which maps get an update, and of what rank; queries and values are the paper's choice [hu2022 §7.1]."""

    rank: int = 8
    alpha: float = 16.0  # an update is scaled by alpha / rank
    targets: tuple[str, ...] = ("query", "value")
    dropout: float = 0.0  # of what an update reads
    head: bool | None = None  # train the head too; None: where it is one for a task, which nobody trained before

    def __post_init__(self) -> None:
        for target in self.targets:
            if target not in TARGETS:
                raise QkvError(f"LoRA cannot adapt {target}: {nearest_or_all(target, TARGETS)}")
        if not self.targets:
            raise QkvError(f"LoRA needs maps to adapt: any of {', '.join(TARGETS)}.")
        if self.rank < 1 or not 0 <= self.dropout < 1 or not self.alpha > 0:
            raise QkvError("LoRA needs a rank of 1 or more, an alpha above 0 and a dropout of at least 0 and below 1.")


class LinearMap(NamedTuple):
    """A map as it stands on disk: a layer of its own, or one part of several that are joined in memory."""

    name: str
    target: str  # what a person calls it
    part: str | None  # of a joined layer
    weight: Tensor  # its matrix, or its rows of the joined one. [o i]


class Place(NamedTuple):
    """A linear layer in a model: the attribute of a mixer."""

    mixer: nn.Module
    attribute: str
    name: str  # of the layer in the model

    @property
    def linear(self) -> nn.Module:
        return self.mixer.get_submodule(self.attribute)

    def maps(self) -> list[LinearMap]:
        linear = self.linear
        if isinstance(linear, JoinedLinear):
            # The joined maps of a gated feed-forward are two halves of one inner map.
            of_attention = self.attribute == "project"
            rows = zip(linear.outputs, linear.parts(linear.weight), strict=True)
            return [
                LinearMap(f"{self.name}.{part}", part if of_attention else self.attribute, part, weight)
                for part, weight in rows
            ]
        assert isinstance(linear, nn.Linear)
        return [LinearMap(self.name, self.attribute, None, linear.weight.detach())]


class Update(NamedTuple):
    rank: int
    scale: float


def places(model: nn.Module) -> Iterator[Place]:
    """Every linear map of the attentions and feed-forwards in the blocks of a model."""
    for block_name, block in model.named_modules():
        if isinstance(block, Block):
            for name, mixer in block.named_modules(prefix=block_name):
                if isinstance(mixer, MultiHead | MLP | GatedMLP):
                    for attribute, linear in mixer.named_children():
                        if isinstance(linear, nn.Linear | JoinedLinear):
                            yield Place(mixer, attribute, f"{name}.{attribute}")


def add_lora(model: nn.Module, lora: LoRA = LoRA()) -> None:  # noqa: B008 (frozen)
    """Freeze the model and put updates beside the chosen maps of all blocks; its answers do not change yet.

    Only the updates are trained, a head for a task, and what an attention by choice has of its own. Call before the
    optimizer is made, also on resume: checkpoints hold the model and its updates. `merged` writes an ordinary model,
    `save_adapter` the updates alone.
    """
    named = {one.name: one.target for place in places(model) for one in place.maps()}
    for target in lora.targets:
        if target not in named.values():
            raise QkvError(f"This model has no blocks with a map called {target}, so LoRA cannot adapt it.")
    update = Update(lora.rank, lora.alpha / lora.rank)
    attach(model, {name: update for name, target in named.items() if target in lora.targets}, lora.dropout)
    kind = model.head_choice.kind if isinstance(model, TextModel) else None
    if (kind in FOR_A_TASK) if lora.head is None else lora.head:
        model.get_submodule("head").requires_grad_(True)
    for parameter in weights_by_choice(model):
        parameter.requires_grad_(True)


def attach(model: nn.Module, updates: Mapping[str, Update], dropout: float = 0.0) -> None:
    """Freeze the model and put new updates beside the maps of these names."""
    if adaptations(model):
        raise QkvError("The model has low-rank updates already: merge them before others are added.")
    model.requires_grad_(False)
    for place in list(places(model)):
        linear = place.linear
        new = {
            one.part: LowRank(one.weight, *updates[one.name], dropout) for one in place.maps() if one.name in updates
        }
        if new and isinstance(linear, JoinedLinear):
            adapted: nn.Module = AdaptedJoinedLinear(linear, {part: lora for part, lora in new.items() if part})
        elif new and isinstance(linear, nn.Linear):
            adapted = AdaptedLinear(linear, new[None])
        else:
            continue
        setattr(place.mixer, place.attribute, adapted.train(model.training))


def adaptations(model: nn.Module) -> list[tuple[Place, AdaptedLinear | AdaptedJoinedLinear]]:
    """The maps that have updates."""
    found = [(place, place.linear) for place in places(model)]
    return [(place, linear) for place, linear in found if isinstance(linear, AdaptedLinear | AdaptedJoinedLinear)]


def updates_of(model: nn.Module) -> dict[str, LowRank]:
    """The updates by the names of their maps, as tensors of these would have them on disk."""
    return {
        f"{place.name}.{part}" if part else place.name: lora
        for place, adapted in adaptations(model)
        for part, (lora, _) in adapted.updates().items()
    }


def merge(model: nn.Module) -> None:
    """Fold the updates into the weights: the same answers, an ordinary model, all of it trainable again."""
    _fold(_adapted_or_error(model))
    model.requires_grad_(True)


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """Inside, the model is an ordinary one with its updates folded in, to be saved; then it is exactly as before."""
    adapted = _adapted_or_error(model)
    before = [linear.weight.detach().clone() for _, linear in adapted]
    _fold(adapted)
    try:
        yield
    finally:
        for (place, linear), weight in zip(adapted, before, strict=True):
            linear.weight.detach().copy_(weight)
            setattr(place.mixer, place.attribute, linear)


def saving_merged(save: SaveModel) -> SaveModel:
    """For `RunFolder(save_model=…)`: what `save` writes, of the merged model."""

    def save_merged(model: nn.Module, folder: Path) -> None:
        with merged(model):
            save(model, folder)

    return save_merged


def count_trainable(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _adapted_or_error(model: nn.Module) -> list[tuple[Place, AdaptedLinear | AdaptedJoinedLinear]]:
    adapted = adaptations(model)
    if not adapted:
        raise QkvError("The model has no low-rank updates to merge: add_lora puts them there.")
    return adapted


def _fold(adapted: Collection[tuple[Place, AdaptedLinear | AdaptedJoinedLinear]]) -> None:
    for place, linear in adapted:
        for lora, rows in linear.updates().values():
            lora.fold_into(rows)
        setattr(place.mixer, place.attribute, linear.without())
