"""Whisper tiny.en as it was published, on real speech: what it writes is what the reference library writes."""

import json
import re
from pathlib import Path

import pytest
import torch

from qkv.data.sound import read_sound
from qkv.generate.hearing import Hearing
from qkv.generate.transcribe import Transcriber
from qkv.train.metrics import edit_distance
from tests.generate.speech import OfFrames

ROOT = Path(__file__).parents[2]
MODEL, SPEECH = ROOT / "checkpoints" / "whisper-tiny.en", ROOT / "corpora" / "librivox"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MODEL.exists() or not SPEECH.exists(), reason="needs `make checkpoints` and `make corpora`"),
]
END, START, NO_TIMES = 50256, 50257, 50362
ONCE = Hearing(temperatures=(0.0,), most_silence=None)


@pytest.fixture(scope="module")
def ours():
    return Transcriber.load(MODEL)


@pytest.fixture(scope="module")
def reference():
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration.from_pretrained(MODEL, dtype=torch.float32).eval()
    return model, WhisperFeatureExtractor.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def rows():
    return [json.loads(line) for line in (SPEECH / "speech.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def waves(rows):
    return [read_sound(SPEECH / row["file"], 16000).samples for row in rows]


@pytest.mark.parametrize("timestamps", [False, True])
@torch.no_grad()
def test_every_token_is_the_reference_s(ours, reference, waves, timestamps):
    model, extract = reference
    frames = extract([wave.numpy() for wave in waves], sampling_rate=16000, return_tensors="pt").input_features
    expected = model.generate(frames, return_timestamps=timestamps)
    found = ours.run(waves, Hearing(timestamps=timestamps))
    for theirs, transcript in zip(expected.tolist(), found, strict=True):
        written = [token for segment in transcript.segments for token in segment.ids]
        assert written == [token for token in theirs if token not in (END, START, NO_TIMES)]


@pytest.mark.parametrize("remembers", [False, True])
@torch.no_grad()
def test_a_long_sound_is_divided_as_the_reference_does(ours, reference, waves, remembers):
    """Both given the frames of the whole at once, as the reference makes them."""
    model, extract = reference
    pause = torch.zeros(4000)
    long = torch.cat([part for wave in waves * 2 for part in (wave, pause)])  # 52 seconds
    given = extract(
        long.numpy(), sampling_rate=16000, return_tensors="pt", truncation=False, padding="longest",
        return_attention_mask=True,
    )  # fmt: skip
    expected = model.generate(
        given.input_features, attention_mask=given.attention_mask, return_timestamps=True, return_segments=True,
        condition_on_prev_tokens=remembers, temperature=0.0,
    )["segments"][0]  # fmt: skip
    whole = OfFrames(ours.model, ours.tokenizer, ours.features, ours.tokens)
    whole.whole = given.input_features[0]
    sound = torch.zeros(given.input_features.shape[2] * 160)
    found = whole.run([sound], Hearing(temperatures=(0.0,), most_silence=None, remembers=remembers))[0].segments
    assert len(found) == len(expected) >= 10
    for segment, theirs in zip(found, expected, strict=True):
        assert segment.start == pytest.approx(float(theirs["start"]), abs=1e-3)
        assert segment.end == pytest.approx(float(theirs["end"]), abs=1e-3)
        words = [token for token in theirs["tokens"].tolist() if token < END]
        assert [token for token in segment.ids if token < END] == words


@torch.no_grad()
def test_words_begin_when_the_reference_says(ours, reference, waves):
    """The reference looks at the attention of the steps themselves, ours at one pass over the whole: a slot or two.

    And it says of each token when the one after it begins, since it counts from the step that follows.
    """
    model, extract = reference
    given = extract(waves[0].numpy(), sampling_rate=16000, return_tensors="pt", return_attention_mask=True)
    said = model.generate(
        given.input_features, attention_mask=given.attention_mask, return_token_timestamps=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    tokens, times = said["sequences"][0].tolist(), said["token_timestamps"][0].tolist()
    starts = [
        time
        for token, time in zip(tokens[1:], times, strict=False)
        if token < END and ours.tokenizer.decode([token], whole=True).startswith(" ")
    ]
    words = ours.run(waves[:1], Hearing(words=True, timestamps=False))[0].words
    # The reference has no step for the first word, and so the beginnings of the two paths differ.
    assert [word.start for word in words][3:] == pytest.approx(starts[3:], abs=0.061)
    assert len(words) == len(starts)
    assert words[-1].end <= len(waves[0]) / 16000


def test_few_words_are_wrong(ours, rows, waves):
    wrong = total = 0
    for transcript, row in zip(ours.run(waves), rows, strict=True):
        said = plain(row["text"])
        wrong += edit_distance(plain(transcript.text), said)
        total += len(said)

    assert wrong / total < 0.1


def plain(text):
    """The words alone, written out as in the transcription."""
    return re.sub(r"[^a-z ]", "", text.lower().replace("mr.", "mister").replace("-", " ")).split()


def test_files_and_windows_give_what_samples_give(ours, rows, waves):
    files = [SPEECH / row["file"] for row in rows[:2]]
    assert [each.text for each in ours.run(files, ONCE)] == [each.text for each in ours.run(waves[:2], ONCE)]


def test_silence_is_told_from_speech(ours, waves):
    everything = Hearing(most_silence=None, temperatures=(0.0,))
    quiet, spoken = ours.run([torch.zeros(16000 * 5), waves[0]], everything)
    assert spoken.segments[0].heard.silence < 0.1
    assert quiet.segments[0].heard.silence > 0.5


def test_the_published_folder_is_certified():
    from qkv.weights.certify import certify

    report = certify(MODEL, longest=9, rows=(1,), dtypes=("float32",))
    assert report.passed, [each for each in report.findings if not each.passed]
