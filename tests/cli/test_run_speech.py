"""`qkv run` on sound files, with a small model that hears."""

import json
import wave

import pytest

from qkv.api.loading import load
from qkv.data.sound_processor import write_sound_processor
from qkv.generate.transcribe import Transcriber
from qkv.weights.export import export
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from tests.cli.command import qkv
from tests.generate.speech import END, FEATURES, GENERATION, START, noise, small_model, tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    save_published(small_model(), folder, PUBLISHED, {"eos_token_id": END, "decoder_start_token_id": START})
    tokenizer().save(folder / "tokenizer.json")
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    write_sound_processor(folder, FEATURES)
    return folder


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    file = tmp_path_factory.mktemp("sound") / "speech.wav"
    with wave.open(str(file), "wb") as stream:
        stream.setnchannels(1)
        stream.setsampwidth(2)
        stream.setframerate(16000)
        stream.writeframes((noise(1.6) * 20000).short().numpy().tobytes())
    return file


def test_it_is_loaded_for_what_it_does(folder):
    assert isinstance(load(folder, "cpu"), Transcriber)


def test_text_times_and_everything(folder, speech):
    options = ("--device", "cpu", "--language", "en")
    text = qkv("run", folder, speech, *options)
    assert text.code == 0
    segments = qkv("run", folder, speech, *options, "--times", "segments")
    assert segments.code == 0
    for line in segments.out.splitlines():
        number, start, end, _ = line.split("\t", 3)
        assert number == "1"
        assert 0 <= float(start) < float(end)
    whole = json.loads(qkv("run", folder, speech, *options, "--json").out)
    assert whole["language"] == "en"
    assert whole["text"].split() == text.out.split()
    spoken = [word["text"] for segment in whole["segments"] for word in segment["words"]]
    words = qkv("run", folder, speech, *options, "--times", "words")
    assert [line.split("\t", 3)[3].split() for line in words.out.splitlines()] == [word.split() for word in spoken]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--times", "letters"), "segments or of words"),
        (("--language", "xx"), "no language 'xx'"),
        (("--temperature", "1"), "--temperature is for translators and language models"),
    ],
)
def test_what_does_not_fit_is_refused(folder, speech, options, complaint):
    outcome = qkv("run", folder, speech, "--device", "cpu", *options)
    assert outcome.code == 2
    assert complaint in outcome.complaint


def test_an_exported_folder_hears_as_before(folder, speech, tmp_path):
    out = export(folder, tmp_path / "out")
    assert Transcriber.load(out).run([speech])[0].text == Transcriber.load(folder).run([speech])[0].text
    assert load_model(out).sizes == load_model(folder).sizes


def test_looking_at_speech_draws_it_and_a_text_is_no_file(folder, speech, tmp_path):
    outcome = qkv("look", folder, speech, "--png", tmp_path / "look.png", "--device", "cpu")
    assert outcome.code == 0, outcome
    assert (tmp_path / "look.png").exists()
    refused = qkv("look", folder, "hello", "--html", tmp_path / "look.html", "--device", "cpu")
    assert refused.code == 2
    assert "no sound file hello" in refused.complaint
