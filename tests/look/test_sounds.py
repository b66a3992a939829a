"""What models of sound listen to: recorded, drawn, as pages and by the command."""

import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from qkv.api.looking_sounds import look_at_sounds
from qkv.data.letters import Letters
from qkv.data.sound import Sound
from qkv.data.sound_features import WaveFeatures
from qkv.errors import QkvError
from qkv.generate.listen import Listener
from qkv.generate.sound_readers import SoundClassifier, SoundStateReader
from qkv.generate.transcribe import Transcriber
from qkv.look.sound_maps import FrameRecord, Record, Spectrum, SpectrumRecord, SpokenRecord, record_sound
from qkv.look.sounds import draw_sound, draw_sound_layer
from qkv.parts.attention.visibility import NotPadding, Tokens
from qkv.parts.context import Ledger
from tests.cli.command import qkv
from tests.generate.speech import FEATURES, SIZES, small_model, tokenizer, tokens
from tests.generate.test_sound_readers import BANK, small_ast
from tests.models.small_sounds import small_sound


def wave(seconds: float = 0.3) -> torch.Tensor:
    time = torch.arange(round(16000 * seconds)) / 16000
    return torch.sin(2 * torch.pi * 440 * time) * 0.3 + torch.randn(len(time), generator=_drawn()) * 0.01


def _drawn() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    file = tmp_path / "<clip> & co.wav"
    soundfile.write(file, wave().numpy(), 16000)
    return file


def ast() -> SoundClassifier:
    return SoundClassifier(small_ast(), BANK)


def listener() -> Listener:
    return Listener(small_sound(), Letters(tuple("-|abcde"), space=1), WaveFeatures(), window=1.0, overlap=0.2)


def transcriber() -> Transcriber:
    return Transcriber(small_model(), tokenizer(), FEATURES, tokens())


def records() -> list[Record]:
    uses = [ast(), listener(), SoundClassifier(small_sound("base", "classification"), WaveFeatures()), transcriber()]
    return [record_sound(use, Sound(wave(), 16000)) for use in uses]


def entries(ledger: Ledger) -> list[torch.Tensor]:
    return [each for several in ledger.entries.values() for each in several]


def test_an_ast_is_rolled_out_over_the_spectrum() -> None:
    """Recomputed in torch from the model itself; low bands are below."""
    use = ast()
    samples = wave()
    record = record_sound(use, samples)
    assert isinstance(record, SpectrumRecord)
    values = use.features(samples[None, : use.size]).values
    ledger = Ledger(use.model, keep={"weights"})
    with torch.no_grad():
        logits = use.model(values, ledger=ledger)
    flow = torch.eye(values.shape[-1] and entries(ledger)[0].shape[-1])
    for weights in entries(ledger):
        flow = (weights[0].mean(0) + torch.eye(len(flow))) / 2 @ flow
    expected = flow[:2].mean(0)[2:].unflatten(0, record.grid).flip(0)
    np.testing.assert_allclose(record.rollout(), expected.numpy(), rtol=1e-4, atol=1e-6)
    head = entries(ledger)[0][0, 1, :2].mean(0)[2:].unflatten(0, record.grid).flip(0)
    np.testing.assert_allclose(record.heads(0)[1], head.numpy(), rtol=1e-4, atol=1e-6)
    shares = logits[0].softmax(-1)
    assert record.said == f"{use.model.head_choice.labels[int(shares.argmax())]} {float(shares.max()):.1%}"
    assert record.spectrum.seconds == pytest.approx(0.2)  # 20 frames of a hundredth of a second
    np.testing.assert_array_equal(record.spectrum.values, values[0, 0].numpy())


def test_a_short_sound_ends_before_the_picture() -> None:
    record = record_sound(ast(), wave(0.1))
    assert record.spectrum.sounding == pytest.approx(0.08)  # 8 whole frames
    assert record.spectrum.sounding < record.spectrum.seconds


def test_frames_are_rolled_out_over_time() -> None:
    use = listener()
    samples = wave()
    record = record_sound(use, samples)
    assert isinstance(record, FrameRecord)
    ledger = Ledger(use.model, keep={"weights"})
    with torch.no_grad():
        use.model(use.features(samples[None]).values, ledger=ledger)
    flow = torch.eye(entries(ledger)[0].shape[-1])
    for weights in entries(ledger):
        flow = (weights[0].mean(0) + torch.eye(len(flow))) / 2 @ flow
    np.testing.assert_allclose(record.rollout(), flow.mean(0).numpy(), rtol=1e-4, atol=1e-7)
    assert record.rollout().sum() == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose(record.heads(1), entries(ledger)[1][0].mean(-2).numpy(), rtol=1e-4, atol=1e-7)
    assert record.said == use.run([samples])[0].text
    assert record.words == use.run([samples])[0].words


def test_only_ten_seconds_of_frames_are_looked_at() -> None:
    use = SoundStateReader(small_sound("base", "states"), WaveFeatures(rate=1000))
    record = record_sound(use, torch.randn(12000))
    assert record.spectrum.seconds == pytest.approx(10)
    assert record.weights.shape[-1] == use.model.frames.count(10000)
    assert record.said == ""


def test_each_written_token_has_the_attention_it_was_written_with() -> None:
    """The row of a token is that of the query before it, whose output it is."""
    use = transcriber()
    samples = wave()
    record = record_sound(use, samples)
    assert isinstance(record, SpokenRecord)
    transcript = use.run([samples])[0]
    assert record.said == transcript.text
    text = [token for segment in transcript.segments for token in segment.ids if token < use.tokens.end]
    opening = use.tokens.opening(transcript.language, "transcribe", timestamps=False)
    room = SIZES.target_positions - len(opening)
    ids = torch.tensor([[*opening, *text[:room]]])
    ledger = Ledger(use.model, keep={"weights"})
    with torch.no_grad():
        memory = use.model.encode(FEATURES(samples[None]).values)
        use.model.decode_states(ids, memory, Tokens(ids.shape[1]), NotPadding(), ledger=ledger)
    cross = [each for name, several in ledger.entries.items() if "cross" in name for each in several]
    expected = torch.stack([each[0] for each in cross])[:, :, len(opening) - 1 : -1, :15]  # 0.3 of 1 second: 15 of 50
    np.testing.assert_allclose(record.weights, expected.numpy(), rtol=1e-4, atol=1e-6)
    assert len(record.tokens) == record.weights.shape[2]
    assert record.following == ((0, 1), (1, 0))
    np.testing.assert_allclose(record.alignment(), (expected[0, 1] + expected[1, 0]).numpy() / 2, rtol=1e-4, atol=1e-6)


def test_everything_can_be_drawn() -> None:
    for record in records():
        drawn = [draw_sound(record), *(draw_sound_layer(record, layer) for layer in range(len(record.weights)))]
        for image in drawn:
            assert image.mode == "RGB"
            assert np.asarray(image).std() > 3


def test_the_place_that_is_listened_to_stands_out() -> None:
    """One patch, at the top right: of all pixels of the rollout drawn alone, those are the darkest."""
    record = record_sound(ast(), wave())
    assert isinstance(record, SpectrumRecord)
    rows, columns = record.grid
    weights = np.full((1, 1, 2 + rows * columns, 2 + rows * columns), 1e-3, np.float32)
    weights[..., 2 + (rows - 1) * columns + columns - 1] = 1.0  # the highest band, the last moment
    made = SpectrumRecord("made", record.picture, "", weights, record.grid, 2, 4, record.spectrum)
    alone = np.asarray(draw_sound(made).convert("L"))[-148:-28, 64:-10]  # without the foot and the hertz
    y, x = np.unravel_index(int(alone.argmin()), alone.shape)
    assert y < alone.shape[0] / rows
    assert x > alone.shape[1] * (1 - 1 / columns)


def test_a_spectrum_has_low_tones_below_and_loud_ones_bright() -> None:
    values = np.zeros((10, 4), np.float32)
    values[1] = 5.0
    light = np.asarray(Spectrum(values, 1.0, 1.0).picture().convert("L"))
    assert light.shape == (10, 4)
    assert light[8].min() > light[:8].max()
    for mel in ("kaldi", "slaney"):
        spectrum = Spectrum(values, 1.0, 1.0, mel)
        heights = [spectrum.height_of(hertz) for hertz in (20, 500, 4000, 8000)]
        assert heights == sorted(heights)
        assert heights[-1] == pytest.approx(1)


def test_a_page_holds_every_layer_and_loads_nothing(clip: Path, tmp_path: Path) -> None:
    for use, layers, filters in ((ast(), 1, 1), (listener(), 2, 0), (transcriber(), 2, 0)):
        page, image = tmp_path / "look.html", tmp_path / "look.png"
        look_at_sounds(use, [clip], html=page, png=image)
        text = page.read_text()
        assert text.count("<summary>Layer ") == layers
        assert text.count("learned of spectra") == filters
        assert "&lt;clip&gt; &amp; co.wav" in text
        assert "<clip>" not in text
        assert not re.search(r"(src|href)=\"(?!data:)", text)
        with Image.open(image) as drawn:
            assert drawn.size[0] > 900


def test_what_cannot_be_looked_at_is_told(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="put the one sound into brackets"):
        look_at_sounds(ast(), "clip.wav")
    with pytest.raises(QkvError, match="at least one"):
        look_at_sounds(ast(), [])
    with pytest.raises(QkvError, match="written as PNG"):
        look_at_sounds(ast(), [wave()], png=tmp_path / "x.gif")
    with pytest.raises(QkvError, match="shorter than one frame"):
        record_sound(listener(), torch.randn(20))
    look_at_sounds(ast(), [wave(), wave()], png=tmp_path / "two.png")
    assert (tmp_path / "two-2.png").exists()


def test_the_command_draws_sounds(clip: Path, tmp_path: Path) -> None:
    ast().save(tmp_path / "model")
    arguments = ("look", tmp_path / "model", clip, "--device", "cpu", "--png", tmp_path / "look.png")
    outcome = qkv(*arguments)
    assert outcome.code == 0, outcome
    assert outcome.out.startswith(f"{clip}\t")
    assert (tmp_path / "look.png").exists()
    refused = qkv(*arguments, "--target", "a cat")
    assert refused.code == 2
    assert "--target is for models of texts" in refused.complaint
