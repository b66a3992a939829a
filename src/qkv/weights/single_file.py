"""Models that are published as one file: GGUF."""

from __future__ import annotations

from pathlib import Path

from qkv.errors import QkvError
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from qkv.weights.extent import check_extent
from qkv.weights.gguf import read_gguf
from qkv.weights.maps.gguf_llama import llama_of_gguf
from qkv.weights.maps.llama import LLAMA
from qkv.weights.published import fill_family

# Files that people give by mistake, by how they begin.
OTHERS = {
    b"PK\x03\x04": "a pickle of torch: `qkv convert` rewrites the folder that it belongs to",
    b"\x80": "a pickle: `qkv convert` rewrites the folder that it belongs to",
    b"{": "JSON: give the folder that holds it",
}


def check_gguf(path: Path) -> None:
    """Refuse what is none. What a file is, its first bytes tell, not its name."""
    try:
        with path.open("rb") as stream:
            start = stream.read(16)
    except OSError as error:
        raise QkvError(f"Cannot read {path}: {(error.strerror or str(error)).lower()}.") from error
    if start.startswith(b"GGUF"):
        return
    if start[8:9] == b"{":
        raise QkvError(f"{path} holds tensors alone: give the folder that holds its config.json too.")
    for begin, what in OTHERS.items():
        if start.startswith(begin):
            raise QkvError(f"{path} is no model in one file but {what}.")
    raise QkvError(f"{path} is no GGUF file: give one, or the folder of a model.")


def load_single_file(path: Path) -> TextModel:
    """The model in a GGUF file, in evaluation mode and single precision, its blocks of few bits turned into floats."""
    check_gguf(path)
    config, tensors = llama_of_gguf(read_gguf(path))
    sizes = LLAMA.sizes_of(config)
    check_extent(sizes, tensors, path)
    head = HeadChoice("language")
    model = fill_family(LLAMA.family, LLAMA.rules(sizes, head), sizes, head, tensors, path)
    assert isinstance(model, TextModel)
    return model
