"""What pixels tell of classes, by themselves and once they are changed."""

from pathlib import Path

import numpy as np
import pytest

from qkv.api.pixel_probes import guessed, linear_score, recognised
from qkv.data.augment import Flip, Moved
from qkv.data.image_rows import ImageRows, map_array

MIRRORED = {"mirrored": Flip(1.0)}
# Strokes of 6 × 6: two that are each other's mirror, as b and d are, and one that is its own.
LETTERS = {
    "b": ["#.....", "#.....", "####..", "#...#.", "#...#.", "####.."],
    "d": [".....#", ".....#", "..####", ".#...#", ".#...#", "..####"],
    "o": ["......", "..##..", ".#..#.", ".#..#.", "..##..", "......"],
}
EVEN = {name: LETTERS[name] for name in "o"} | {
    "v": ["#....#", "#....#", ".#..#.", ".#..#.", "..##..", "..##.."],
    "t": ["######", "..##..", "..##..", "..##..", "..##..", "..##.."],
}


def written(letters: dict[str, list[str]], count: int = 90, seed: int = 0) -> ImageRows:
    """Letters in noise, each at one of nine places."""
    draw = np.random.default_rng(seed)
    labels = np.arange(count) % len(letters)
    shapes = [np.array([[200 * (cell == "#") for cell in row] for row in shape]) for shape in letters.values()]
    pixels = draw.integers(0, 50, (count, 8, 8))
    for picture, label in zip(pixels, labels, strict=True):
        top, left = draw.integers(0, 3, 2)
        picture[top : top + 6, left : left + 6] += shapes[label]
    return ImageRows(pixels.astype(np.uint8), labels, tuple(letters))


def test_a_mirrored_letter_is_another_one() -> None:
    shares = recognised(written(LETTERS), MIRRORED)
    assert shares[""] > 0.9
    assert shares["mirrored"] < 0.5  # o alone


def test_a_mirrored_shape_that_is_its_own_mirror_stays_itself() -> None:
    shares = recognised(written(EVEN), MIRRORED)
    assert min(shares.values()) > 0.9


def test_small_moves_leave_letters_what_they_are() -> None:
    shares = recognised(written(LETTERS), {"turned": Moved(turn=5), "zoomed": Moved(zoom=0.05)})
    assert min(shares.values()) > 0.9


def test_the_same_pictures_give_the_same_shares_wherever_they_lie(tmp_path: Path) -> None:
    rows, changes = written(LETTERS), {"turned": Moved(turn=10)}
    np.save(tmp_path / "pixels.npy", rows.pixels[..., None])
    on_disk = ImageRows(map_array(tmp_path / "pixels.npy"), rows.labels, rows.names)  # type: ignore[arg-type]
    assert recognised(rows, changes) == recognised(on_disk, changes)
    assert linear_score(rows, rows) == linear_score(on_disk, on_disk)


def test_pixels_that_tell_nothing_are_not_recognised() -> None:
    draw = np.random.default_rng(0)
    rows = ImageRows(draw.integers(0, 256, (200, 4, 4), np.uint8), np.arange(200) % 2, ("a", "b"))
    assert recognised(rows, {})[""] == pytest.approx(0.5, abs=0.12)
    assert linear_score(rows.some(range(100)), rows.some(range(100, 200))) == pytest.approx(0.5, abs=0.15)


def test_a_linear_probe_names_what_lies_on_one_side_of_a_plane() -> None:
    rows = written(LETTERS)
    assert linear_score(rows, written(LETTERS, seed=1)) > 0.9


def test_a_linear_probe_agrees_with_scikit_learn() -> None:
    """The same regression, which there is told by C, the inverse of our penalty."""
    linear = pytest.importorskip("sklearn.linear_model")
    draw = np.random.default_rng(0)
    faint = [
        ImageRows(
            (each.pixels // 4 + draw.integers(0, 150, each.pixels.shape)).astype(np.uint8), each.labels, each.names
        )
        for each in (written(LETTERS, 60), written(LETTERS, 300, seed=1))
    ]
    known, asked = (each.pixels.reshape(len(each), -1) / 255 for each in faint)
    mean = known.mean(0)
    length = np.sqrt(((known - mean) ** 2).sum(1).mean())
    model = linear.LogisticRegression(C=10.0, max_iter=1000).fit((known - mean) / length, faint[0].labels)
    theirs = model.score((asked - mean) / length, faint[1].labels)
    assert 0.4 < theirs < 0.95
    assert linear_score(*faint) == pytest.approx(theirs, abs=0.01)


def test_one_picture_a_class_is_enough_to_ask() -> None:
    rows = written(LETTERS, 3)
    assert recognised(rows, MIRRORED).keys() == {"", "mirrored"}
    assert linear_score(rows, rows) == 1
    assert guessed(rows) == pytest.approx(1 / 3)


def test_large_pictures_are_looked_at_in_small() -> None:
    rows = written(LETTERS)
    large = ImageRows(rows.pixels.repeat(8, 1).repeat(8, 2), rows.labels, rows.names)
    assert recognised(large, MIRRORED) == pytest.approx(recognised(rows, MIRRORED), abs=0.05)
