"""A student learns a task from its teacher."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from qkv.api.choices import NewTokenizer
from qkv.api.distilling import Distillation, student_of
from qkv.api.fine_tuning import FineTuning, fine_tune_classifier, fine_tune_embeddings
from qkv.api.texts import new_text_model
from qkv.api.training import read_result
from qkv.data.labelled import LabelledTexts
from qkv.data.plan import RowCount
from qkv.data.reading_tokenizer import for_reading
from qkv.errors import QkvError
from qkv.generate.readers import Classifier, MaskFiller
from qkv.models.head_choice import HeadChoice
from qkv.train.optimizers import adamw
from qkv.train.schedules import Constant
from qkv.train.settings import TrainSettings
from tests.api.corpus import TINY, VERSES

NAMES = ("light", "other")
SIZES = {**TINY, "layers": 3, "dropout": 0.0}
LABELS = ["light" if "light" in verse.lower() else "other" for verse in VERSES]
DATA = LabelledTexts(VERSES, None, LABELS, NAMES)
HOW = FineTuning(
    length=64,
    batching=RowCount(8),
    settings=TrainSettings(steps=40, evaluate_every=40, save_every=40, keep=1),
    optimizer=partial(adamw, learning_rate=3e-3),
    schedule=Constant(),
    hold_out=0.0,
)
TOKENIZER = for_reading(NewTokenizer("bpe", 300).train(VERSES))


def classifier(seed: int = 0, **changes: object) -> Classifier:
    torch.manual_seed(seed)
    head = HeadChoice("classification", labels=NAMES)
    return Classifier(new_text_model("bert", {**SIZES, **changes}, head, TOKENIZER, 64), TOKENIZER)


def test_a_student_begins_with_layers_of_its_teacher():
    teacher = classifier()
    student = student_of(teacher, 2)
    old, new = teacher.model.state_dict(), student.model.state_dict()
    assert all(torch.equal(tensor, old[name.replace("blocks.1.", "blocks.2.")]) for name, tensor in new.items())
    assert not any(tensor.data_ptr() == old[name].data_ptr() for name, tensor in new.items())
    assert student.model.sizes == replace(teacher.model.sizes, layers=2)
    with pytest.raises(QkvError, match="4 layers cannot take them from a teacher of 3"):
        student_of(teacher, 4)


def test_a_student_comes_to_say_what_its_teacher_says(tmp_path):
    """The teacher knows nothing of the labels: only what it says can be learned, with none of the loss from labels."""
    teacher = classifier(1)
    head = teacher.model.head.out
    logits = torch.stack(teacher.answers(TOKENIZER.encodings(VERSES)))
    with torch.no_grad():  # decided, about as often each way
        head.bias.sub_(logits.mean(0))
        scale = 2 / logits.std(0)
        head.weight.mul_(scale[:, None])
        head.bias.mul_(scale)
    said = teacher.run(VERSES)
    assert {found.label for found in said} == set(NAMES)
    start = classifier(2, layers=1)
    settings = TrainSettings(steps=200, evaluate_every=200, save_every=200, keep=1)
    how = replace(HOW, settings=settings, distil=Distillation(teacher, soft=1.0, temperature=1.0))
    student = fine_tune_classifier(start, DATA, tmp_path, valid=DATA, how=how)
    tried = student.run(VERSES)
    shares = [found.probabilities["light"] for found in tried]
    torch.testing.assert_close(shares, [found.probabilities["light"] for found in said], atol=0.25, rtol=0)
    figures = read_result(tmp_path).figures
    right = sum(found.label == label for found, label in zip(tried, LABELS, strict=True)) / len(LABELS)
    assert figures["accuracy"] == pytest.approx(right)
    assert figures["loss"] == pytest.approx(figures["soft"])


def test_streams_and_attention_come_nearer(tmp_path):
    teacher = classifier(1)
    with torch.no_grad():
        for block in teacher.model.stack.blocks:  # attention that is not the same for all tokens
            block.attention.mixer.project.weight.mul_(20)
    how = replace(HOW, distil=Distillation(teacher, soft=0.0, states=1.0, attention=1.0))
    figures = []
    for steps in (1, 40):
        settings = TrainSettings(steps=steps, evaluate_every=steps, save_every=steps, keep=1)
        folder = tmp_path / str(steps)
        fine_tune_classifier(classifier(2, layers=2), DATA, folder, valid=DATA, how=replace(how, settings=settings))
        figures.append(read_result(folder).figures)
    assert figures[1]["match_1"] < 0.7 * figures[0]["match_1"]
    assert figures[1]["match_2"] < figures[0]["match_2"]


def test_a_teacher_that_would_be_misread_is_refused(tmp_path):
    teacher = classifier()
    other = LabelledTexts(VERSES, None, ["dark" if label == "other" else label for label in LABELS], ("dark", "light"))

    def refused(said, start, data=DATA, **distil):
        how = replace(HOW, distil=Distillation(teacher, **distil))
        with pytest.raises(QkvError, match=said):
            fine_tune_classifier(start, data, tmp_path / "none", how=how)

    refused("its own teacher", teacher)
    refused("to tell dark, light, and its teacher tells light, other", classifier(1), other)
    refused("equally wide: the student's is 8 wide", classifier(1, width=8), states=1.0)
    refused("as many heads: the student has 4", classifier(1, heads=4), attention=1.0)
    refused("between 0 and 1", classifier(1), soft=1.5)
    refused("temperature must be above 0", classifier(1), temperature=0)
    tokenizer = for_reading(NewTokenizer("bpe", 280).train(VERSES))
    model = new_text_model("bert", SIZES, HeadChoice("masked"), tokenizer, 64)
    refused("other tokens than its teacher", MaskFiller(model, tokenizer))
    with pytest.raises(QkvError, match="ContrastiveLoss asks for none"):
        fine_tune_embeddings(
            classifier(1), [VERSES[:2]] * 3, tmp_path / "none", how=replace(HOW, distil=Distillation(teacher))
        )
