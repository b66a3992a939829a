"""Uses of text models beside writing: each against the model itself, one row at a time."""

import pytest
import torch

from qkv.api.loading import load
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.readers import Answerer, Classifier, MaskFiller, SentenceEncoder, StateReader, Tagger
from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from tests.models.small import perturb

TEXTS = ["the cat sat on the mat", "a dog", "the dog and the cat ran after the mat all day", "mat"]


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer.train("bpe", TEXTS * 3, vocabulary=300)


def reader(kind, use, tokenizer, **choice):
    sizes = GPT2Sizes(vocabulary=tokenizer.size, positions=32, width=16, hidden=32, heads=2, layers=2)
    torch.manual_seed(3)
    model = build("gpt2", sizes, HeadChoice(kind, **choice))
    perturb(model)
    return use(model, tokenizer)


def alone(use, text):
    """The model on one text and nothing else."""
    use.model.eval()
    with torch.no_grad():
        return use.model(torch.tensor([use.tokenizer.encode([text])[0]]))[0]


def test_a_batch_of_texts_is_labelled_as_each_alone(tokenizer):
    use = reader("classification", Classifier, tokenizer, labels=("bad", "good", "neither"))
    for text, found in zip(TEXTS, use.run(TEXTS, batch_tokens=16), strict=True):
        shares = alone(use, text).softmax(-1)
        assert found.label == ("bad", "good", "neither")[int(shares.argmax())]
        assert found.probability == pytest.approx(float(shares.max()), abs=1e-5)
        assert sum(found.probabilities.values()) == pytest.approx(1, abs=1e-5)


def test_words_are_tagged_by_their_first_piece(tokenizer):
    use = reader("tokens", Tagger, tokenizer, labels=("noun", "other"))
    text = "the cat unseen"
    (words,) = use.run([text])
    encoding = tokenizer.encodings([text])[0]
    firsts = {word: slot for slot, word in reversed(list(enumerate(encoding.words)))}
    logits = alone(use, text)
    assert [text[word.start : word.end].strip() for word in words] == ["the", "cat", "unseen"]
    assert [word.label for word in words] == [
        ("noun", "other")[int(logits[firsts[number]].argmax())] for number in range(3)
    ]


def test_vectors_are_those_of_each_text_alone(tokenizer):
    use = reader("embedding", SentenceEncoder, tokenizer, pooling="mean", unit_length=True)
    vectors = use.run(TEXTS, batch_tokens=16)
    for text, vector in zip(TEXTS, vectors, strict=True):
        torch.testing.assert_close(vector, alone(use, text), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(len(TEXTS)))
    torch.testing.assert_close(use.similarities(TEXTS, TEXTS).diagonal(), torch.ones(len(TEXTS)))
    assert use.run([]).shape == (0, 0)
    assert not vectors.is_inference()  # others may learn from them


def test_texts_are_cut_and_read_some_at_a_time(tokenizer, monkeypatch):
    """In whatever parts and batches, in line or in rows: the answer is that of the text, in its place."""
    encoder = reader("embedding", SentenceEncoder, tokenizer, pooling="mean")
    texts = [" ".join(["the", "cat", "ran"] * (1 + number * 5 % 7)) for number in range(11)]
    expected = torch.stack([encoder.run([text])[0] for text in texts])
    assert encoder.model.in_line
    for at_once, most in ((60, 8), (1000, 8), (100, None)):
        monkeypatch.setattr("qkv.generate.reader.AT_ONCE", at_once)
        torch.testing.assert_close(encoder.run(texts, batch_tokens=most), expected)
    monkeypatch.setattr(type(encoder.model), "in_line", False)
    torch.testing.assert_close(encoder.run(texts, batch_tokens=40), expected)


def test_states_have_a_row_a_token(tokenizer):
    use = reader("states", StateReader, tokenizer)
    for text, states in zip(TEXTS, use.run(TEXTS), strict=True):
        torch.testing.assert_close(states, alone(use, text), atol=1e-5, rtol=1e-4)


def test_an_answer_is_a_stretch_of_its_context(tokenizer):
    use = reader("spans", Answerer, tokenizer)
    context = " ".join(TEXTS * 4)
    (found,) = use.run(["the cat"], [context], threshold=1e9)
    assert found.text
    assert found.text in context


def test_a_head_of_another_kind_is_refused(tokenizer):
    with pytest.raises(QkvError, match="needs a model with a classification head, but it has a states head"):
        reader("states", Classifier, tokenizer)


def test_a_hidden_word_needs_a_tokenizer_that_can_hide(tokenizer):
    sizes = GPT2Sizes(vocabulary=tokenizer.size, positions=32, width=16, hidden=32, heads=2, layers=1)
    with pytest.raises(QkvError, match="needs a model with a masked or pretraining head"):
        MaskFiller(build("gpt2", sizes), tokenizer)


def test_a_single_text_is_no_list(tokenizer):
    with pytest.raises(QkvError, match="put the one text into brackets"):
        reader("states", StateReader, tokenizer).run("text")


def test_dropout_is_off_and_the_model_stays_as_it_was(tokenizer):
    use = reader("embedding", SentenceEncoder, tokenizer, pooling="last")
    use.model.train()
    torch.testing.assert_close(use.run(TEXTS), use.run(TEXTS))
    assert use.model.training


def test_a_publisher_may_read_fewer_tokens_of_a_text_and_in_small_letters(tokenizer, tmp_path):
    whole = reader("embedding", SentenceEncoder, tokenizer, pooling="mean")
    use = SentenceEncoder(whole.model, tokenizer, longest=4, lowercase=True)
    begun = tokenizer.decode(tokenizer.encode([TEXTS[2]])[0][:4])
    assert len(tokenizer.encode([begun])[0]) == 4
    assert torch.equal(use.run([TEXTS[2].upper()]), whole.run([begun]))
    use.save(tmp_path)
    again = load(tmp_path, "cpu")
    assert torch.equal(again.run([TEXTS[2].upper()]), use.run([TEXTS[2].upper()]))
    assert SentenceEncoder(whole.model, tokenizer, longest=99).limit().length == 32  # never more than the model reads
