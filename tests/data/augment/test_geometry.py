"""Pixels go where they should."""

import numpy as np
import pytest
import torch
from PIL import Image

from qkv.data.augment import Flip, Moved, RandomResizedCrop, Shift
from qkv.data.augment.geometry import resized_boxes, rotated, sheared, translated
from qkv.errors import QkvError
from tests.data.augment.pictures import pictures


@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(40, 50), (7, 9), (24, 5)])
def test_a_box_is_resized_as_pillow_does(filter: str, size: tuple[int, int]) -> None:
    """Pillow weighs with whole numbers, so a value may be off by a step."""
    pixels = pictures()
    boxes = np.array([[0, 0, 24, 30], [3, 5, 11, 13], [23, 29, 1, 1], [0, 10, 20, 3]])
    made = resized_boxes(pixels, boxes, size, filter)
    for image, (top, left, height, width), mine in zip(pixels, boxes, made, strict=True):
        part = Image.fromarray(image[:, top : top + height, left : left + width].permute(1, 2, 0).numpy())
        theirs = np.array(part.resize(size[::-1], Image.Resampling[filter.upper()]))
        assert np.abs(mine.permute(1, 2, 0).numpy().astype(int) - theirs).max() <= 1


def test_crops_have_the_area_and_the_shape_that_were_asked_for() -> None:
    crop = RandomResizedCrop((8, 8), area=(0.1, 0.6), shape=(0.5, 2.0))
    boxes = crop.boxes(2000, 60, 80, np.random.default_rng(0)).astype(float)
    top, left, height, width = boxes.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height).max() <= 60
    assert (left + width).max() <= 80
    share, shape = height * width / 4800, width / height
    assert 0.09 < share.min() < 0.13
    assert 0.5 < share.max() < 0.62
    assert shape.min() < 0.6
    assert shape.max() > 1.8
    assert 0.4 < (np.log(shape) > 0).mean() < 0.6
    assert (top == 0).any()
    assert (top + height == 60).any()


def test_where_no_crop_fits_the_middle_is_taken() -> None:
    thin = RandomResizedCrop((4, 4), area=(0.9, 1.0), shape=(3 / 4, 4 / 3)).boxes(5, 10, 100, np.random.default_rng(0))
    assert thin.tolist() == [[0, 43, 10, 13]] * 5


def test_a_mirror_changes_sides() -> None:
    pixels = pictures(200, 3, 4)
    made = Flip(0.25)(pixels, np.random.default_rng(0))
    mirrored = (made != pixels).flatten(1).any(1)
    assert torch.equal(made[mirrored], pixels[mirrored].flip(-1))
    assert 20 < int(mirrored.sum()) < 80
    assert torch.equal(Flip(0)(pixels, np.random.default_rng(0)), pixels)


def test_a_shifted_picture_is_cut_out_of_a_larger_one() -> None:
    pixels = pictures(50, 6, 7)
    made = Shift(2)(pixels, np.random.default_rng(0))
    padded = torch.nn.functional.pad(pixels, (2, 2, 2, 2))
    found = set()
    for image, whole in zip(made, padded, strict=True):
        places = [(y, x) for y in range(5) for x in range(5) if torch.equal(image, whole[:, y : y + 6, x : x + 7])]
        assert len(places) == 1
        found.add(places[0])
    assert len(found) > 15


def same(mine: torch.Tensor, theirs: list[Image.Image]) -> float:
    stacked = torch.stack([torch.from_numpy(np.array(each)).permute(2, 0, 1) for each in theirs])
    return float((mine == stacked).float().mean())


def transformed(pixels: torch.Tensor, *coefficients: float) -> list[Image.Image]:
    images = [Image.fromarray(each.permute(1, 2, 0).numpy()) for each in pixels]
    grey = (128, 128, 128)
    return [
        image.transform(image.size, Image.Transform.AFFINE, coefficients, Image.Resampling.NEAREST, fillcolor=grey)
        for image in images
    ]


def test_straight_maps_are_pillows() -> None:
    """But for pixels whose place lies on the edge between two, which Pillow finds with numbers of 16 bits."""
    pixels = pictures(3, 31, 40)
    full = np.full(3, 1.0)
    assert same(sheared(pixels, 0.21 * full, 0 * full), transformed(pixels, 1, 0.21, 0, 0, 1, 0)) > 0.99
    assert same(sheared(pixels, 0 * full, -0.3 * full), transformed(pixels, 1, 0, 0, -0.3, 1, 0)) > 0.99
    assert same(translated(pixels, 7.4 * full, -3.2 * full), transformed(pixels, 1, 0, 7.4, 0, 1, -3.2)) > 0.99
    turned = [Image.fromarray(each.permute(1, 2, 0).numpy()).rotate(17, fillcolor=(128, 128, 128)) for each in pixels]
    assert same(rotated(pixels, 17 * full), turned) > 0.99


def test_the_same_seed_gives_the_same_pictures() -> None:
    crop = RandomResizedCrop((16, 16))
    first, again, other = (crop(pictures(), np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert first.shape == (4, 3, 16, 16)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_crops_that_make_no_sense_are_told() -> None:
    with pytest.raises(QkvError, match="shares of the area"):
        RandomResizedCrop((8, 8), area=(0.5, 1.5))
    with pytest.raises(QkvError, match="bilinear or bicubic"):
        RandomResizedCrop((8, 8), filter="nearest")


class Always:
    """Draws one share of what may be drawn, turn, zoom, across and down each its own."""

    def __init__(self, *shares: float) -> None:
        self.shares = shares

    def uniform(self, low: float, high: float, size: tuple[int, int]) -> np.ndarray:
        assert (low, high) == (-1, 1)
        return np.repeat(np.array(self.shares)[:, None], size[1], 1)


def test_a_picture_moved_by_nothing_stays_as_it_is() -> None:
    pixels = pictures()
    assert torch.equal(Moved()(pixels, np.random.default_rng(0)), pixels)
    assert torch.equal(Moved(turn=10, zoom=0.1, shift=0.1)(pixels, Always(0, 0, 0, 0)), pixels)


def test_a_picture_is_turned_about_its_middle_whatever_its_shape() -> None:
    square, wide = pictures(2, 9, 9), pictures(2, 8, 12)
    assert torch.equal(Moved(turn=90)(square, Always(1, 0, 0, 0)), torch.rot90(square, 1, (-2, -1)))
    assert torch.equal(Moved(turn=180)(wide, Always(-1, 0, 0, 0)), wide.flip(-1, -2))
    quarter = Moved(turn=90)(wide, Always(1, 0, 0, 0))  # the middle of a wide picture turns, its ends leave it
    assert torch.equal(quarter[..., 2:10], torch.rot90(wide[..., 2:10], 1, (-2, -1)))


def test_a_picture_is_shifted_by_a_share_of_its_side_and_its_rim_goes_on() -> None:
    pixels = pictures(2, 8, 12)
    made = Moved(shift=0.25)(pixels, Always(0, 0, 1, -1))  # taken 3 pixels further right and 2 further up
    assert torch.equal(made[:, :, 2:, :9], pixels[:, :, :6, 3:])
    assert torch.equal(made[:, :, :2, :9], pixels[:, :, :1, 3:].expand(-1, -1, 2, -1))
    assert torch.equal(made[:, :, 2:, 9:], pixels[:, :, :6, -1:].expand(-1, -1, -1, 3))


def test_a_zoomed_picture_shows_its_middle_larger() -> None:
    pixels = torch.zeros(1, 1, 12, 12, dtype=torch.uint8)
    pixels[..., 4:8, 4:8] = 200
    larger, smaller = (Moved(zoom=0.5)(pixels, Always(0, share, 0, 0)) for share in (1, -1))
    assert int((larger > 100).sum()) == 36
    assert int((smaller > 100).sum()) == 4


def test_every_picture_is_moved_by_what_is_drawn_for_it() -> None:
    pixels = pictures(1).expand(6, -1, -1, -1)
    made = Moved(turn=10, zoom=0.1, shift=0.1)(pixels, np.random.default_rng(0))
    assert len(made.flatten(1).unique(dim=0)) == 6
    assert torch.equal(made, Moved(turn=10, zoom=0.1, shift=0.1)(pixels, np.random.default_rng(0)))


def test_moves_that_are_none_are_refused() -> None:
    for wrong in ({"turn": -1}, {"shift": -0.1}, {"zoom": 1.0}):
        with pytest.raises(QkvError, match="by 0 or more"):
            Moved(**wrong)
