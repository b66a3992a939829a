"""What a model that hears is told, read from its folder."""

import json

import pytest

from qkv.errors import QkvError
from qkv.generate.speech_tokens import read_generation, speech_tokens
from tests.generate.language_models import small_tokenizer
from tests.generate.speech import (
    DE,
    EN,
    END,
    FIRST,
    GENERATION,
    HAW,
    NO_SPEECH,
    NO_TIMES,
    PREVIOUS,
    START,
    TRANSCRIBE,
    TRANSLATE,
    VOCABULARY,
    tokenizer,
    tokens,
)  # fmt: skip


def test_tokens_are_known_by_their_names():
    found = tokens()
    assert (found.start, found.end, found.previous, found.no_speech) == (START, END, PREVIOUS, NO_SPEECH)
    assert (found.no_timestamps, found.first_time) == (NO_TIMES, FIRST)
    assert found.languages == {"en": EN, "de": DE, "haw": HAW}
    assert found.tasks == {"transcribe": TRANSCRIBE, "translate": TRANSLATE}
    assert found.alignment_heads == ((0, 1), (1, 0))


def test_an_output_begins_with_language_task_and_whether_there_are_times():
    assert tokens().opening("de", "translate", timestamps=True) == [START, DE, TRANSLATE]
    assert tokens().opening("en", "transcribe", timestamps=False) == [START, EN, TRANSCRIBE, NO_TIMES]


def test_a_model_of_english_alone_is_told_neither():
    english = tokens(is_multilingual=False)
    assert english.opening(None, "transcribe", timestamps=False) == [START, NO_TIMES]
    assert english.opening("en", "transcribe", timestamps=True) == [START]
    for language, task in (("de", "transcribe"), (None, "translate")):
        with pytest.raises(QkvError, match="English alone"):
            english.opening(language, task, timestamps=True)


def test_unknown_wishes_are_refused():
    with pytest.raises(QkvError, match="no language 'xx'"):
        tokens().opening("xx", "transcribe", timestamps=True)
    with pytest.raises(QkvError, match="no task 'sing'"):
        tokens().opening("en", "sing", timestamps=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("suppress_tokens", [VOCABULARY]),
        ("suppress_tokens", ["a"]),
        ("begin_suppress_tokens", 5),
        ("alignment_heads", [[1]]),
        ("alignment_heads", [[1, -1]]),
        ("is_multilingual", "yes"),
        ("max_initial_timestamp_index", -2),
    ],
)
def test_what_cannot_be_is_refused(key, value):
    with pytest.raises(QkvError, match=key):
        tokens(**{key: value})


def test_a_tokenizer_of_another_model_is_refused():
    with pytest.raises(QkvError, match="not one of a model that hears"):
        speech_tokens(small_tokenizer(), GENERATION, VOCABULARY)
    with pytest.raises(QkvError, match="none for times"):
        speech_tokens(tokenizer(), GENERATION, FIRST)


def test_old_folders_say_it_in_their_configuration(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"suppress_tokens": [3]}))
    assert read_generation(tmp_path) == {"suppress_tokens": [3]}
    (tmp_path / "generation_config.json").write_text(json.dumps({"suppress_tokens": [4]}))
    assert read_generation(tmp_path) == {"suppress_tokens": [4]}
