"""Patches by programs are those that torch cuts, bit for bit.

pytest -m gpu tests/parts; without a GPU, TRITON_INTERPRET=1 lets Triton's interpreter read them.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from qkv.data.preprocessing import CLIP_MEAN, CLIP_STD, IMAGENET_MEAN, IMAGENET_STD, Normalise
from qkv.parts import patches, pixels
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.patches import PatchEmbed, Patches
from qkv.parts.position import Learned2D

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
DEVICE = "cpu" if INTERPRETED else "cuda"
NARROW = torch.float16 if INTERPRETED else torch.bfloat16
KINDS = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16, torch.float16]
SHAPES: list[tuple[dict[str, Any], tuple[int, int]]] = [
    ({"patch": 16}, (48, 64)),
    ({"patch": 14}, (45, 30)),
    ({"patch": (16, 16), "stride": (10, 10)}, (128, 56)),
    ({"patch": 4, "around": 2}, (12, 9)),
    ({"patch": (3, 5), "stride": (2, 5)}, (11, 17)),
]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Programs are taken even where there is no GPU, and for little."""
    monkeypatch.setattr(patches, "ENOUGH", 1)
    monkeypatch.setattr(patches, "runs_or_counts", lambda x: True)
    return monkeypatch


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("made", "size"), SHAPES)
@pytest.mark.parametrize("prefix", [(), ("first",), ("first", "second")])
@torch.no_grad()
def test_a_stream_of_pictures(
    made: dict[str, Any],
    size: tuple[int, int],
    prefix: tuple[str, ...],
    kind: torch.dtype,
    programs: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    cut = Patches(3, 12, **made)
    embed = PatchEmbed(cut, Learned2D(*cut.grid(*size), 12, len(prefix)), prefix).to(DEVICE, kind).eval()
    both = torch.randn(2, 5, *size, device=DEVICE, dtype=kind)
    last = torch.randn(2, *size, 3, device=DEVICE, dtype=kind).permute(0, 3, 1, 2)
    for images in (both[:, :3].contiguous(), both[:, 1:4], last):
        ctx = Context(tokens=Tokens(embed.count(images)))
        found = embed(images, ctx)
        pixels = embed.patches.cut(images, kind)
        programs.setattr(patches, "runs_or_counts", lambda x: False)
        assert torch.equal(pixels, embed.patches.cut(images, kind))
        assert torch.equal(found, embed(images, ctx))
        programs.setattr(patches, "runs_or_counts", lambda x: True)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("prefix", [(), ("first", "second")])
def test_they_learn_as_torchs_do(rows: int, prefix: tuple[str, ...], programs: pytest.MonkeyPatch) -> None:
    """A narrow product is placed in a wide stream; its gradient is narrow again."""
    torch.manual_seed(0)
    cut = Patches(3, 300, 4)
    embed = PatchEmbed(cut, Learned2D(*cut.grid(8, 12), 300, len(prefix)), prefix).to(DEVICE)
    given = torch.randn(rows, 6, 300, device=DEVICE).to(NARROW).requires_grad_()
    asked = [given, embed.position.weight, *(getattr(embed, name) for name in prefix)]
    above = torch.randn(rows, 300, len(prefix) + 6, device=DEVICE).mT  # lies crosswise
    found = embed._placed(given, embed.position(2, 3))
    gradients = torch.autograd.grad(found, asked, above)
    programs.setattr(patches, "runs_or_counts", lambda x: False)
    expected = embed._placed(given, embed.position(2, 3))
    assert torch.equal(found, expected)
    right = torch.autograd.grad(expected, asked, above)
    assert torch.equal(gradients[0], right[0])
    torch.testing.assert_close(gradients[1:], right[1:])


@torch.no_grad()
def test_pixels_are_made_narrow_as_they_are_cut(programs: pytest.MonkeyPatch) -> None:
    cut, images = Patches(3, 12, 4).to(DEVICE), torch.randn(2, 3, 12, 20, device=DEVICE)
    found = cut.cut(images, NARROW)
    programs.setattr(patches, "runs_or_counts", lambda x: False)
    assert torch.equal(found, cut.cut(images, NARROW))


@pytest.mark.parametrize("how", [
    Normalise(), Normalise(mean=IMAGENET_MEAN, std=IMAGENET_STD), Normalise(1 / 127.5, (1.0,) * 3),
    Normalise(std=(0.3,) * 3), Normalise(mean=CLIP_MEAN, std=CLIP_STD),
])  # fmt: skip
def test_pixels_are_normalised_to_the_bit(how: Normalise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "ENOUGH", 1)
    monkeypatch.setattr(pixels, "runs_or_counts", lambda x: True)
    given = torch.arange(2 * 64 * 70 * 3).to(torch.uint8).view(2, 64, 70, 3)  # more than a program has, and all numbers
    for each in (given.permute(0, 3, 1, 2), given.view(2, 3, 64, 70), given.view(2, 3, 64, 70)[:, :, 1:, 5:]):
        assert torch.equal(pixels.normalised(each.to(DEVICE), how).cpu(), how(each))
