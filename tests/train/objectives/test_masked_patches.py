"""Hidden patches: what is asked, of which patches, and that it can be learned."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.data.augment import Flip, Mixing
from qkv.data.image_rows import ImageBatch, ImageRows
from qkv.data.patch_colours import patch_colours
from qkv.data.patch_hiding import PatchHiding
from qkv.data.plan import PlannedBatch
from qkv.data.preprocessing import Normalise
from qkv.errors import QkvError
from qkv.models.catalogue import build
from qkv.models.head_choice import HeadChoice
from qkv.train.objectives.masked_patches import MaskedPatchLoss
from tests.models.small_images import small_model, small_sizes

NORMALISE = Normalise(1 / 255, (0.5,) * 3, (0.5,) * 3)
LOSS = MaskedPatchLoss(normalise=NORMALISE)


def batch(filler: int = 0, **changes: Any) -> ImageBatch:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 12, 12, 3)).astype(np.uint8)
    rows = ImageRows(pixels, np.zeros(6, np.int64), ("none",))
    return replace(rows.batch(PlannedBatch(np.arange(6), 1, 1, filler)), **changes)


@torch.no_grad()
def test_it_is_the_entropy_of_the_hidden_patches_colours() -> None:
    model, asked = small_model("vit", "masked"), batch(augment=Flip(), seed=4)
    found = LOSS.measure(model, asked)
    random = np.random.default_rng(4)
    pixels = Flip()(asked.pixels, random)
    hidden = PatchHiding().draw(6, 9, random, pixels)
    logits = model(NORMALISE(pixels), hidden=hidden).flatten(0, 1)[hidden.places]
    wanted = patch_colours(pixels, (4, 4)).flatten()[hidden.places]
    torch.testing.assert_close(found["loss"].total, F.cross_entropy(logits, wanted, reduction="sum"))
    assert found["loss"].count == len(hidden.places) == 6 * 4
    assert int(found["accuracy"].total) == int((logits.argmax(-1) == wanted).sum())


@torch.no_grad()
def test_a_masked_patch_tells_nothing_of_itself() -> None:
    """Whatever a patch shows, the answers are the same while a mask stands on it."""
    model, everything = small_model("vit", "masked"), PatchHiding(1.0, masked=1.0, replaced=0.0)
    hidden = everything.draw(6, 9, np.random.default_rng(0), torch.zeros(1))
    one, other = (model(torch.randn(6, 3, 12, 12), hidden=hidden) for _ in range(2))
    torch.testing.assert_close(one, other)


@torch.no_grad()
def test_filler_counts_as_nothing() -> None:
    model = small_model("vit", "masked")
    plain, filled = (LOSS.measure(model, batch(filler, seed=1)) for filler in (0, 3))
    for name in plain:
        torch.testing.assert_close(plain[name].total, filled[name].total)
        assert plain[name].count == filled[name].count


@pytest.mark.parametrize("pooling", ["class", "mean"])
def test_colours_that_follow_from_their_neighbours_are_learned(pooling: str) -> None:
    """Pictures of one colour: each hidden patch is as those that are seen."""
    torch.manual_seed(0)
    colours = np.array([[20, 20, 20], [230, 30, 30], [30, 230, 30], [30, 30, 230]], np.uint8)
    pixels = colours[np.arange(16) % 4][:, None, None].repeat(12, 1).repeat(12, 2)
    rows = ImageRows(pixels, np.zeros(16, np.int64), ("none",))
    model = build("vit", replace(small_sizes("vit"), pooling=pooling), HeadChoice("masked"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(150):
        loss = LOSS(model, replace(rows.batch(PlannedBatch(np.arange(16), 1, 1)), seed=step))
        (loss.total / loss.count).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        found = LOSS.measure(model.eval(), rows.batch(PlannedBatch(np.arange(16), 1, 1)))["accuracy"]
    assert found.total / found.count > 0.9


def test_what_does_not_fit_is_told() -> None:
    with pytest.raises(QkvError, match="the head 'masked'"):
        LOSS(small_model("vit", "classification"), batch())
    with pytest.raises(QkvError, match="leave the mixing of pictures out"):
        LOSS(small_model("vit", "masked"), batch(mixing=Mixing()))


@pytest.mark.gpu
@torch.no_grad()
def test_a_gpu_hides_and_finds_the_same() -> None:
    model, asked = small_model("vit", "masked"), batch(augment=Flip(), seed=4)
    here = LOSS.measure(model, asked)
    there = LOSS.measure(deepcopy(model).cuda(), asked.to("cuda"))
    torch.testing.assert_close(there["loss"].total.cpu(), here["loss"].total, atol=1e-2, rtol=1e-3)
    assert there["loss"].count == here["loss"].count
