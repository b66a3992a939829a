"""What no model of text can read is refused in one sentence, whatever the model is for."""

import pytest

from qkv.api.loading import load
from qkv.errors import QkvError
from tests.cli.command import train, write_words
from tests.cli.text_models import HEADS, save_reader, save_writer

BAD = ["text", [3], [None], [b"bytes"], [["a"]], 3, None, ["text", 3]]


@pytest.fixture(scope="module", params=[*HEADS, "writer", "translator"])
def use(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    if request.param == "translator":
        train(write_words(folder / "words.tsv"), folder / "model")
        return load(folder / "model", "cpu")
    if request.param == "writer":
        return load(save_writer(folder), "cpu")
    return load(save_reader(folder, request.param), "cpu")


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_what_is_no_list_of_texts_is_refused(use, bad):
    beside = [["a text"]] if type(use).__name__ == "Answerer" else []
    with pytest.raises(QkvError, match=r"Give a list of|Only text|A prompt is"):
        use.run(bad, *beside)


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_a_tokenizer_takes_lists_of_texts(use, bad):
    tokenizer = getattr(use, "tokenizer", None) or use.source_tokenizer
    for encode in (tokenizer.encode, tokenizer.encodings):
        with pytest.raises(QkvError, match=r"Give a list of texts|Only text"):
            encode(bad)
    with pytest.raises(QkvError, match=r"Give a list of texts|Only text"):
        tokenizer.encode_pairs(["a"], bad)
    with pytest.raises(QkvError, match=r"Give a list of words|Only text"):
        tokenizer.encode_words([bad])
