"""What is chosen by the pictures where nobody says otherwise."""

import json
from pathlib import Path

import numpy as np
import pytest

from qkv.api.image_choice import CHANGES, Judged, augmentation_of, judged, recorded, sizes_for
from qkv.data.augment import Flip, InTurn, Moved
from qkv.models.catalogue import FAMILIES, build
from qkv.models.head_choice import HeadChoice
from tests.api.test_pixel_probes import EVEN, LETTERS, written


def found(plain: float, mirrored: float, pictures: int = 1000, **others: float) -> Judged:
    shares = {"": plain, **dict.fromkeys(CHANGES, plain), "mirrored": mirrored, **others}
    return Judged(pictures=pictures, guessed=0.1, recognised=shares)


def test_digits_are_not_mirrored_and_shapes_that_are_their_own_mirror_are() -> None:
    letters, even = judged(written(LETTERS), None), judged(written(EVEN), None)
    assert not letters.allows("mirrored")
    assert even.allows("mirrored")
    assert letters.allows("turned")
    assert letters.linear is None


@pytest.mark.parametrize(
    ("mirrored", "allowed"), [(0.94, True), (0.74, True), (0.71, False), (0.4, False), (0.0, False)]
)
def test_a_change_is_allowed_that_keeps_three_quarters_of_what_is_known(mirrored: float, allowed: bool) -> None:
    """Of 0.94, 0.84 is known better than by guessing, of which 0.63 must be left."""
    told = found(0.94, mirrored)
    assert told.knows
    assert told.allows("mirrored") is allowed
    assert ("mirrored" in told.changes()) is allowed


def test_a_judge_that_knows_nothing_has_no_say_but_a_mirror_needs_its_word() -> None:
    told = found(0.11, 0.11)
    assert not told.knows
    assert told.changes() == ("turned", "zoomed", "shifted")
    assert found(0.14, 0.14).knows  # of a thousand pictures that is no chance
    assert not found(0.14, 0.14, pictures=50).knows


def test_allowed_changes_are_one_move_and_a_mirror() -> None:
    assert augmentation_of(CHANGES.keys()) == InTurn((Moved(turn=10, zoom=0.1, shift=1 / 16), Flip()))
    assert augmentation_of(["shifted"]) == InTurn((Moved(shift=1 / 16),))
    assert augmentation_of(["mirrored"]) == InTurn((Flip(),))
    assert augmentation_of([]) is None


@pytest.mark.parametrize("family", ["vit", "deit"])
@pytest.mark.parametrize(
    ("side", "convolutions", "places"),
    [(8, 1, 4), (16, 2, 4), (28, 3, 4), (32, 3, 4), (48, 4, 3), (64, 4, 4), (224, 4, 14)],
)
def test_small_pictures_become_a_few_places_behind_as_many_convolutions_as_that_takes(
    family: str, side: int, convolutions: int, places: int
) -> None:
    values = {**sizes_for(family, side, small=True), "image": side}
    assert values["stem"] == convolutions
    kind = "distilled" if family == "deit" else "classification"
    model = build(family, FAMILIES[family].sizes(values), HeadChoice(kind, ("a", "b")))
    assert (model.embed.position.rows, model.embed.position.columns) == (places, places)


def test_a_larger_model_looks_closer() -> None:
    small, large = (sizes_for("vit", 32, small=small) for small in (True, False))
    assert large["width"] > small["width"]
    assert large["stem"] == small["stem"] - 1


def test_a_run_that_goes_on_takes_what_it_was_told_in_the_beginning(tmp_path: Path) -> None:
    rows = written(LETTERS)
    before = Judged(pictures=7, guessed=0.5, recognised={"": 0.6}, linear=0.3)
    (tmp_path / "run.json").write_text(json.dumps({"settings": {"judged": before.record()}}))
    assert recorded(tmp_path) == before
    assert judged(rows, rows, tmp_path) == before
    for content in ("{}", '{"settings": {"judged": {"pictures": 1}}}', '{"settings": 3}', "no JSON"):
        (tmp_path / "run.json").write_text(content)
        assert recorded(tmp_path) is None
        assert judged(rows, None, tmp_path, changes=False).recognised == {}


def test_what_was_judged_is_told_in_numbers_that_json_keeps() -> None:
    told = judged(written(LETTERS), written(LETTERS, 30, seed=1))
    assert Judged(**json.loads(json.dumps(told.record()))) == told
    assert told.linear == pytest.approx(1.0, abs=0.1)
    assert np.isclose(told.guessed, 1 / 3)
