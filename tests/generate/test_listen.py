"""Long speech in windows: every frame once, words at their times, files as sounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor, nn
from transformers import Wav2Vec2ForCTC, Wav2Vec2Processor

from qkv.data.letters import Letters, write_letters
from qkv.data.sound import Sound
from qkv.data.sound_features import WaveFeatures
from qkv.data.sound_processor import write_sound_processor
from qkv.errors import QkvError
from qkv.generate.ctc import Beam, read_greedily
from qkv.generate.listen import Listener, stretches
from qkv.models.sound_model import SoundModel
from qkv.weights.export import export
from qkv.weights.save import save_model
from tests.models.small_sounds import SHORTEST, new_sound, small_sound

LETTERS = Letters(("-", "|", "a", "b", "c"), blank=0, space=1)
RATE = 1000  # 50 frames of 20 samples a second


class Spelling(nn.Module):
    """A stand-in that hears in each frame the token whose tenth the frame's first sample is: it looks at no other."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = small_sound().frames
        self.heard: list[tuple[int, ...]] = []

    def forward(self, waves: Tensor, *, lengths: Tensor) -> Tensor:
        self.heard.append(tuple(waves.shape))
        first = waves.unfold(1, SHORTEST, self.frames.hop)[..., 0]
        return 9.0 * nn.functional.one_hot((first * 10).round().long(), 5).float()


def listener(**options: float) -> Listener:
    features = WaveFeatures(rate=RATE, normalise=False)
    return Listener(Spelling(), LETTERS, features, **{"window": 2.0, "overlap": 0.4, **options})  # type: ignore[arg-type]


def spoken(words: list[str], frames: int = 3) -> Tensor:
    """Samples that spell words, each letter for some frames, with silence after each."""
    tokens = [token for word in words for letter in word for token in [LETTERS.tokens.index(letter)] * frames + [0]]
    found, place = [], 0
    for word in words:
        length = len(word) * (frames + 1)
        found += [*tokens[place : place + length], 1, 0]
        place += length
    return (torch.tensor(found) / 10).repeat_interleave(20)


WORDS = ["ab", "c", "cab", "bb", "abcabc"] * 12


@pytest.mark.parametrize(("window", "overlap"), [(2.0, 0.4), (1.0, 0.2), (0.52, 0.12), (60.0, 0.4)])
def test_windows_together_hear_every_frame_once(window: float, overlap: float) -> None:
    samples = spoken(WORDS)
    found = listener(window=window, overlap=overlap)
    (said,) = found.run([samples])
    assert said.text == " ".join(WORDS)
    (whole,) = listener(window=600.0).run([samples])
    assert said == whole
    assert said.words[1].start == pytest.approx((2 * 4 + 2) * 0.02)
    assert max(shape[1] for shape in found.model.heard) <= window * RATE
    assert list(found.stream(samples)) == list(said.words)


def test_many_sounds_are_heard_side_by_side() -> None:
    sounds = [spoken(WORDS[:n]) for n in (1, 30, 2, 7)]
    for rows in (1, 3, 100):
        assert [said.text for said in listener().run(sounds, rows=rows)] == [" ".join(WORDS[:n]) for n in (1, 30, 2, 7)]


def test_a_beam_search_reads_the_same_where_all_is_clear() -> None:
    samples = spoken(WORDS)
    greedy, beams = listener().run([samples])[0], listener().run([samples], Beam(width=4))[0]
    assert beams.text == greedy.text
    for one, other in zip(beams.words, greedy.words, strict=True):
        assert (one.start, one.end) == pytest.approx((other.start, other.end))


def test_stretches_are_cut_where_it_is_silent() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1000, 4)
    logits[::37, 0] = 20.0
    parts = list(stretches(logits, 0, 100))
    assert torch.equal(torch.cat(parts), logits)
    assert all(len(part) <= 100 for part in parts)
    assert all(part[-1, 0] == 20.0 for part in parts[:-1])


def test_files_and_sounds_of_other_rates_are_heard_as_samples_are(tmp_path: Path) -> None:
    model = small_sound("prenorm")
    letters = Letters(("-", "|", "a", "b", "c", "d", "e"), space=1)
    own = Listener(model, letters, WaveFeatures(), window=0.5, overlap=0.1)
    samples = torch.from_numpy(np.random.default_rng(0).normal(0, 0.1, 48000)).float()
    soundfile.write(tmp_path / "a.wav", samples.numpy(), 48000, subtype="FLOAT")
    file, sound = own.run([tmp_path / "a.wav", Sound(samples, 48000)])
    assert file.words
    assert [word.text for word in file.words] == [word.text for word in sound.words]


def test_a_short_sound_is_heard_as_if_alone_and_the_shortest_is_filled() -> None:
    model = small_sound()
    own = Listener(model, Letters(tuple("-|abcde"), space=1), WaveFeatures(), window=1.0, overlap=0.1)
    waves = [torch.randn(900), torch.randn(345), torch.randn(1)]
    said = own.run(waves)
    for wave, found in zip(waves[:2], said, strict=False):
        with torch.no_grad():
            logits = model(WaveFeatures()(wave[None]).values)[0]
        ids = read_greedily(logits, 0).ids
        assert found.text.replace(" ", "") == own.letters.decode(ids).replace(" ", "")
    assert isinstance(said[2].text, str)


def test_a_folder_is_loaded_with_all_that_stands_beside_it(tmp_path: Path) -> None:
    model, letters = new_sound(), Letters(tuple("-|abcde"), space=1)
    own = tmp_path / "own"
    save_model(model, own)
    write_letters(own, letters)
    write_sound_processor(own, WaveFeatures(rate=8000))
    loaded = Listener.load(own)
    assert (loaded.letters, loaded.features) == (letters, WaveFeatures(rate=8000))
    export(own, tmp_path / "theirs")
    again = Listener.load(tmp_path / "theirs")
    samples = torch.randn(16000)
    assert again.features == loaded.features
    assert again.letters == letters
    assert again.run([samples]) == loaded.run([samples])


def test_a_model_may_tell_more_apart_than_its_letters_name(tmp_path: Path) -> None:
    save_model(new_sound(), tmp_path)
    write_letters(tmp_path, Letters(tuple("-|ab"), space=1))
    loaded = Listener.load(tmp_path)
    assert loaded.letters.tokens == ("-", "|", "a", "b", "<4>", "<5>", "<6>")
    assert loaded.run([torch.randn(5000)])[0].text


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    save_model(new_sound("base", "states"), tmp_path / "states")
    with pytest.raises(QkvError, match="needs the head 'ctc'"):
        Listener.load(tmp_path / "states")
    save_model(new_sound(), tmp_path / "ctc")
    with pytest.raises(QkvError, match=r"no vocab\.json"):
        Listener.load(tmp_path / "ctc")
    write_letters(tmp_path / "ctc", Letters(tuple("-|abcdefgh"), space=1))
    with pytest.raises(QkvError, match="names 10 letters"):
        Listener.load(tmp_path / "ctc")
    for wrong in ({"overlap": 3.0}, {"overlap": 0.0}):
        with pytest.raises(QkvError, match="cannot overlap"):
            listener(**wrong)
    for samples in (torch.zeros(2, 100), torch.zeros(100).long(), torch.zeros(0)):
        with pytest.raises(QkvError, match="one row of samples"):
            listener().run([samples])
    assert isinstance(new_sound(), SoundModel)


def test_what_is_exported_the_reference_transcribes_alike(tmp_path: Path) -> None:
    """Preparation, model, letters: all of the reference's own, from what we wrote."""
    model, letters = new_sound("prenorm"), Letters(("<pad>", "|", *"abcde"), space=1)
    save_model(model, tmp_path / "own")
    write_letters(tmp_path / "own", letters)
    export(tmp_path / "own", tmp_path / "theirs")
    processor = Wav2Vec2Processor.from_pretrained(tmp_path / "theirs")
    reference = Wav2Vec2ForCTC.from_pretrained(tmp_path / "theirs")
    assert reference.config.pad_token_id == letters.blank
    assert processor.feature_extractor.return_attention_mask
    waves = [torch.randn(8000), torch.randn(5555)]
    given = processor([wave.numpy() for wave in waves], sampling_rate=16000, return_tensors="pt", padding=True)
    with torch.no_grad():
        paths = reference(**given).logits.argmax(-1)
    found = Listener.load(tmp_path / "theirs").run(waves)
    counts = model.frames.frames_of(torch.tensor([8000, 5555])).tolist()
    for said, path, count in zip(found, paths, counts, strict=True):
        text = processor.tokenizer.decode(path[:count])
        assert said.text.split() == text.split()
        assert said.text
