import numpy as np
import pytest
from PIL import Image

from qkv.data.composing import Composer, Cutout
from qkv.data.images import read_layer
from qkv.errors import QkvError


def cutouts() -> list[Cutout]:
    """A red disc, and a blue bar with much that is transparent around it."""
    down, across = np.mgrid[:32, :32]
    disc = np.zeros((32, 32, 4), np.uint8)
    disc[(down - 16) ** 2 + (across - 16) ** 2 < 150] = (255, 0, 0, 255)
    bar = np.zeros((64, 64, 4), np.uint8)
    bar[30:36, 10:50] = (0, 0, 255, 255)
    return [Cutout("disc", disc), Cutout("bar", bar)]


def composer(**changed) -> Composer:
    backgrounds = [np.full((50, 70, 3), 200, np.uint8), np.full((20, 20, 3), 90, np.uint8)]
    return Composer(**{"cutouts": cutouts(), "backgrounds": backgrounds, "scenes": 40, "size": (96, 128), **changed})


def test_boxes_are_tight_around_what_is_seen():
    scenes = composer(objects=(1, 1))
    colours = {"disc": 0, "bar": 2}
    for scene in scenes:
        (box,) = scene.boxes
        pixels = np.asarray(scene.image).astype(int)
        assert pixels.shape == (96, 128, 3)
        own = colours[box.label]
        others = [channel for channel in range(3) if channel != own]
        seen = pixels[..., own] - pixels[..., others].max(-1) > 100
        down, across = seen.nonzero()
        assert abs(across.min() - box.x0) <= 1
        assert abs(down.min() - box.y0) <= 1
        assert abs(across.max() + 1 - box.x1) <= 1
        assert abs(down.max() + 1 - box.y1) <= 1
        assert 0.1 * 96 <= max(box.x1 - box.x0, box.y1 - box.y0) <= 0.55 * 96


def test_a_scene_is_the_same_whenever_it_is_asked_for():
    one, other = composer(), composer()
    for number in (0, 7, 39):
        assert one[number].boxes == other[number].boxes
        assert np.array_equal(np.asarray(one[number].image), np.asarray(other[number].image))
    assert one[3].boxes != composer(seed=1)[3].boxes
    assert one[-1].boxes == one[39].boxes
    assert [scene.boxes for scene in one[2:4]] == [one[2].boxes, one[3].boxes]


def test_objects_hide_each_other_little_and_stay_inside():
    for scene in composer(objects=(5, 8), hidden=0.0):
        for number, one in enumerate(scene.boxes):
            assert 0 <= one.x0 < one.x1 <= 128
            assert 0 <= one.y0 < one.y1 <= 96
            for other in scene.boxes[number + 1 :]:
                assert one.x1 <= other.x0 or other.x1 <= one.x0 or one.y1 <= other.y0 or other.y1 <= one.y0


def test_there_are_as_many_objects_as_asked_for_and_of_all_kinds():
    scenes = composer(objects=(0, 3), scale=(0.1, 0.2))
    counts = {len(scene.boxes) for scene in scenes}
    assert counts == {0, 1, 2, 3}
    assert {box.label for scene in scenes for box in scene.boxes} == {"disc", "bar"}
    assert scenes.names == ("bar", "disc")


def test_what_makes_no_scene_is_refused():
    with pytest.raises(QkvError, match="needs cutouts"):
        composer(cutouts=[])
    with pytest.raises(QkvError, match="in order"):
        composer(objects=(3, 1))
    with pytest.raises(QkvError, match="nothing to be seen"):
        Cutout("ghost", np.zeros((4, 4, 4), np.uint8))
    with pytest.raises(QkvError, match=r"\[h w 4\]"):
        Cutout("flat", np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(IndexError):
        composer()[40]


def test_a_cutout_can_be_read_from_a_file(tmp_path):
    disc = cutouts()[0].pixels
    Image.fromarray(disc).save(tmp_path / "disc.png")
    assert np.array_equal(np.asarray(read_layer(tmp_path / "disc.png")), disc)
    Image.new("L", (4, 3), 90).save(tmp_path / "grey.png")
    assert np.asarray(read_layer(tmp_path / "grey.png")).tolist()[0][0] == [90, 90, 90, 255]
    Image.fromarray(disc).convert("LA").save(tmp_path / "greys.png")
    assert np.array_equal(np.asarray(read_layer(tmp_path / "greys.png"))[..., 3], disc[..., 3])


def test_objects_are_turned_and_their_boxes_with_them():
    plain, turned = composer(objects=(1, 1)), composer(objects=(1, 1), turned=40.0)
    bars = [scene.boxes[0] for scene in turned if scene.boxes[0].label == "bar"]
    shapes = [(box.y1 - box.y0) / (box.x1 - box.x0) for box in bars]
    assert max(shapes) > 0.5  # upright it is seven times as wide as high
    assert max((b.y1 - b.y0) / (b.x1 - b.x0) for s in plain for b in s.boxes if b.label == "bar") < 0.3
    assert np.array_equal(np.asarray(turned[3].image), np.asarray(turned[3].image))
    with pytest.raises(QkvError, match="0 to 180 degrees"):
        composer(turned=-1.0)
