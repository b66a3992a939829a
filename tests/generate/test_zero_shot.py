"""Pictures labelled by words alone."""

import pytest
import torch

from qkv.data.reading_tokenizer import for_reading
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.zero_shot import ZeroShot
from qkv.models.catalogue import FAMILIES, build
from qkv.models.image_text_model import ImageTextModel
from tests.models.small import perturb, shrunk

TOKENIZER = for_reading(TextTokenizer.train("characters", ["a photo of a cat, dog or bird. {}"]))
LABELS = ["cat", "dog", "bird"]
TEMPLATES = ["a {}.", "photo of a {}"]


@pytest.fixture(scope="module")
def model() -> ImageTextModel:
    torch.manual_seed(0)
    sizes = shrunk(FAMILIES["clip"].published["base-32"], image=12, patch=4, positions=30, vocabulary=TOKENIZER.size)
    made: ImageTextModel = build("clip", sizes)
    perturb(made)
    return made


@torch.no_grad()
def test_probabilities_are_those_of_the_class_weights(model: ImageTextModel) -> None:
    classifier, images = ZeroShot(model, TOKENIZER, LABELS, TEMPLATES), torch.randn(5, 3, 12, 12)
    found = classifier.run(images, batch=2)
    expected = []
    for label in LABELS:
        vectors = [
            model.of_texts(torch.tensor([TOKENIZER.encodings([template.replace("{}", label)])[0].ids]))
            for template in TEMPLATES
        ]
        mean = torch.cat(vectors).mean(0)
        expected.append(mean / mean.norm())
    torch.testing.assert_close(classifier.weights, torch.stack(expected), atol=1e-5, rtol=1e-4)
    shares = model.logits(model.of_images(images), torch.stack(expected)).softmax(-1)
    for one, row in zip(found, shares, strict=True):
        assert one.label == LABELS[int(row.argmax())]
        assert one.probabilities == pytest.approx(dict(zip(LABELS, row.tolist(), strict=True)), abs=1e-5)


def test_the_model_is_given_back_as_it_was(model: ImageTextModel) -> None:
    model.train()
    ZeroShot(model, TOKENIZER, LABELS).run(torch.randn(1, 3, 12, 12))
    assert model.training
    assert model.text.training


@pytest.mark.parametrize(
    ("labels", "templates", "complaint"),
    [
        ([], TEMPLATES, "one or more"),
        (["cat", "cat"], TEMPLATES, "each a different one"),
        (LABELS, ["a photo"], "no place for a label: it should hold {}"),
        (LABELS, [], "no template"),
        ("cat", TEMPLATES, "not a single text"),
    ],
)
def test_labels_and_templates_must_make_prompts(model, labels, templates, complaint) -> None:
    with pytest.raises(QkvError) as raised:
        ZeroShot(model, TOKENIZER, labels, templates)
    assert complaint in str(raised.value)
