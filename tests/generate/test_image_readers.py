"""Image models in use: a picture in, and out what the reference says of it."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from qkv.api.loading import load
from qkv.data.patch_colours import middle_of
from qkv.data.patch_hiding import every_other
from qkv.data.preprocessing import Centre, Normalise, Preprocessing, RoundedCentre, ShortestEdge
from qkv.errors import QkvError
from qkv.generate.image_readers import ImageClassifier, ImageEncoder, ImageStateReader, PatchGuesser
from tests.models.small_images import LABELS, small_model

WAY = Preprocessing(
    resize=ShortestEdge(14), filter="bicubic", crop=Centre(12, 12), normalise=Normalise(1 / 255, (0.5,) * 3, (0.5,) * 3)
)


def picture(number: int = 0, width: int = 40, height: int = 30) -> Image.Image:
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8))


def test_a_picture_gets_a_label_however_it_is_given(tmp_path: Path) -> None:
    model = small_model("vit", "classification")
    stream = io.BytesIO()
    picture().save(stream, "PNG")
    (tmp_path / "picture.png").write_bytes(stream.getvalue())
    given = [tmp_path / "picture.png", str(tmp_path / "picture.png"), stream.getvalue(), picture(), picture(1)]
    found = ImageClassifier(model, WAY).run(given, batch_images=2)
    expected = model(torch.stack([WAY.tensor(picture()), WAY.tensor(picture(1))])).softmax(-1)
    for each in found[:4]:
        assert list(each.probabilities) == list(LABELS)
        torch.testing.assert_close(torch.tensor(list(each.probabilities.values())), expected[0])
        assert each.label == LABELS[int(expected[0].argmax())]
    torch.testing.assert_close(torch.tensor(list(found[4].probabilities.values())), expected[1])
    assert ImageClassifier(model, WAY).run([]) == []


def test_a_distilled_model_decides_by_both_tokens() -> None:
    model = small_model("deit", "distilled")
    found = ImageClassifier(model, WAY).run([picture()])[0]
    torch.testing.assert_close(
        torch.tensor(list(found.probabilities.values())), model(WAY.tensor(picture())[None])[0].softmax(-1)
    )


def test_vectors_and_states() -> None:
    encoder = ImageEncoder(small_model("vit", "embedding"), WAY)
    vectors = encoder.run([picture(), picture(1)])
    assert vectors.shape == (2, encoder.model.sizes.width)
    cosines = encoder.similarities([picture()], [picture(), picture(1)])
    torch.testing.assert_close(cosines[0, 0], torch.tensor(1.0))
    assert cosines[0, 1] < 1
    for kind in ("states", "pooled"):
        states = ImageStateReader(small_model("vit", kind), WAY).run([picture()])
        assert states[0].shape == (10, encoder.model.sizes.width)  # nine patches and the class token


@pytest.mark.parametrize("crop", [Centre(12, 12), RoundedCentre(12, 12)])
def test_a_saved_use_is_loaded_as_it_was(tmp_path: Path, crop: Centre) -> None:
    way = Preprocessing(resize=ShortestEdge(15), crop=crop, normalise=WAY.normalise)
    use = ImageClassifier(small_model("vit", "classification"), way)
    use.save(tmp_path / "model")
    loaded = load(tmp_path / "model", "cpu")
    assert isinstance(loaded, ImageClassifier)
    assert loaded.preprocessing == way
    assert loaded.run([picture()]) == use.run([picture()])


def published(folder: Path, name: str, **settings: Any) -> Any:
    """A small published model with its processor, as the reference writes them; the reference's model."""
    transformers = pytest.importorskip("transformers")
    kind = {"ViT": "ViTForImageClassification", "DeiT": "DeiTForImageClassificationWithTeacher"}[name]
    labels = {number: f"class {number}" for number in range(7)}
    config = getattr(transformers, f"{name}Config")(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8,
        id2label=labels, label2id={label: number for number, label in labels.items()},
    )  # fmt: skip
    torch.manual_seed(1)
    model = getattr(transformers, kind)(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    module = pytest.importorskip(f"transformers.models.{name.lower()}.image_processing_pil_{name.lower()}")
    processor = getattr(module, f"{name}ImageProcessorPil")(**settings)
    processor.save_pretrained(folder)
    return model, processor


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ViT", {"size": {"height": 32, "width": 32}}),
        ("DeiT", {"size": {"height": 37, "width": 40}, "crop_size": {"height": 32, "width": 32}}),
    ],
)
def test_a_published_folder_answers_as_in_the_reference(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    model, processor = published(tmp_path, name, **settings)
    use = load(tmp_path, "cpu")
    pictures = [picture(), picture(1, 100, 33), picture(2, 32, 32)]
    with torch.no_grad():
        theirs = model(**processor(images=pictures, return_tensors="pt")).logits.softmax(-1)
    for found, expected in zip(use.run(pictures), theirs, strict=True):
        assert list(found.probabilities)[:2] == ["class 0", "class 1"]
        torch.testing.assert_close(torch.tensor(list(found.probabilities.values())), expected, atol=1e-5, rtol=1e-4)


def test_a_folder_that_does_not_say_how_pictures_are_prepared_is_told(tmp_path: Path) -> None:
    use = ImageClassifier(small_model("vit", "classification"), WAY)
    use.save(tmp_path)
    config = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**config, "do_sharpen": True}))
    with pytest.raises(QkvError, match="could change what becomes of a picture: do_sharpen"):
        load(tmp_path, "cpu")
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(QkvError, match="does not say how pictures become inputs"):
        load(tmp_path, "cpu")


def test_what_does_not_fit_is_told() -> None:
    with pytest.raises(QkvError, match="needs a model with a classification or distilled head"):
        ImageClassifier(small_model("vit", "states"), WAY)
    use = ImageClassifier(small_model("vit", "classification"), WAY)
    with pytest.raises(QkvError, match="put the one picture into brackets"):
        use.run("photo.jpg")  # type: ignore[arg-type]
    with pytest.raises(QkvError, match=r"There is no image file absent\.jpg"):
        use.run(["absent.jpg"])


@torch.no_grad()
def test_each_patch_is_guessed_while_it_is_hidden() -> None:
    """What a patch shows changes the guesses of its neighbours, and never its own while it is masked."""
    model = small_model("vit", "masked")
    guesser = PatchGuesser(model, WAY)
    guess = guesser.run([picture(), picture(1)], batch_images=1)
    assert [each.shape for each in guess] == [(3, 3, 3)] * 2
    assert guess[0].dtype == torch.uint8
    pixels = WAY.tensor(picture())[None]
    for first in (0, 1):
        half = every_other(1, (3, 3), first, torch.device("cpu"))
        numbers = model(pixels, hidden=half).argmax(-1)[half.masked]
        assert torch.equal(guess[0].flatten(0, 1)[half.masked[0]], middle_of(numbers, 3))
    assert guesser.run([]) == []
