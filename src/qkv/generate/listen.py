"""Speech of any length as text with times, by a model that writes letters frame by frame.

A long sound is heard in windows that overlap. Frames near the edge of a window have heard only one side, so each window
gives those in its middle, and together they are all frames of the sound.

Shapes: b rows, t samples, n frames, v tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.letters import Letters, write_letters
from qkv.data.resampling import resample
from qkv.data.sound import Sound, Window, sound_windows, windows
from qkv.data.sound_features import WaveFeatures, join_waves
from qkv.data.sound_processor import write_sound_processor
from qkv.errors import QkvError
from qkv.generate.ctc import Beam, read_beams, read_greedily, words_of
from qkv.generate.spoken_words import Word
from qkv.generate.use import at_rest
from qkv.models.sound_model import SoundModel
from qkv.weights.hub import local_folder
from qkv.weights.load import load_model
from qkv.weights.save import save_model
from qkv.weights.sound_folder import letters_of, read_features

Spoken = Path | str | Sound | Tensor  # a file, a sound, or samples [t] of the model's rate
LONGEST_SEARCH = 3000  # frames of one beam search: texts that grow on and on make it slower and slower


@dataclass(frozen=True)
class Said:
    """What was said in a sound."""

    words: tuple[Word, ...]
    between: str = " "

    @property
    def text(self) -> str:
        return self.between.join(word.text for word in self.words)


class Listener:
    """A model that writes down speech letter by letter, with its letters and the way sound is prepared for it."""

    def __init__(
        self, model: SoundModel, letters: Letters, features: WaveFeatures, *, window: float = 30.0, overlap: float = 6.0
    ) -> None:
        """`window` and `overlap` are seconds."""
        self.model, self.letters, self.features = model, letters, features
        hop = model.frames.hop
        # Whole frames, so that those of all windows lie on one grid.
        self.size = round(window * features.rate / hop) * hop
        self.overlap = round(overlap * features.rate / 2 / hop) * 2 * hop
        if not model.frames.shortest <= self.overlap < self.size:
            raise QkvError(
                f"Windows of {window} seconds cannot overlap by {overlap}: by more than a frame, and by less."
            )

    @classmethod
    def load(cls, folder: Path | str, device: str | torch.device = "cpu") -> Listener:
        folder = local_folder(folder)
        model = load_model(folder, device)
        if not isinstance(model, SoundModel) or model.head_choice.kind != "ctc":
            raise QkvError(f"{folder} holds no model that writes letters: it needs the head 'ctc'.")
        features = read_features(folder, model)
        assert isinstance(features, WaveFeatures)
        return cls(model, letters_of(folder, model), features)

    def save(self, folder: Path | str) -> None:
        save_model(self.model, Path(folder))
        write_letters(Path(folder), self.letters)
        write_sound_processor(Path(folder), self.features)

    def run(self, sounds: Sequence[Spoken], beam: Beam | None = None, *, rows: int = 8) -> list[Said]:
        """What is said in each sound; `rows` windows are heard side by side. Without a `beam`, the likeliest paths."""
        heard: list[list[Tensor]] = [[] for _ in sounds]
        queue = ((number, window) for number, sound in enumerate(sounds) for window in self._windows(sound))
        while some := list(islice(queue, rows)):
            logits = self._hear([window.samples for _, window in some])
            for (number, window), each in zip(some, logits, strict=True):
                heard[number].append(self._middle(each, window))
        return [self._read(torch.cat(parts), beam) for parts in heard]

    def stream(self, sound: Spoken) -> Iterator[Word]:
        """The words of one sound, each as soon as it is certain: no later frame can change it."""
        frames, start = torch.zeros(0, 0), 0
        for window in self._windows(sound):
            (logits,) = self._hear([window.samples])
            middle = self._middle(logits, window)
            frames = torch.cat((frames, middle)) if len(frames) else middle
            end = len(frames)
            if not window.last:
                gaps = (
                    [] if self.letters.space is None else (frames.argmax(-1) == self.letters.space).nonzero().tolist()
                )
                end = gaps[-1][0] + 1 if gaps else 0  # up to the last one between words
            yield from self._read(frames[:end], None, start).words
            frames, start = frames[end:], start + end

    def _windows(self, sound: Spoken) -> Iterator[Window]:
        return sound_stretches(sound, self.features.rate, self.size, self.overlap)

    def _hear(self, waves: Sequence[Tensor]) -> list[Tensor]:
        """The logits of each wave. [n v]"""
        device = next(self.model.parameters()).device
        features = self.features(*join_waves(waves))
        short = self.model.frames.shortest - features.values.shape[1]
        values = F.pad(features.values, (0, max(0, short)))
        lengths = features.lengths.clamp(min=self.model.frames.shortest)
        with at_rest(self.model):
            logits = self.model(values.to(device), lengths=lengths).float().cpu()
        return [row[:count] for row, count in zip(logits, self.model.frames.frames_of(lengths).tolist(), strict=True)]

    def _middle(self, logits: Tensor, window: Window) -> Tensor:
        """The frames [n v] that this window gives, its neighbours giving the others."""
        half, hop = self.overlap // 2, self.model.frames.hop
        return logits[half // hop if window.start else 0 : None if window.last else (self.size - half) // hop]

    def _read(self, logits: Tensor, beam: Beam | None, start: int = 0) -> Said:
        """What is said in frames [n v], of which the first is frame `start` of the sound."""
        seconds = self.model.frames.hop / self.features.rate
        words: list[Word] = []
        for part in (logits,) if beam is None else stretches(logits, self.letters.blank):
            if beam is None:
                reading = read_greedily(part, self.letters.blank)
            else:
                reading = read_beams(part, self.letters, beam)[0]
            words += words_of(reading, self.letters, seconds, start)
            start += len(part)
        return Said(tuple(words), self.letters.between)


def stretches(logits: Tensor, blank: int, most: int = LONGEST_SEARCH) -> Iterator[Tensor]:
    """Frames [n v] in parts of at most `most`, cut where silence is surest, in the second half of each part."""
    while len(logits) > most:
        half = most // 2
        cut = half + int(logits[half:most].log_softmax(-1)[:, blank].argmax()) + 1
        yield logits[:cut]
        logits = logits[cut:]
    yield logits


def sound_stretches(sound: Spoken, rate: int, size: int, overlap: int = 0) -> Iterator[Window]:
    """A file, a sound or samples [t] in windows of `size` samples of this rate."""
    if isinstance(sound, Path | str):
        return sound_windows(sound, rate, size, overlap)
    samples = sound.samples if isinstance(sound, Sound) else sound
    if samples.ndim != 1 or not samples.is_floating_point() or not len(samples):
        raise QkvError(f"A sound is one row of samples between -1 and 1, not {list(samples.shape)} {samples.dtype}.")
    if isinstance(sound, Sound) and sound.rate != rate:
        samples = resample(samples, sound.rate, rate)
    return windows(samples.cpu().float().split(size), size, overlap)  # in parts: what is left is copied each time
