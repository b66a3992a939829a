"""Strange, broken and malicious image files: the right answer or one sentence, from Python and on the command line."""

import json
import resource
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from qkv.api.loading import load
from qkv.data.preprocessing import Centre, EdgesUpTo, Exactly, Normalise, Preprocessing, ShortestEdge
from qkv.errors import QkvError
from qkv.generate.detect import Detector
from qkv.generate.image_readers import use_of_images
from qkv.generate.keypoints import KeypointFinder
from tests.cli.command import qkv
from tests.cli.hostile_images import READ, REFUSED, content, picture, place
from tests.generate.test_detect import small_detector
from tests.generate.test_keypoints import small_model as small_pose
from tests.models.small_images import small_model

pytestmark = pytest.mark.slow  # `tests/fuzz` reads damaged files of these kinds at every change

HALF = Normalise(1 / 255, (0.5,) * 3, (0.5,) * 3)
KINDS = ("squeezed", "cropped", "objects", "points")
ROOM = 400 * 2**20  # bytes that reading a file may take: a picture of the most pixels is 200 MB as RGB


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each way to read pictures."""
    made: dict[str, Any] = {
        "squeezed": use_of_images(
            small_model("vit", "classification"), Preprocessing(resize=Exactly(12, 12), normalise=HALF)
        ),
        "cropped": use_of_images(
            small_model("deit", "embedding"),
            Preprocessing(resize=ShortestEdge(14), filter="bicubic", crop=Centre(12, 12), normalise=HALF),
        ),
        "objects": Detector(small_detector(), Preprocessing(resize=EdgesUpTo(32, 64), padding="to largest")),
        "points": KeypointFinder(small_pose(), Preprocessing(resize=Exactly(64, 48))),
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("models")
    for name, reader in made.items():
        reader.save(folder / name)
    return {name: folder / name for name in made}


@cache
def loaded(folder: Path) -> Any:
    return load(folder, "cpu")


def command(folder: Path, *more: object) -> Any:
    return qkv("run", folder, *map(str, more), "--device", "cpu", "--json")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", READ)
def test_a_strange_picture_is_seen_as_the_plain_one(
    case: str, kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    name, make = READ[case]
    written, plain = make()
    strange = place(tmp_path, name, written)
    other = place(tmp_path, "plain.png", content(plain.convert("RGB"), "PNG"))
    more = ("--least", "0") if kind in ("objects", "points") else ()
    answers = []
    for file in (strange, other):
        outcome = command(folders[kind], file, *more)
        assert outcome.code == 0, outcome
        (answer,) = map(json.loads, outcome.out.splitlines())
        assert answer.pop("input") == str(file)
        answers.append(answer)
    assert answers[0] == answers[1]
    model = loaded(folders[kind])
    for found in (model.run([strange]), model.run([strange.read_bytes()]), model.run([Image.open(strange)])):
        assert str(found[0]) == str(model.run([other])[0])


@pytest.mark.parametrize("kind", ["squeezed", "objects"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_broken_picture_is_told_in_one_sentence(
    case: str, kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    name, make, told = REFUSED[case]
    file = place(tmp_path, name, make())
    good = place(tmp_path, "good.png", content(picture(), "PNG"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for files in ([file], [good, file]):
        outcome = command(folders[kind], *files)
        assert outcome.code == 2, outcome
        assert told in outcome.complaint
        assert file.name in outcome.complaint
        assert len(outcome.err.splitlines()) == 1
        with pytest.raises(QkvError, match=told):
            loaded(folders[kind]).run(files)
    if file.is_file():
        with pytest.raises(QkvError, match=told):
            loaded(folders[kind]).run([file.read_bytes()])
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < ROOM


@pytest.mark.parametrize("case", ["one pixel wide", "one pixel high", "an animated GIF", "turned to the left"])
@pytest.mark.parametrize("kind", ["objects", "points"])
def test_what_was_found_is_drawn_on_the_picture_as_it_is_seen(
    kind: str, case: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    name, make = READ[case]
    written, plain = make()
    file = place(tmp_path, name, written)
    outcome = command(folders[kind], file, "--least", "0", "--draw", tmp_path / "drawn")
    assert outcome.code == 0, outcome
    with Image.open(tmp_path / "drawn" / f"1-{file.stem}.png") as drawn:
        assert drawn.width * plain.height == drawn.height * plain.width


def test_one_broken_picture_of_a_set_is_named_in_training(tmp_path: Path) -> None:
    for label in ("bad", "good"):
        (tmp_path / "set" / label).mkdir(parents=True)
        for number in range(3):
            place(tmp_path / "set" / label, f"{number}.png", content(picture(12, 12, number), "PNG"))
    cut = place(tmp_path / "set" / "bad", "cut.jpg", content(picture(), "JPEG")[:-200])
    outcome = qkv(
        "train", "images", "--data", tmp_path / "set", "--out", tmp_path / "run", "--steps", "1", "--device", "cpu",
        "--side", "12", "--size", "patch=4,width=8,hidden=16,heads=2,layers=1",
    )  # fmt: skip
    assert outcome.code == 0, outcome
    assert str(cut) in outcome.err
    assert "cut short" in outcome.err
