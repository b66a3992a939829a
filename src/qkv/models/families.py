"""All families, each by its name. What a family is stands at the end of its file, which is opened when it is needed."""

from __future__ import annotations

from importlib import import_module

from qkv.models.family import Family
from qkv.models.when_asked import WhenAsked

_FILES = {
    "transformer": "transformer",
    "transformer-prenorm": "transformer",
    "transformer-admin": "transformer",
    "transformer-rezero": "transformer",
    "transformer-deepnorm": "transformer",
    "marian": "marian",
    "t5": "t5",
    "switch": "switch",
    "rnn": "rnn",
    "gpt1": "gpt1",
    "bert": "bert",
    "albert": "albert",
    "distilbert": "distilbert",
    "roformer": "roformer",
    "longformer": "longformer",
    "big-bird": "big_bird",
    "gpt2": "gpt2",
    "gpt3": "gpt3",
    "gpt-neo": "gpt_neo",
    "llama": "llama",
    "mixtral": "mixtral",
    "qwen3": "qwen3",
    "reformer": "reformer",
    "vit": "vit",
    "deit": "deit",
    "clip": "clip",
    "clip-text": "clip",
    "clip-image": "clip",
    "whisper": "whisper",
    "whisper-encoder": "whisper",
    "ast": "ast",
    "wav2vec2": "wav2vec2",
    "detr": "detr",
    "vitpose": "vitpose",
}


def _in_file(name: str, file: str) -> Family:
    families: tuple[Family, ...] = import_module(f"qkv.models.{file}").FAMILIES
    return next(family for family in families if family.name == name)


FAMILIES = WhenAsked(_FILES, _in_file)
