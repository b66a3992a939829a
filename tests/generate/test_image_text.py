"""Pictures and texts in one space, from files to labels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import qkv
from qkv.data.preprocessing import Centre, Normalise, Preprocessing, ShortestEdge
from qkv.data.reading_tokenizer import for_reading
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.image_text import ImageTextReader
from qkv.generate.zero_shot import ZeroShot
from qkv.models.catalogue import FAMILIES, build
from tests.cli.command import qkv as command
from tests.models.small import perturb, shrunk

TOKENIZER = for_reading(TextTokenizer.train("characters", ["a photo of a cat, dog or bird. {}"]))
WAY = Preprocessing(resize=ShortestEdge(13), crop=Centre(12, 12), normalise=Normalise(1 / 255, (0.5,) * 3, (0.5,) * 3))
LABELS = ["cat", "dog", "bird"]


@pytest.fixture(scope="module")
def reader() -> ImageTextReader:
    torch.manual_seed(0)
    sizes = shrunk(FAMILIES["clip"].published["base-32"], image=12, patch=4, positions=30, vocabulary=TOKENIZER.size)
    model = build("clip", sizes)
    perturb(model)
    return ImageTextReader(model.eval(), TOKENIZER, WAY)


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    files = [tmp_path / f"{number}.png" for number in range(3)]
    for number, file in enumerate(files):
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (20, 31, 3), np.uint8)).save(file)
    return files


def test_labels_are_those_of_the_prepared_pictures(reader: ImageTextReader, photos: list[Path]) -> None:
    found = reader.run(photos, LABELS, templates=["a {}.", "photo of a {}"], batch_images=2)
    images = WAY.batch(photos).pixels
    expected = ZeroShot(reader.model, TOKENIZER, LABELS, ["a {}.", "photo of a {}"]).run(images)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.label == theirs.label
        assert mine.probabilities == pytest.approx(theirs.probabilities, abs=1e-5)
    with pytest.raises(QkvError, match="no picture"):
        reader.run([], LABELS)


@torch.no_grad()
def test_cosines_are_those_of_the_model(reader: ImageTextReader, photos: list[Path]) -> None:
    cosines = reader.similarities(photos, ["a cat", "a dog"])
    ids = [torch.tensor([encoding.ids]) for encoding in TOKENIZER.encodings(["a cat", "a dog"])]
    texts = torch.cat([reader.model.of_texts(each) for each in ids])
    expected = reader.model.of_images(WAY.batch(photos).pixels) @ texts.T
    torch.testing.assert_close(cosines, expected, atol=1e-5, rtol=1e-4)


def test_a_saved_model_is_loaded_and_run_from_the_command_line(
    reader: ImageTextReader, photos: list[Path], tmp_path: Path
) -> None:
    reader.save(tmp_path / "model")
    loaded = qkv.load(tmp_path / "model", "cpu")
    assert isinstance(loaded, ImageTextReader)
    assert loaded.run(photos, LABELS) == reader.run(photos, LABELS)
    outcome = command("run", tmp_path / "model", *photos, "--similar", "a cat", "--similar", "a dog", "--device", "cpu")
    assert outcome.code == 0, outcome
    first = outcome.out.splitlines()[0].split("\t")
    assert first[2] == str(photos[0])
    assert float(first[0]) == pytest.approx(float(reader.similarities(photos[:1], ["a cat"])), abs=1e-4)
