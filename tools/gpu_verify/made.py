"""Models of what no command trains: `python -m tools.gpu_verify.made READER FOLDER`, by the name of who reads with it.

They are untrained, but for a small Whisper.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from qkv.api.choices import DESK_SIZES
from qkv.api.loading import use_of
from qkv.data.preprocessing import HALF, Exactly, Normalise, Preprocessing
from qkv.data.sound_features import FilterBank, LogMel
from qkv.data.tokenizer import TextTokenizer
from qkv.generate.image_readers import use_of_images
from qkv.generate.keypoints import KeypointFinder
from qkv.generate.sound_readers import SOUND_USES
from qkv.models.catalogue import build, find_family
from qkv.models.head_choice import HeadChoice
from tools.gpu_verify import made_speech
from tools.gpu_verify.materials import SENTENCES


def make(reader: str, folder: Path) -> None:
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    MAKERS[reader](folder)


def built(family: str, head: HeadChoice | None = None, **sizes: Any) -> Any:
    return build(family, find_family(family).sizes({**DESK_SIZES[family], **sizes}), head)


def of_texts(family: str, head: HeadChoice, folder: Path) -> None:
    tokenizer = TextTokenizer.train("wordpiece", SENTENCES, vocabulary=200)
    sizes = {"end": tokenizer.size - 1} if family == "clip-text" else {}
    use_of(built(family, head, vocabulary=tokenizer.size, **sizes), tokenizer).save(folder)


def of_pictures(family: str, head: HeadChoice, folder: Path) -> None:
    model = built(family, head)
    prepared = Preprocessing(
        resize=Exactly(model.sizes.image, model.sizes.image), normalise=Normalise(1 / 255, HALF, HALF)
    )
    use_of_images(model, prepared).save(folder)


def of_points(folder: Path) -> None:
    model = built("vitpose", HeadChoice("keypoints", ("left", "right")))
    KeypointFinder(model, Preprocessing(resize=Exactly(model.sizes.image, model.sizes.image_width))).save(folder)


def of_sounds(family: str, head: HeadChoice, features: Any, folder: Path) -> None:
    SOUND_USES[head.kind](built(family, head), features).save(folder)


MAKERS: dict[str, Callable[[Path], None]] = {
    "StateReader": lambda folder: of_texts("bert", HeadChoice("states"), folder),
    "Describer": lambda folder: of_texts("clip-text", HeadChoice("projection"), folder),
    "Transcriber": made_speech.make,
    "SoundEncoder": lambda folder: of_sounds("ast", HeadChoice("embedding", pooling="mean"), FilterBank(), folder),
    "SoundStateReader": lambda folder: of_sounds("whisper-encoder", HeadChoice("states"), LogMel(), folder),
    "ImageEncoder": lambda folder: of_pictures("clip-image", HeadChoice("projection"), folder),
    "ImageStateReader": lambda folder: of_pictures("vit", HeadChoice("states"), folder),
    "KeypointFinder": of_points,
}

if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
