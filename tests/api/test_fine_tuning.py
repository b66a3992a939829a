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
from qkv.generate.readers import MaskFiller, SentenceEncoder
from qkv.models.head_choice import HeadChoice
from qkv.train.adapt import LoRA
from qkv.train.optimizers import adamw
from qkv.train.schedules import Constant
from qkv.train.settings import TrainSettings
from qkv.weights.export import export
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
    # Not WordPiece, whose training breaks ties by chance: every run of these tests begins with the same pieces.
    tokenizer = for_reading(NewTokenizer("bpe", 300, lowercase=True).train(VERSES))
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


def test_a_sentence_model_reads_as_much_as_it_was_tuned_with(pretrained, tmp_path):
    quick = FineTuning(length=20, settings=TrainSettings(steps=1, keep=1), hold_out=0.0)
    groups = [VERSES[:2], VERSES[2:4], VERSES[4:6]]
    encoder = fine_tune_embeddings(pretrained, groups, tmp_path / "run", how=quick)
    export(tmp_path / "run", tmp_path / "published")
    for use in (encoder, load(tmp_path / "run", "cpu"), load(tmp_path / "published", "cpu")):
        assert use.limit().length == 20
        assert len(use.encodings([" ".join(VERSES)])[0]) == 20
    # What is tuned further keeps it, also where nobody says it again.
    how = FineTuning(settings=TrainSettings(steps=1, keep=1), hold_out=0.0)
    assert fine_tune_embeddings(encoder, groups, tmp_path / "further", how=how).longest == 20


def test_a_sentence_model_of_small_letters_is_tuned_on_small_letters(pretrained, tmp_path):
    tokenizer = for_reading(NewTokenizer("bpe", 300).train(VERSES))
    model = new_text_model("bert", TINY, HeadChoice("embedding", pooling="mean", unit_length=True), tokenizer, 64)
    encoder = SentenceEncoder(model, tokenizer, 32, lowercase=True)
    assert encoder.encodings(["GOD"])[0].ids == encoder.encodings(["god"])[0].ids
    seen = []

    def look(use):
        seen.append(use.lowercase)
        return {}

    how = FineTuning(settings=TrainSettings(steps=1, evaluate_every=1, keep=1), hold_out=0.0)
    fine_tune_embeddings(encoder, [VERSES[:2]] * 2, tmp_path, valid=[VERSES[:2]] * 2, how=how, evaluate=look)
    assert seen == [True]
    assert load(tmp_path, "cpu").lowercase
