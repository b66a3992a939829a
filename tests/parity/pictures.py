"""What the parity of every model of pictures is made of, besides what those of text have."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from qkv.files import read_tensors
from qkv.weights.certify import open_reference
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import family_of, save_published
from qkv.weights.rules import to_theirs
from qkv.weights.save import tensors_of
from tests.parity.published import Pair, answers, close

# Height and width: as trained, smaller, larger, oblong either way, and with something left over at the edges.
RESOLUTIONS = [(32, 32), (16, 16), (8, 8), (48, 64), (64, 16), (37, 45), (224, 224)]


def random_pictures(pair: Pair, height: int, width: int, rows: int = 2) -> Tensor:
    return torch.randn(rows, pair.ours.sizes.channels, height, width)


def of_reference(pair: Pair, pictures: Tensor) -> tuple[Tensor, ...]:
    return answers(pair.reference(pictures, interpolate_pos_encoding=True))


@torch.no_grad()
def check_pictures(pair: Pair, resolutions: list[tuple[int, int]] = RESOLUTIONS) -> None:
    for height, width in resolutions:
        for rows in (1, 3):
            pictures = random_pictures(pair, height, width, rows)
            found, expected = answers(pair.ours(pictures)), of_reference(pair, pictures)
            for one, other in zip(found, expected, strict=True):
                close(one, other)


def check_picture_gradients(pair: Pair, folder: Path, resolution: tuple[int, int] = (48, 24)) -> None:
    pictures = random_pictures(pair, *resolution)
    check_gradients_by_file(pair, folder, lambda: answers(pair.ours(pictures)), lambda: of_reference(pair, pictures))


def check_gradients_by_file(
    pair: Pair, folder: Path, ours: Callable[[], tuple[Tensor, ...]], theirs: Callable[[], tuple[Tensor, ...]]
) -> None:
    """Of every tensor, by the names that the reference writes: in memory it has others."""
    weights = [torch.randn_like(each) for each in theirs()]
    found: dict[Any, Mapping[str, Tensor]] = {}
    for model, answer in ((pair.ours, ours), (pair.reference, theirs)):
        model.zero_grad()
        torch.stack([(each * weight).sum() for each, weight in zip(answer(), weights, strict=True)]).sum().backward()
        other = copy.deepcopy(model)
        with torch.no_grad():
            for parameter, own in zip(other.parameters(), model.parameters(), strict=True):
                parameter.copy_(torch.zeros_like(own) if own.grad is None else own.grad)
        model.zero_grad()
        found[model] = _named_as_in_files(other, folder)
    assert found[pair.ours].keys() == found[pair.reference].keys()
    for name, gradient in found[pair.ours].items():
        torch.testing.assert_close(gradient, found[pair.reference][name], atol=1e-4, rtol=1e-3, msg=name)


def _named_as_in_files(model: Any, folder: Path) -> Mapping[str, Tensor]:
    if isinstance(model, transformers.PreTrainedModel):
        model.save_pretrained(folder)
    else:
        save_published(model, folder, PUBLISHED)
    return read_tensors(folder / "model.safetensors")


@torch.no_grad()
def check_pictures_both_ways(pair: Pair, folder: Path) -> None:
    """What we write, the reference opens without a missing, unexpected or mismatched key, and answers the same."""
    save_published(pair.ours, folder, PUBLISHED)
    opened, keys = open_reference(transformers, pair.case.architecture, folder)
    assert keys == {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}
    pictures = random_pictures(pair, 40, 24)
    for one, other in zip(
        answers(opened(pictures, interpolate_pos_encoding=True)), of_reference(pair, pictures), strict=True
    ):
        close(one, other)
    written, published = read_tensors(folder / "model.safetensors"), family_of(pair.ours, PUBLISHED)
    rules = published.rules(pair.ours.sizes, pair.ours.head_choice)
    assert len(written) == len(to_theirs(rules, tensors_of(pair.ours)))
