"""Whole sounds, window after window: beside the reference library on small models, and what must hold of any."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import GenerationConfig, WhisperForConditionalGeneration

from qkv.data.sound import Sound
from qkv.errors import QkvError
from qkv.generate.hearing import Heard, Hearing, compression
from qkv.generate.transcribe import Transcriber, _Ahead
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from tests.generate.speech import (
    DE,
    EN,
    END,
    FEATURES,
    FIRST,
    GENERATION,
    HAW,
    NO_TIMES,
    PREVIOUS,
    SIZES,
    START,
    TRANSCRIBE,
    TRANSLATE,
    VOCABULARY,
    OfFrames,
    noise,
    small_model,
    tokenizer,
    tokens,
    transcriber,
)  # fmt: skip

ONCE = Hearing(language="en", temperatures=(0.0,), most_silence=None, remembers=False)
HALF = SIZES.target_positions // 2


@pytest.fixture(scope="module", params=[0, 1, 2, 3])
def pair(request, tmp_path_factory):
    """The reference and ours, on the same small model."""
    model = small_model(request.param, sharp=1.0)
    with torch.no_grad():  # an end now and then
        model.target.tokens.weight[END] *= 1.5
        model.target.tokens.weight[FIRST:] *= 1.3
    folder = tmp_path_factory.mktemp("whisper")
    save_published(
        model, folder, PUBLISHED, {"pad_token_id": END, "eos_token_id": END, "decoder_start_token_id": START}
    )
    reference = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    reference.generation_config = GenerationConfig(
        **GENERATION, eos_token_id=END, pad_token_id=END, bos_token_id=END, decoder_start_token_id=START,
        no_timestamps_token_id=NO_TIMES, prev_sot_token_id=PREVIOUS, return_timestamps=False,
        lang_to_id={"<|en|>": EN, "<|de|>": DE, "<|haw|>": HAW},
        task_to_id={"transcribe": TRANSCRIBE, "translate": TRANSLATE},
    )  # fmt: skip
    return reference, OfFrames(model, tokenizer(), FEATURES, tokens())


@pytest.mark.parametrize("task", ["transcribe", "translate"])
@torch.no_grad()
def test_one_window_is_written_as_the_reference_writes_it(pair, task):
    reference, ours = pair
    ours.whole = torch.randn(8, 100)
    expected = reference.generate(
        ours.whole[None], language="de", task=task, return_timestamps=True, max_new_tokens=HALF, return_segments=True
    )
    found = ours.run([torch.zeros(16000)], replace(ONCE, language="de", task=task))[0]
    check_segments(found, expected["segments"][0])


@torch.no_grad()
def test_text_without_times_is_the_reference_s(pair):
    """Both would write times all the same where a model likes to, so they are suppressed."""
    reference, ours = pair
    ours.whole = torch.randn(8, 100)
    without = [*GENERATION["suppress_tokens"], *range(FIRST, VOCABULARY)]
    expected = reference.generate(ours.whole[None], language="en", max_new_tokens=HALF, suppress_tokens=without)
    silent = OfFrames(ours.model, ours.tokenizer, FEATURES, tokens(suppress_tokens=without))
    silent.whole = ours.whole
    (segment,) = silent.run([torch.zeros(16000)], replace(ONCE, timestamps=False))[0].segments
    assert list(segment.ids) == [token for token in expected[0].tolist() if token < END]
    assert (segment.start, segment.end) == (0, 1)


@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_a_long_sound_is_written_as_the_reference_writes_it(pair, beams):
    reference, ours = pair
    ours.whole = torch.randn(8, 270)
    expected = reference.generate(
        ours.whole[None], attention_mask=torch.ones(1, 270, dtype=torch.long), language="en", task="transcribe",
        return_timestamps=True, return_segments=True, max_new_tokens=HALF, num_beams=beams,
    )  # fmt: skip
    found = ours.run([torch.zeros(270 * 160)], replace(ONCE, beams=beams))[0]
    check_segments(found, expected["segments"][0])


def check_segments(found, segments):
    """Ours leaves out what has no text or no length; theirs keeps the time that follows its last pair of times."""
    spoken = []
    for each in segments:
        ids = [token for token in each["tokens"].tolist() if token != END]
        text = tokenizer().decode([token for token in ids if token < END], whole=True).strip()
        if text and each["end"] > each["start"]:
            spoken.append((round(float(each["start"]), 2), round(float(each["end"]), 2), ids))
    assert len(spoken) == len(found.segments) > 0
    for (start, end, ids), segment in zip(spoken, found.segments, strict=True):
        assert (round(segment.start, 2), round(segment.end, 2)) == (start, end)
        assert list(segment.ids) == ids[: len(segment.ids)]
        assert len(ids) - len(segment.ids) in (0, 1)


@torch.no_grad()
def test_the_language_is_the_reference_s(pair):
    reference, ours = pair
    ours.whole = torch.randn(8, 100)
    shares = ours.languages(torch.zeros(16000))
    assert sum(shares.values()) == pytest.approx(1)
    expected = reference.detect_language(input_features=ours.whole[None], generation_config=reference.generation_config)
    assert tokens().languages[next(iter(shares))] == int(expected[0])


def test_a_sound_is_written_the_same_in_any_company():
    ours, hearing = transcriber(), replace(ONCE, remembers=True)
    sounds = [noise(2.3, 1), noise(0.4, 2), noise(1.0, 3)]
    together = ours.run(sounds, hearing)
    for sound, expected in zip(sounds, together, strict=True):
        assert ours.run([sound], hearing)[0].text == expected.text
    assert [each.text for each in ours.run(sounds, hearing, rows=1)] == [each.text for each in together]
    streamed = list(ours.stream(sounds[0], hearing))
    assert [segment.ids for segment in streamed] == [segment.ids for segment in together[0].segments]


def test_times_rise_and_stay_within_the_sound():
    for segment in transcriber(3).run([noise(3.7)], replace(ONCE, words=True))[0].segments:
        assert 0 <= segment.start < segment.end <= 3.7 + 1  # a window may be heard to its end
        assert [word.start for word in segment.words] == sorted(word.start for word in segment.words)
        assert "".join(word.text for word in segment.words) == segment.text.replace(" ", "")
        assert all(0 <= word.probability <= 1 for word in segment.words)


def test_what_fails_is_heard_again_and_the_rest_is_not():
    """Outputs of a random model are improbable: with a strict bound all temperatures are tried, else one."""
    sound = [noise(1.0)]
    strict = Hearing(language="en", least_log_probability=-1e-6, most_silence=None, temperatures=(0.0, 0.5, 1.0))
    loose = replace(strict, least_log_probability=-1e6, most_compression=None)
    ours = transcriber()
    assert {segment.heard.temperature for segment in ours.run(sound, strict)[0].segments} == {1.0}
    assert {segment.heard.temperature for segment in ours.run(sound, loose)[0].segments} == {0.0}
    assert ours.run(sound, strict)[0].text == ours.run(sound, strict)[0].text
    others = {ours.run(sound, replace(strict, seed=seed))[0].text for seed in range(4)}
    assert len(others) > 1


def test_the_likeliest_of_several_draws_is_taken():
    drawn = Hearing(language="en", temperatures=(1.0,), least_log_probability=None, most_compression=None)
    ours, sound = transcriber(), [noise(0.9)]
    one, five = (
        ours.run(sound, replace(drawn, samples=count, most_silence=None))[0].segments[0].heard.mean_log_probability
        for count in (1, 5)
    )
    assert five >= one


def test_silence_is_passed_over():
    heard = Heard([1], "a", mean_log_probability=-2.0, silence=0.7, compression=1.0, temperature=0.0)
    assert heard.silent(Hearing())
    assert not heard.failed(Hearing())
    assert not replace(heard, mean_log_probability=-0.5).silent(Hearing())
    assert replace(heard, silence=0.5).failed(Hearing())
    assert replace(heard, mean_log_probability=-0.5, compression=2.5, silence=0.1).failed(Hearing())
    ours = transcriber()
    assert (
        ours.run([noise(2.0)], Hearing(language="en", most_silence=-1.0, least_log_probability=0.0))[0].segments == ()
    )


def test_text_that_repeats_itself_packs_tight():
    assert compression("") == 0.0
    assert compression("and then " * 30) > 2.4 > compression("He was not an ill-disposed young man.")


def test_what_was_said_before_changes_what_is_heard():
    ours, sound = transcriber(1), [noise(2.5, 4)]
    without, remembering = ours.run(sound, ONCE)[0].segments, ours.run(sound, replace(ONCE, remembers=True))[0].segments
    assert without[0].ids == remembering[0].ids
    assert [each.ids for each in without] != [each.ids for each in remembering]
    prompted = ours.run(sound, replace(ONCE, prompt="Sense and sense"))[0].segments
    assert prompted[0].ids != without[0].ids


def test_only_what_lies_ahead_is_kept():
    taken = []

    def blocks():
        for number in range(1000):
            taken.append(number)
            yield torch.full((100,), float(number))

    ahead = _Ahead(blocks())
    assert ahead.look(250).tolist() == [0.0] * 100 + [1.0] * 100 + [2.0] * 50
    assert len(taken) == 3
    for _ in range(100):
        ahead.skip(130)
        assert len(ahead.look(250)) == 250
        assert len(ahead._held) <= 350
    assert ahead.place == 13000
    ahead.skip(10**6)
    assert len(ahead.look(5)) == 0


@pytest.mark.parametrize("seconds", [0.001, 0.02, 0.5, 1.0, 1.001])
def test_sounds_of_any_length_come_to_an_end(seconds):
    found = transcriber().run([noise(seconds)], ONCE)[0]
    assert all(math.isfinite(segment.end) for segment in found.segments)


def test_a_sound_of_another_rate_is_resampled():
    ours = transcriber()
    sound = Sound(torch.sin(torch.arange(22050) / 10), 22050)
    assert ours.run([sound], ONCE)[0].segments


def test_what_is_no_sound_is_refused():
    ours = transcriber()
    with pytest.raises(QkvError, match="one row of samples"):
        ours.run([torch.zeros(2, 16000)])
    with pytest.raises(QkvError, match="one row of samples"):
        ours.run([torch.zeros(16000, dtype=torch.int16)])
    with pytest.raises(QkvError, match="no sound file"):
        ours.run(["no-such-file.wav"])
    with pytest.raises(QkvError, match="no numbers"):
        ours.run([torch.full((16000,), math.nan)])
    with pytest.raises(QkvError, match="do not belong together"):
        Transcriber(small_model(), tokenizer(), replace(FEATURES, bands=80), tokens())
    with pytest.raises(QkvError, match="one or more numbers"):
        Hearing(temperatures=())
    with pytest.raises(QkvError, match="1 at least"):
        Hearing(beams=0)
    with pytest.raises(QkvError, match="English alone"):
        transcriber(is_multilingual=False).languages(noise(1.0))
