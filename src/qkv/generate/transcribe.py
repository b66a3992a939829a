"""Speech of any length as text with times: window after window, each begun where the last was understood to end.

Only the window that is being heard is in memory. [radford2023 §4.5]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from qkv.data.published_tokenizer import read_tokenizer
from qkv.data.sound_features import LogMel
from qkv.data.sound_processor import PROCESSOR_FILE, read_sound_processor
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.alignment import align, default_heads
from qkv.generate.hearing import Heard, Hearer, Hearing
from qkv.generate.listen import Spoken, sound_stretches
from qkv.generate.prepare import Ready
from qkv.generate.speech_tokens import SpeechTokens, read_generation, speech_tokens
from qkv.generate.spoken_words import Word, timed, words_of
from qkv.generate.timestamps import Stretch, stretches
from qkv.models.sequence_to_sequence import EncoderDecoder, Memory
from qkv.parts.frames import STRIDE
from qkv.weights.hub import local_folder
from qkv.weights.load import load_model

FORGETS = 0.5  # a text drawn at a higher temperature says too little to condition the next window on [radford2023 §4.5]


@dataclass(frozen=True)
class Segment:
    """A stretch of speech as the model divides it. Times are seconds from the beginning of the sound."""

    start: float
    end: float
    text: str
    ids: tuple[int, ...]
    words: tuple[Word, ...]
    heard: Heard  # the window it was heard in


@dataclass(frozen=True)
class Transcript:
    segments: tuple[Segment, ...]
    language: str | None  # None: the model knows one only

    @property
    def text(self) -> str:
        return " ".join(segment.text for segment in self.segments)

    @property
    def words(self) -> tuple[Word, ...]:
        return tuple(word for segment in self.segments for word in segment.words)


class _Ahead:
    """Samples that come in blocks, of which only those ahead are kept."""

    def __init__(self, blocks: Iterator[Tensor]) -> None:
        self._blocks, self._held, self.place = blocks, torch.zeros(0), 0

    def look(self, count: int) -> Tensor:
        """The next samples, `count` of them or all that are left."""
        parts, held = [self._held], len(self._held)
        while held < count and (block := next(self._blocks, None)) is not None:
            parts.append(block)
            held += len(block)
        self._held = torch.cat(parts)
        return self._held[:count]

    def skip(self, count: int) -> None:
        self._held = self.look(count)[count:] if count > len(self._held) else self._held[count:]
        self.place += count


@dataclass
class _Listening:
    """Where the hearing of one sound stands."""

    ahead: _Ahead
    language: str | None
    said: list[int]  # since the last time all was forgotten, prompt included
    window: Tensor = field(default_factory=lambda: torch.zeros(0))
    segments: list[Segment] = field(default_factory=list)


class Transcriber:
    """A model that writes down speech, with its tokenizer and the way sound is prepared for it."""

    def __init__(self, model: EncoderDecoder, tokenizer: TextTokenizer, features: LogMel, tokens: SpeechTokens) -> None:
        sizes = model.sizes
        slots = features.samples // features.hop // STRIDE
        if (features.bands, slots) != (sizes.mels, sizes.source_positions):
            raise QkvError(
                f"The model hears {sizes.source_positions} slots of {sizes.mels} bands, and its sound is prepared as "
                f"{slots} slots of {features.bands}: the two do not belong together."
            )
        self.model, self.tokenizer, self.features, self.tokens = model, tokenizer, features, tokens
        self._ready: Ready[EncoderDecoder] = Ready()
        self.step = STRIDE * features.hop / features.rate  # seconds a slot, and between two times

    @classmethod
    def load(cls, folder: Path | str, device: str | torch.device = "cpu") -> Transcriber:
        folder = local_folder(folder)
        return cls.of_folder(folder, load_model(folder, device))

    @classmethod
    def of_folder(cls, folder: Path, model: object) -> Transcriber:
        """A model that was read from a folder, with what stands beside it."""
        if not isinstance(model, EncoderDecoder) or model.source_vocabulary is not None:
            raise QkvError(f"{folder} holds a model that does not write down speech: give the folder of a Whisper.")
        seconds = model.sizes.source_positions * STRIDE * LogMel().hop // LogMel().rate
        features = LogMel(bands=model.sizes.mels, seconds=seconds)
        if (folder / PROCESSOR_FILE).exists():
            read = read_sound_processor(folder)
            if not isinstance(read, LogMel):
                raise QkvError(f"{folder / PROCESSOR_FILE} prepares sound for another kind of model.")
            features = read
        tokenizer = read_tokenizer(folder)
        tokens = speech_tokens(tokenizer, read_generation(folder), model.target_vocabulary)
        return cls(model, tokenizer, features, tokens)

    def run(self, sounds: Sequence[Spoken], hearing: Hearing | None = None, *, rows: int = 8) -> list[Transcript]:
        """A transcript of each file, sound or row of samples [t] of the model's rate; `rows` of them side by side."""
        hearing = hearing or Hearing()
        found = []
        for first in range(0, len(sounds), rows):
            some = [self._begin(sound, hearing) for sound in sounds[first : first + rows]]
            for _ in self._rounds(some, hearing):
                pass
            found += [Transcript(tuple(each.segments), each.language) for each in some]
        return found

    def stream(self, sound: Spoken, hearing: Hearing | None = None) -> Iterator[Segment]:
        """The segments of one sound, each as soon as it is known."""
        hearing = hearing or Hearing()
        listening = self._begin(sound, hearing)
        for _ in self._rounds([listening], hearing):
            yield from listening.segments
            listening.segments.clear()

    def languages(self, sound: Spoken) -> dict[str, float]:
        """The probability of each language in the first window of a sound, likeliest first."""
        if not self.tokens.languages:
            raise QkvError("This model knows English alone.")
        listening = self._begin(sound, Hearing())
        listening.window = listening.ahead.look(self.features.samples)
        with self._ready.decoding(self.model) as model:
            return self._hearer(model).language_of(self._encode(model, [listening]))[0]

    def _begin(self, sound: Spoken, hearing: Hearing) -> _Listening:
        prompt = self.tokenizer.encode([" " + hearing.prompt.strip()])[0] if hearing.prompt.strip() else []
        return _Listening(_Ahead(self._blocks(sound)), hearing.language, prompt)

    def _blocks(self, sound: Spoken) -> Iterator[Tensor]:
        return (window.samples for window in sound_stretches(sound, self.features.rate, self.features.samples))

    def _rounds(self, all_of_them: Sequence[_Listening], hearing: Hearing) -> Iterator[None]:
        """Hear the next window of each sound until all are at their ends."""
        hop = self.features.hop
        while True:
            live = []
            for each in all_of_them:
                each.window = each.ahead.look(self.features.samples)
                if len(each.window) // hop:
                    live.append(each)
            if not live:
                return
            with self._ready.decoding(self.model) as model:
                self._hear_windows(model, live, hearing)
            yield

    def _hear_windows(self, model: EncoderDecoder, live: Sequence[_Listening], hearing: Hearing) -> None:
        hearer = self._hearer(model)
        memory = self._encode(model, live)
        if self.tokens.languages and any(each.language is None for each in live):
            for each, shares in zip(live, hearer.language_of(memory), strict=True):
                each.language = each.language or next(iter(shares))
        openings = [self.tokens.opening(each.language, hearing.task, hearing.timestamps) for each in live]
        befores, places = [each.said for each in live], [each.ahead.place for each in live]
        heard = hearer.hear(memory, openings, befores, places, hearing)
        for row, (each, one) in enumerate(zip(live, heard, strict=True)):
            self._take(hearer, each, one, memory.select(torch.tensor([row], device=memory.states.device)), hearing)

    def _take(self, hearer: Hearer, at: _Listening, heard: Heard, memory: Memory, hearing: Hearing) -> None:
        """Note what was heard in a window, and go on to where the next begins."""
        size = len(at.window) // self.features.hop // STRIDE or 1  # slots that are sound
        whole = len(at.window)
        if heard.silent(hearing):
            at.ahead.skip(whole)
            return
        parts, done = [Stretch(0, size, list(heard.ids))], size
        if hearing.timestamps:
            parts, done = stretches(heard.ids, self.tokens, size)
        offset = at.ahead.place / self.features.rate
        parts = [part for part in parts if part.end > part.begin and hearer.text(part.ids)]
        words = self._words(hearer, at, memory, parts, size, offset, hearing) if hearing.words else [()] * len(parts)
        for part, spoken in zip(parts, words, strict=True):
            start, end = offset + part.begin * self.step, offset + part.end * self.step
            at.segments.append(Segment(start, end, hearer.text(part.ids), tuple(part.ids), tuple(spoken), heard))
            at.said += part.ids
        if heard.temperature > FORGETS or not hearing.remembers:
            at.said = []
        at.ahead.skip(whole if done >= size else done * STRIDE * self.features.hop)

    def _words(
        self,
        hearer: Hearer,
        at: _Listening,
        memory: Memory,
        parts: Sequence[Stretch],
        size: int,
        offset: float,
        hearing: Hearing,
    ) -> list[tuple[Word, ...]]:
        """The words of each part, with their times."""
        texts = [[token for token in part.ids if token < self.tokens.end] for part in parts]
        text = [token for each in texts for token in each]
        if not text:
            return [()] * len(parts)
        opening = self.tokens.opening(at.language, hearing.task, timestamps=False)
        heads = self.tokens.alignment_heads or default_heads(hearer.model)
        aligned = align(hearer.model, memory, opening, text, self.tokens.end, size, heads)
        found, first = [], 0
        for each in texts:
            pieces = words_of(self.tokenizer, each, at.language)
            pieces = [type(piece)(piece.text, piece.first + first, piece.count) for piece in pieces]
            found.append(tuple(timed(pieces, aligned, offset, self.step)))
            first += len(each)
        return found

    def _hearer(self, model: EncoderDecoder) -> Hearer:
        return Hearer(model, self.tokenizer, self.tokens)

    @torch.inference_mode()
    def _encode(self, model: EncoderDecoder, live: Sequence[_Listening]) -> Memory:
        """The next window of each sound, as the encoder understands it."""
        return model.encode(self._frames(live).to(next(model.parameters()).dtype))

    def _frames(self, live: Sequence[_Listening]) -> Tensor:
        """The next window of each sound, silence after the shorter ones, as frames [b m n].

        DIFFERS [radford2023 §2.2]: the published code scales frames by the loudest of the whole file, which must be
        known from beginning to end before; here by the loudest of the window, as the model was trained.
        """
        waves = torch.zeros(len(live), self.features.samples)
        for row, each in enumerate(live):
            waves[row, : len(each.window)] = each.window
        return self.features(waves.to(next(self.model.parameters()).device)).values
