"""An exported image model says to the reference how pictures become its inputs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from qkv.data.preprocessing import Centre, Exactly, Normalise, Preprocessing, RoundedCentre, ShortestEdge
from qkv.data.preprocessing_files import read_preprocessing
from qkv.generate.image_readers import ImageClassifier
from qkv.weights.export import export
from tests.models.small_images import small_model

NORMALISE = Normalise(1 / 255, (0.4, 0.5, 0.6), (0.3, 0.2, 0.1))


@pytest.mark.parametrize(
    "way",
    [
        Preprocessing(resize=Exactly(12, 12), normalise=NORMALISE),
        Preprocessing(resize=Exactly(17, 15), filter="bicubic", crop=Centre(12, 12), normalise=NORMALISE),
        Preprocessing(resize=ShortestEdge(15), filter="lanczos", crop=Centre(12, 12), normalise=NORMALISE),
    ],
    ids=repr,
)
def test_the_reference_opens_an_exported_folder_and_says_the_same(way: Preprocessing, tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    use = ImageClassifier(small_model("vit", "classification"), way)
    use.save(tmp_path / "ours")
    export(tmp_path / "ours", tmp_path / "theirs")
    assert read_preprocessing(tmp_path / "theirs") == way
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 31, 3), np.uint8))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "theirs", backend="pil")
    model = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "theirs").eval()
    with torch.no_grad():
        shares = model(**processor(images=[picture], return_tensors="pt")).logits[0].softmax(-1)
    (found,) = use.run([picture])
    assert list(found.probabilities) == [model.config.id2label[number] for number in range(3)]
    torch.testing.assert_close(torch.tensor(list(found.probabilities.values())), shares, atol=1e-5, rtol=1e-4)


def test_what_has_no_words_there_is_left_out(tmp_path: Path) -> None:
    model = small_model("vit", "classification")
    way = Preprocessing(resize=ShortestEdge(15), crop=RoundedCentre(12, 12), normalise=NORMALISE)
    ImageClassifier(model, way).save(tmp_path / "ours")
    export(tmp_path / "ours", tmp_path / "theirs")
    assert not (tmp_path / "theirs" / "preprocessor_config.json").exists()
    (tmp_path / "ours" / "preprocessor_config.json").unlink()
    export(tmp_path / "ours", tmp_path / "bare")
    assert not (tmp_path / "bare" / "preprocessor_config.json").exists()
