"""From sound alone to a model that writes: folders that load, resume bit for bit, and export to the reference."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from qkv.api.sound_pretraining import SoundPretraining, pretrain_on_sounds
from qkv.api.speech_training import SpeechTraining, train_listener
from qkv.api.training import read_result
from qkv.data.plan import RowCount
from qkv.data.sound_features import WaveFeatures
from qkv.data.span_hiding import SpanHiding
from qkv.data.stored_sounds import SpokenWaves
from qkv.errors import QkvError
from qkv.generate.listen import Listener
from qkv.generate.untuned import UntunedSound
from qkv.train.interrupts import Interrupted
from qkv.train.settings import TrainSettings
from qkv.weights.export import export
from qkv.weights.save import save_model, tensors_of
from tests.models.small import small_model
from tests.train.tiny import quiet

RATE = 4000
FEATURES = WaveFeatures(rate=RATE)
SIZES: dict[str, Any] = {
    "channels": (8, 8, 8), "kernels": (10, 3, 2), "strides": (5, 2, 2), "width": 12, "hidden": 20, "heads": 2,
    "layers": 2, "position_kernel": 8, "position_groups": 3, "entries": 5, "quantised": 8, "space": 8,
    "hidden_share": 0.2, "hidden_length": 3, "hidden_channel_share": 0.2, "hidden_channel_length": 2,
}  # fmt: skip
PITCH = {"a": 300.0, "b": 800.0, "c": 1700.0}
TEXTS = ["ab", "ba", "cab", "a c", "b b", "abc", "c b", "bca"]


def say(text: str) -> Tensor:
    """Each letter a tone of 50 ms, with pauses between."""
    time = torch.arange(RATE // 20) / RATE
    parts = [torch.zeros(RATE // 25)]
    for letter in text:
        parts += [torch.sin(2 * torch.pi * PITCH[letter] * time) if letter in PITCH else torch.zeros(RATE // 10)]
        parts += [torch.zeros(RATE // 25)]
    return FEATURES(torch.cat(parts)[None]).values[0].half()


SPEECH = SpokenWaves([say(text) for text in TEXTS], TEXTS)


def settings(steps: int, **given: Any) -> TrainSettings:
    return TrainSettings(steps=steps, log_every=2, device="cpu", **given)


def alone(steps: int = 4, **given: Any) -> SoundPretraining:
    return replace(
        SoundPretraining(
            seconds=0.5, hide=SpanHiding(0.4, 3, 1), distractors=4, batching=RowCount(3), settings=settings(steps),
            hold_out=0.3, reporter=quiet(),
        ),
        **given,
    )  # fmt: skip


def taught(steps: int = 4, **given: Any) -> SpeechTraining:
    how = SpeechTraining(settings=settings(steps, watch="wer"), batching=RowCount(4), hold_out=0.3, reporter=quiet())
    return replace(how, **given)


def pretrained(folder: Path, **given: Any) -> UntunedSound:
    return pretrain_on_sounds(SPEECH.waves, folder, sizes=SIZES, features=FEATURES, how=alone(**given))


def listener(folder: Path, model: Any = None, **given: Any) -> Listener:
    sizes = SIZES if model is None else None
    return train_listener(SPEECH, folder, model=model, sizes=sizes, features=FEATURES, how=taught(**given))


def test_sound_alone_then_little_speech_then_a_folder_that_writes(tmp_path: Path) -> None:
    first = pretrained(tmp_path / "first")
    figures = read_result(tmp_path / "first").figures
    assert {"loss", "contrastive", "accuracy", "entries_used"} <= figures.keys()
    assert first.model.head.quantiser.temperature == pytest.approx(0.5, abs=0.01)
    assert first.model.frames.gradient_share == 1.0
    again = UntunedSound.load(tmp_path / "first")
    assert again.features == FEATURES
    frames = {name: tensor.clone() for name, tensor in tensors_of(again.model).items() if name.startswith("frames.")}
    tuned = listener(tmp_path / "second", again, head_first=2)
    figures = read_result(tmp_path / "second").figures
    assert {"loss", "wer", "cer"} <= figures.keys()
    assert read_result(tmp_path / "second").flops > 0
    after = tensors_of(tuned.model)
    assert all(torch.equal(tensor, after[name]) for name, tensor in frames.items())  # the convolutions stayed
    assert any(not torch.equal(tensor, after[name]) for name, tensor in tensors_of(again.model).items()
               if name.startswith("stack."))  # fmt: skip
    assert all(parameter.requires_grad for parameter in tuned.model.parameters())
    loaded = Listener.load(tmp_path / "second")
    assert loaded.letters == tuned.letters
    wave = SPEECH.waves[0].float()
    assert loaded.run([wave]) == tuned.run([wave])
    with pytest.raises(QkvError, match="keeps its sizes, and width is one"):
        train_listener(SPEECH, tmp_path / "third", model=again, sizes={"width": 24}, how=taught())


def test_a_model_learns_to_write_and_is_taught_further(tmp_path: Path) -> None:
    how = taught(hold_out=0.0, settings=settings(30), optimizer=_fast, schedule=_constant)
    plain = {**SIZES, "norm": "before", "frame_norm": "frame", "frame_bias": True, "augment": False}
    learned = train_listener(SPEECH, tmp_path / "run", sizes=plain, features=FEATURES, how=how)
    lines = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert losses[-1] < 0.7 * losses[0]
    further = listener(tmp_path / "further", learned, steps=2)
    assert further.letters is learned.letters
    with pytest.raises(QkvError, match="letters that this model cannot write: x z"):
        train_listener(SpokenWaves([SPEECH.waves[0]] * 2, ["az", "x"]), tmp_path / "no", model=learned, how=how)


def _fast(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 5e-3)


def _constant(step: int, progress: float) -> float:
    return 1.0


@pytest.mark.parametrize("kind", ["alone", "taught"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temperature, what rests, what is hidden and the order of sounds all follow from where the run is."""
    model = pretrained(tmp_path / "start", settings=settings(1))

    def run(folder: Path, **given: Any) -> Any:
        if kind == "alone":
            return pretrained(folder, settings=settings(6, save_every=2), **given)
        return listener(folder, model, head_first=3, settings=settings(6, save_every=2, watch="wer"), **given)

    straight = run(tmp_path / "straight")
    stop_after(4, monkeypatch)
    with pytest.raises(Interrupted):
        run(tmp_path / "broken")
    monkeypatch.undo()
    torch.manual_seed(99)
    resumed = run(tmp_path / "broken", resume=True)
    for name, tensor in tensors_of(straight.model).items():
        assert torch.equal(tensor, tensors_of(resumed.model)[name]), name
    flops = [read_result(tmp_path / name).flops for name in ("straight", "broken")]
    assert flops[0] == flops[1]


def stop_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if someone pressed Ctrl-C during this update."""
    from qkv.train.step import Stepper

    update, done = Stepper.update, [0]

    def counted(self: Stepper, *given: Any) -> Any:
        done[0] += 1
        if done[0] == step:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGINT)
        return update(self, *given)

    monkeypatch.setattr(Stepper, "update", counted)


def test_the_folder_is_exported_to_the_reference(tmp_path: Path) -> None:
    tuned = listener(tmp_path / "run", steps=2)
    export(tmp_path / "run", tmp_path / "out")
    theirs = transformers.Wav2Vec2ForCTC.from_pretrained(tmp_path / "out").eval()
    wave = SPEECH.waves[2].float()[None]
    with torch.inference_mode():
        assert torch.allclose(tuned.model(wave), theirs(wave).logits, atol=1e-4)
    read = transformers.Wav2Vec2CTCTokenizer.from_pretrained(tmp_path / "out")
    assert read.decode(tuned.letters.encode("a cab"), group_tokens=False) == "a cab"


def test_what_cannot_be_learned_from_is_told(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="follows from the texts"):
        train_listener(SPEECH, tmp_path / "a", sizes={**SIZES, "vocabulary": 9}, how=taught())
    with pytest.raises(QkvError, match="too little sound"):
        pretrain_on_sounds([torch.randn(50)], tmp_path / "b", sizes=SIZES, features=FEATURES, how=alone(hold_out=0.0))
    with pytest.raises(QkvError, match="too short for spans"):
        pretrained(tmp_path / "c", seconds=0.01)
    save_model(small_model("marian"), tmp_path / "text")
    with pytest.raises(QkvError, match="holds no model of samples"):
        UntunedSound.load(tmp_path / "text")
    with pytest.raises(QkvError, match="each needs its own"):
        SpokenWaves([torch.zeros(3)], [])
