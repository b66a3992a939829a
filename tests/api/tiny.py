"""A training of seconds: a dozen pairs, a thousand parameters, a few steps."""

from pathlib import Path
from typing import Any

from rich.console import Console

from qkv.api.choices import NewTokenizer
from qkv.api.training import train_text_to_text
from qkv.generate.text import TextToText
from qkv.train.reporter import Reporter
from qkv.train.settings import TrainSettings

WORDS = ("cat", "act", "tac", "dog", "god", "cot", "toc", "tag", "gat", "cog", "tog", "ago", "goat", "coat")
PAIRS = [(word, " ".join(word[::-1].upper())) for word in WORDS]
TRAIN, VALID = PAIRS[:-3], PAIRS[-3:]
SIZES = {"width": 8, "hidden": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}


def settings(**changes: Any) -> TrainSettings:
    return TrainSettings(**{"steps": 4, "log_every": 1, "device": "cpu", **changes})


def train_tiny(folder: Path, **changes: Any) -> TextToText:
    """`train_text_to_text` with everything small that is not said otherwise."""
    choices = {
        "valid": VALID,
        "tokenizer": NewTokenizer("characters"),
        "target_tokenizer": NewTokenizer("symbols"),
        "sizes": SIZES,
        "settings": settings(),
        "reporter": Reporter(Console(quiet=True)),
    }
    return train_text_to_text(changes.pop("pairs", TRAIN), folder, **{**choices, **changes})
