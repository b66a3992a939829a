"""The tokens by which Whisper is told what to do, and by which it tells more than words. [radford2023 §2.3]"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError, nearest_or_all
from qkv.files import read_json

GENERATION_FILE = "generation_config.json"
NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")  # the second is what it was called at first
LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
TASKS = ("transcribe", "translate")
MULTILINGUAL = 51865  # so many tokens, where a folder does not say whether its model knows several languages


@dataclass(frozen=True, kw_only=True)
class SpeechTokens:
    """`<|startoftranscript|> <|language|> <|task|>`, then text between times, or `<|notimestamps|>` and text alone."""

    start: int
    end: int
    no_timestamps: int
    previous: int | None = None  # after it stands what was said before
    no_speech: int | None = None
    languages: Mapping[str, int] = field(default_factory=dict)  # none: the model knows one language and one task
    tasks: Mapping[str, int] = field(default_factory=dict)
    suppressed: tuple[int, ...] = ()  # never written
    suppressed_first: tuple[int, ...] = ()  # not written at the beginning
    alignment_heads: tuple[tuple[int, int], ...] = ()  # layers and heads of the decoder that follow the speaker
    latest_first: int = 50  # the latest time of the first word, in steps of a fiftieth of a second

    @property
    def first_time(self) -> int:
        """`<|0.00|>`; the tokens after it are later times."""
        return self.no_timestamps + 1

    def opening(self, language: str | None, task: str, timestamps: bool) -> list[int]:
        """What stands before an output."""
        if task not in TASKS:
            raise QkvError(f"There is no task {task!r} for speech: there are {' and '.join(TASKS)}.")
        tokens = [self.start]
        if self.languages:
            tokens += [self.language_id(str(language)), self.tasks[task]]
        elif task != "transcribe" or language not in (None, "en"):
            raise QkvError("This model knows English alone: ask for no other language and no translation.")
        return tokens if timestamps else [*tokens, self.no_timestamps]

    def language_id(self, language: str) -> int:
        if language not in self.languages:
            raise QkvError(f"The model knows no language {language!r}: {nearest_or_all(language, self.languages)}")
        return self.languages[language]


def speech_tokens(tokenizer: TextTokenizer, generation: Mapping[str, Any], vocabulary: int) -> SpeechTokens:
    """From the names of a tokenizer's tokens, and from what a folder says of generating."""
    names = {name: number for number, name in enumerate(tokenizer.names()) if name.startswith("<|")}

    def known(name: str) -> int:
        if name not in names:
            raise QkvError(f"The tokenizer has no token {name}, so it is not one of a model that hears speech.")
        return names[name]

    start, end = known("<|startoftranscript|>"), known("<|endoftext|>")
    tasks = {task: known(f"<|{task}|>") for task in TASKS}
    languages = {
        found[1]: number
        for name, number in names.items()
        if (found := LANGUAGE.fullmatch(name)) and start < number < min(tasks.values())
    }
    several = generation.get("is_multilingual", vocabulary >= MULTILINGUAL)
    if not isinstance(several, bool):
        raise QkvError(f'In {GENERATION_FILE}, "is_multilingual" must be true or false, but is {several!r}.')
    latest = generation.get("max_initial_timestamp_index", 50)
    if type(latest) is not int or latest < 0:
        raise QkvError(f'In {GENERATION_FILE}, "max_initial_timestamp_index" must be 0 or more, but is {latest!r}.')
    if vocabulary <= known("<|notimestamps|>") + 1:
        raise QkvError(f"A model of {vocabulary} tokens has none for times, so it belongs to another tokenizer.")
    return SpeechTokens(
        start=start,
        end=end,
        no_timestamps=known("<|notimestamps|>"),
        previous=names.get("<|startofprev|>"),
        no_speech=next((names[name] for name in NO_SPEECH if name in names), None),
        languages=languages if several else {},
        tasks=tasks if several else {},
        suppressed=_ids(generation, "suppress_tokens", vocabulary),
        suppressed_first=_ids(generation, "begin_suppress_tokens", vocabulary),
        alignment_heads=_heads(generation),
        latest_first=latest,
    )


def read_generation(folder: Path) -> dict[str, Any]:
    """What a folder says of generating; in old ones that stands in the configuration of the model."""
    file = folder / GENERATION_FILE
    said = read_json(file if file.exists() else folder / "config.json")
    if not isinstance(said, dict):
        raise QkvError(f"{file} should hold a JSON object.")
    return said


def _ids(generation: Mapping[str, Any], key: str, vocabulary: int) -> tuple[int, ...]:
    ids = generation.get(key) or []
    if not isinstance(ids, list) or not all(type(token) is int and -1 <= token < vocabulary for token in ids):
        raise QkvError(f'In {GENERATION_FILE}, "{key}" must be a list of tokens below {vocabulary}.')
    return tuple(token for token in ids if token >= 0)


def _heads(generation: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    heads = generation.get("alignment_heads") or []
    pairs = isinstance(heads, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in heads)
    if not pairs or not all(type(number) is int and number >= 0 for pair in heads for number in pair):
        raise QkvError(f'In {GENERATION_FILE}, "alignment_heads" must be a list of pairs: a layer and a head.')
    return tuple((layer, head) for layer, head in heads)
