"""Fine-tuning, whole, on tasks so easy that a tiny model must learn them."""

from functools import partial

import pytest
import torch

from qkv.api.choices import NewTokenizer
from qkv.api.fine_tuning import (
    FineTuning,
    fine_tune_answerer,
    fine_tune_classifier,
    fine_tune_embeddings,
    fine_tune_tagger,
)
from qkv.api.loading import load
from qkv.api.texts import new_text_model
from qkv.api.training import read_result
from qkv.data.labelled import LabelledTexts
from qkv.data.plan import RowCount
from qkv.data.questions import Answer, Question
from qkv.data.reading_tokenizer import for_reading
from qkv.data.tagged import TaggedWords
from qkv.errors import QkvError
from qkv.generate.readers import MaskFiller
from qkv.models.head_choice import HeadChoice
from qkv.train.adapt import LoRA
from qkv.train.optimizers import adamw
from qkv.train.schedules import Constant
from qkv.train.settings import TrainSettings
from tests.api.corpus import TINY, VERSES

SETTINGS = TrainSettings(steps=60, evaluate_every=60, save_every=60, keep=1, log_every=30)
HOW = FineTuning(
    length=48,
    batching=RowCount(8),
    settings=SETTINGS,
    optimizer=partial(adamw, learning_rate=3e-3),
    schedule=Constant(),
    hold_out=0.0,
)


@pytest.fixture(scope="module")
def pretrained() -> MaskFiller:
    torch.manual_seed(0)
    tokenizer = for_reading(NewTokenizer("wordpiece", 200, lowercase=True).train(VERSES))
    return MaskFiller(new_text_model("bert", {**TINY, "dropout": 0.0}, HeadChoice("masked"), tokenizer, 64), tokenizer)


def test_a_text_is_labelled(pretrained, tmp_path):
    labels = ["light" if "light" in verse.lower() else "other" for verse in VERSES]
    data = LabelledTexts(VERSES, None, labels, ("light", "other"))
    classifier = fine_tune_classifier(pretrained, data, tmp_path, valid=data, how=HOW)
    assert [found.label for found in classifier.run(VERSES)] == labels
    assert read_result(tmp_path).figures["accuracy"] == 1
    assert pretrained.model.head_choice.kind == "masked"  # the model that was given is as it was


def test_pairs_of_texts_are_labelled(pretrained, tmp_path):
    firsts = VERSES * 2
    seconds = VERSES + VERSES[1:] + VERSES[:1]
    labels = ["same"] * len(VERSES) + ["other"] * len(VERSES)
    data = LabelledTexts(firsts, seconds, labels, ("other", "same"))
    how = FineTuning(**{**vars(HOW), "settings": TrainSettings(steps=20, evaluate_every=20, keep=1)})
    classifier = fine_tune_classifier(pretrained, data, tmp_path, valid=data, how=how)
    assert len(classifier.run(firsts, seconds)) == len(firsts)
    other = LabelledTexts(VERSES, None, labels[: len(VERSES)], ("same", "else"))
    with pytest.raises(QkvError, match="are not those of the training texts"):
        fine_tune_classifier(pretrained, data, tmp_path / "other", valid=other, how=HOW)


def test_words_are_tagged(pretrained, tmp_path):
    words = [verse.rstrip(".").split() for verse in VERSES]
    tags = [["name" if word[0].isupper() and word != "And" else "other" for word in row] for row in words]
    data = TaggedWords(words, tags, ("name", "other"))
    tagger = fine_tune_tagger(pretrained, data, tmp_path, valid=data, how=HOW)
    assert read_result(tmp_path).figures["accuracy"] > 0.95
    (found,) = tagger.run(["And God said"])
    assert [word.word for word in found] == ["And", "God", "said"]


def test_answers_are_found(pretrained, tmp_path):
    questions = []
    for verse in VERSES:
        for word in ("light",):
            answers = (Answer(word, verse.index(word)),) if word in verse else ()
            questions.append(Question(f"{word} where?", verse, answers))
    how = FineTuning(**{**vars(HOW), "settings": TrainSettings(steps=200, evaluate_every=200, keep=1)})
    answerer = fine_tune_answerer(pretrained, questions, tmp_path, valid=questions, how=how)
    found = answerer.run([each.question for each in questions], [each.context for each in questions])
    right = [
        answer.text.lower().startswith(question.answers[0].text.lower()) if question.answers else not answer.text
        for question, answer in zip(questions, found, strict=True)
    ]
    assert sum(right) / len(right) > 0.7


def test_like_texts_get_like_vectors(pretrained, tmp_path):
    groups = [(verse, verse.upper().replace(",", "")[: len(verse) * 3 // 4]) for verse in VERSES]
    encoder = fine_tune_embeddings(pretrained, groups, tmp_path, how=HOW)
    similar = encoder.similarities([first for first, _ in groups], [second for _, second in groups])
    assert (similar.argmax(1) == torch.arange(len(groups))).float().mean() > 0.8


def test_texts_longer_than_the_model_are_refused(pretrained, tmp_path):
    data = LabelledTexts(VERSES, None, ["a", "b"] * 5, ("a", "b"))
    how = FineTuning(**{**vars(HOW), "length": 65})
    with pytest.raises(QkvError, match="longer than the 64 that the model reads"):
        fine_tune_classifier(pretrained, data, tmp_path, how=how)


def test_updates_of_low_rank_are_trained_and_folded_in(pretrained, tmp_path):
    labels = ["light" if "light" in verse.lower() else "other" for verse in VERSES]
    data = LabelledTexts(VERSES, None, labels, ("light", "other"))
    longer = {"settings": TrainSettings(steps=150), "optimizer": partial(adamw, learning_rate=1e-2)}
    how = FineTuning(**{**vars(HOW), **longer, "lora": LoRA(rank=4, targets=("query", "value", "inner", "outer"))})
    classifier = fine_tune_classifier(pretrained, data, tmp_path, valid=data, how=how)
    assert [found.label for found in classifier.run(VERSES)] == labels
    again = load(tmp_path, device="cpu")
    for name, tensor in classifier.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor), name
    before = pretrained.model.state_dict()
    kept = "stack.blocks.0.attention.mixer.out.weight"  # that no update was asked for
    assert torch.equal(classifier.model.state_dict()[kept], before[kept])


def test_frozen_layers_keep_their_weights(pretrained, tmp_path):
    data = LabelledTexts(VERSES, None, ["a", "b"] * 5, ("a", "b"))
    how = FineTuning(**{**vars(HOW), "frozen_layers": 1, "settings": TrainSettings(steps=3)})
    classifier = fine_tune_classifier(pretrained, data, tmp_path, how=how)
    before, after = pretrained.model.state_dict(), classifier.model.state_dict()
    for name, tensor in before.items():
        if name.startswith(("embed.", "stack.blocks.0.")):
            assert torch.equal(after[name], tensor), name
    name = "stack.blocks.1.feed_forward.mixer.inner.weight"
    assert not torch.equal(after[name], before[name])
