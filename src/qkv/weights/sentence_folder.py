"""Folders of sentence embeddings as they are published: an encoder, and beside it how its stream becomes one vector.

`modules.json` lists the steps, each with a folder of its own: a Transformer, a Pooling, perhaps a Normalize. What the
steps say must be understood whole, as the encoder's own configuration must. [reimers2019 §3]
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.files import WRITE_ERRORS, read_json, write_json
from qkv.models.head_choice import HeadChoice

MODULES_FILE, TEXT_FILE, PROMPT_FILE = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
POOLING, NORMALIZE = "1_Pooling", "2_Normalize"
STEPS = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
# Their ways to pool, the ones we have first: the switch that turns each on, its later name, and ours.
WAYS = {
    "pooling_mode_mean_tokens": ("mean", "mean"),
    "pooling_mode_cls_token": ("cls", "first"),
    "pooling_mode_lasttoken": ("lasttoken", "last"),
    "pooling_mode_max_tokens": ("max", None),
    "pooling_mode_mean_sqrt_len_tokens": ("mean_sqrt_len_tokens", None),
    "pooling_mode_weightedmean_tokens": ("weightedmean", None),
}


@dataclass(frozen=True)
class SentenceFolder:
    """What a folder says of its embeddings: how they are pooled, and how its texts are cut."""

    head: HeadChoice
    longest: int | None  # tokens of a text that are read, special ones counted; None: as many as the encoder reads
    lowercase: bool


def is_sentence_folder(folder: Path) -> bool:
    return (folder / MODULES_FILE).exists()


def read_sentence_folder(folder: Path) -> SentenceFolder:
    """The steps of `modules.json`; one that we do not have is an error."""
    if not is_sentence_folder(folder):
        raise QkvError(f"{folder} has no {MODULES_FILE}, so it does not say how its sentences are pooled.")
    steps = _steps(folder)
    if [name for name, _ in steps] not in STEPS or steps[0][1]:
        listed = ", ".join(f"{name} in {path}" if path else name for name, path in steps)
        raise QkvError(
            f"{folder / MODULES_FILE} has the steps {listed}; qkv knows a Transformer in the folder itself, a Pooling, "
            "and a Normalize."
        )
    head = HeadChoice("embedding", pooling=_pooling(folder / steps[1][1]), unit_length=len(steps) == 3)
    _check_prompts(folder / PROMPT_FILE)
    return SentenceFolder(head, *read_text_settings(folder))


def _steps(folder: Path) -> list[tuple[str, str]]:
    """The kind and the place of each step. A place leads to no other folder than one inside."""
    listed = read_json(folder / MODULES_FILE)
    steps = []
    for step in listed if isinstance(listed, list) else [None]:
        kind, path = (step.get("type"), step.get("path")) if isinstance(step, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(path, str) or Path(path).name != path:
            raise QkvError(
                f'{folder / MODULES_FILE} must list steps, each with its "type" and the "path" of its folder.'
            )
        steps.append((kind.rpartition(".")[2], path))
    return steps


def _pooling(folder: Path) -> str:
    file = folder / "config.json"
    config = _settings(file)
    named, switched = config.get("pooling_mode"), [key for key in WAYS if config.get(key)]
    ways = [way for key, way in WAYS.items() if key in switched or way[0] == named]
    known = {*WAYS, "pooling_mode", "word_embedding_dimension", "embedding_dimension", "include_prompt"}
    if unknown := sorted(config.keys() - known):
        raise QkvError(f"{file} has keys that could change what is pooled: {', '.join(unknown)}.")
    if not config.get("include_prompt", True):
        raise QkvError(f"{file} leaves prompts out of what is pooled, which qkv does not.")
    if len(ways) != 1 or ways[0][1] is None or (named is not None and named != ways[0][0]):
        asked = ", ".join(map(str, [*switched, *([named] if named is not None else [])])) or "nothing"
        raise QkvError(f"{file} asks for {asked}; qkv pools by one of mean, cls and lasttoken.")
    return ways[0][1]


def read_text_settings(folder: Path) -> tuple[int | None, bool]:
    """How many tokens of a text are read, and whether in small letters; also a folder of our own may say it."""
    file = folder / TEXT_FILE
    config = _settings(file) if file.exists() else {}
    if unknown := sorted(config.keys() - {"max_seq_length", "do_lower_case"}):
        raise QkvError(f"{file} has keys that could change how texts are read: {', '.join(unknown)}.")
    longest, lowercase = config.get("max_seq_length"), config.get("do_lower_case", False)
    if not (longest is None or (type(longest) is int and longest > 0)) or type(lowercase) is not bool:
        raise QkvError(f'In {file}, "max_seq_length" must be a whole number and "do_lower_case" true or false.')
    return longest, lowercase


def _check_prompts(file: Path) -> None:
    """Prompts that a person may ask for are theirs to give; one that stands before every text changes what is read."""
    config = _settings(file) if file.exists() else {}
    if config.get("default_prompt_name") is not None:
        raise QkvError(f"{file} puts the prompt {config['default_prompt_name']!r} before every text; qkv puts none.")


def _settings(file: Path) -> dict[str, Any]:
    config = read_json(file)
    if not isinstance(config, dict):
        raise QkvError(f"{file} must hold an object of named settings.")
    return config


def write_text_settings(folder: Path, longest: int | None, lowercase: bool) -> None:
    write_json(folder / TEXT_FILE, {"max_seq_length": longest, "do_lower_case": lowercase})


def write_sentence_folder(folder: Path, head: HeadChoice, width: int, longest: int | None) -> None:
    """What stands beside an encoder so that others pool its stream as `head` does."""
    steps = [("", "Transformer"), (POOLING, "Pooling"), *([(NORMALIZE, "Normalize")] if head.unit_length else [])]
    pooling = {key: way[1] == head.pooling for key, way in WAYS.items()}
    try:
        for path, _ in steps:
            (folder / path).mkdir(parents=True, exist_ok=True)
        write_json(folder / POOLING / "config.json", {"word_embedding_dimension": width, **pooling})
        if not (folder / TEXT_FILE).exists():  # what was said of the texts before still holds
            write_text_settings(folder, longest, lowercase=False)
        write_json(
            folder / MODULES_FILE,
            [
                {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
                for number, (path, kind) in enumerate(steps)
            ],
        )
    except WRITE_ERRORS as error:
        raise QkvError(f"Cannot write to {folder}: {error}; make room or name another folder.") from error
