"""Data made by a teacher."""

import pytest

from qkv.api.choices import NewTokenizer
from qkv.api.language import train_language_model
from qkv.api.teaching import labels_of, pairs_of, texts_of
from qkv.api.texts import new_text_model
from qkv.api.training import train_text_to_text
from qkv.data.plan import RowCount
from qkv.data.reading_tokenizer import for_reading
from qkv.generate.language import Options
from qkv.generate.readers import Classifier
from qkv.generate.strategy import Sampling
from qkv.models.head_choice import HeadChoice
from qkv.train.settings import TrainSettings
from tests.api.corpus import DOCUMENTS, TINY, VERSES

QUICK = TrainSettings(steps=2, keep=1)


def test_a_student_gets_what_its_teacher_writes(tmp_path):
    pairs = [("cat", "K AE T"), ("dog", "D AO G"), ("act", "AE K T"), ("god", "G AA D")]
    sizes = {"width": 16, "hidden": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    teacher = train_text_to_text(
        pairs, tmp_path, tokenizer=NewTokenizer("characters"), sizes=sizes, settings=QUICK, valid=pairs
    )
    sources = ["cat", "dog", "tag"]
    made = pairs_of(teacher, sources, beams=1)
    written = [output.text for output in teacher.run(sources, beams=1)]
    assert made == [(source, text) for source, text in zip(sources, written, strict=True) if text.strip()]


def test_texts_get_the_labels_of_which_the_teacher_is_sure():
    tokenizer = for_reading(NewTokenizer("bpe", 300).train(VERSES))
    model = new_text_model("bert", TINY, HeadChoice("classification", labels=("a", "b")), tokenizer, 64)
    teacher = Classifier(model, tokenizer)
    answers = teacher.run(VERSES)
    everything = labels_of(teacher, VERSES)
    assert everything.texts == VERSES
    assert everything.labels == [answer.label for answer in answers]
    assert everything.names == ("a", "b")
    middle = sorted(answer.probability for answer in answers)[5]
    sure = labels_of(teacher, VERSES, sure=middle)
    assert sure.texts == [verse for verse, answer in zip(VERSES, answers, strict=True) if answer.probability >= middle]


@pytest.mark.parametrize("samples", [1, 3])
def test_a_language_model_goes_on_with_prompts(tmp_path, samples):
    teacher = train_language_model(
        DOCUMENTS,
        tmp_path,
        sizes=TINY,
        length=48,
        tokenizer=NewTokenizer("bpe", 300),
        batching=RowCount(4),
        settings=QUICK,
    )
    options = Options(strategy=Sampling(samples=samples, seed=1), most=5)
    made = texts_of(teacher, ["And God", "In the"], options)
    assert len(made) == 2 * samples
    assert all(text.startswith("And God") for text in made[:samples])
    assert made == texts_of(teacher, ["And God", "In the"], options)
