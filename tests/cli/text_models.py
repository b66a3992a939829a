"""Small text models of every kind, as folders: random weights that are large enough to have opinions."""

from pathlib import Path

import torch

from qkv.api.choices import NewTokenizer
from qkv.api.loading import USES
from qkv.data.reading_tokenizer import for_reading
from qkv.models.catalogue import build, find_family
from qkv.models.head_choice import HeadChoice
from tests.api.corpus import VERSES

HEADS = {
    "masked": HeadChoice("masked"),
    "classifier": HeadChoice("classification", labels=("bad", "good")),
    "tagger": HeadChoice("tokens", labels=("NAME", "O")),
    "answerer": HeadChoice("spans"),
    "embedding": HeadChoice("embedding", pooling="mean", unit_length=True),
    "states": HeadChoice("states"),
}
SIZES = {"positions": 48, "width": 16, "hidden": 32, "heads": 2, "layers": 2}


def save_writer(folder: Path, seed: int = 0, vocabulary: int = 300) -> Path:
    save(folder, "gpt2", HeadChoice("language"), NewTokenizer("bpe", vocabulary), seed)
    return folder


def save_reader(folder: Path, kind: str, seed: int = 0) -> Path:
    save(folder, "bert", HEADS[kind], NewTokenizer("wordpiece", 200, lowercase=True), seed)
    return folder


def save(
    folder: Path, family: str, head: HeadChoice, tokenizer: NewTokenizer, seed: int, *, framed: bool = True
) -> None:
    torch.manual_seed(seed)
    cutter = tokenizer.train(VERSES)
    cutter = cutter if head.kind == "language" or not framed else for_reading(cutter)
    model = build(family, find_family(family).sizes({**SIZES, "vocabulary": cutter.size}), head).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    USES[head.kind](model, cutter).save(folder)
