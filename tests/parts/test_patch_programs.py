"""Patches by programs are those that torch cuts, bit for bit.

pytest -m gpu tests/parts; without a GPU, TRITON_INTERPRET=1 lets Triton's interpreter read them.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from qkv.parts import patches
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.patches import PatchEmbed, Patches
from qkv.parts.position import Learned2D

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
DEVICE = "cpu" if INTERPRETED else "cuda"
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
    monkeypatch.setattr(patches, "runs_our_own", lambda x: True)
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
        pixels = embed.patches.cut(images)
        programs.setattr(patches, "runs_our_own", lambda x: False)
        assert torch.equal(pixels, embed.patches.cut(images))
        assert torch.equal(found, embed(images, ctx))
        programs.setattr(patches, "runs_our_own", lambda x: True)
