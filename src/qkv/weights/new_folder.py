"""A new model folder that is there whole or not at all: written aside, tried, and only then put in its place."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.files import WRITE_ERRORS
from qkv.weights.hub import MODULES, PROCESSORS, TOKENIZERS
from qkv.weights.shards import INDEX_FILE

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BESIDE = (*TOKENIZERS, *MODULES, "generation_config.json", *PROCESSORS, "LICENSE*")


@contextmanager
def new_folder(out: Path, source: Path, overwrite: bool) -> Iterator[Path]:
    """A passing folder to write to, which becomes `out` unless something is wrong.

    A folder with files in it is in the way. With `overwrite` the new files take the place of those of the same names,
    and of all weights; other files stay.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise QkvError(f"{out} is a file: name a new folder.")
    if out.resolve() == Path(source).resolve():
        raise QkvError(f"{out} is the folder that is read: name another one to write to.")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise QkvError(f"The folder {out} is not empty: name a new one, or give --overwrite.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as passing:
            yield Path(passing)
            out.mkdir(exist_ok=True)
            for old in [*out.glob("model*.safetensors"), out / INDEX_FILE]:
                old.unlink(missing_ok=True)
            for file in sorted(Path(passing).rglob("*")):
                place = out / file.relative_to(passing)
                if file.is_dir():
                    place.mkdir(exist_ok=True)
                else:
                    file.replace(place)
    except WRITE_ERRORS as error:
        raise QkvError(f"Cannot write the model to {out}: {error}; make room or name another folder.") from error


def copy_beside(source: Path, folder: Path) -> None:
    """What stands beside a model and is no weights: tokenizer, how texts are pooled and generated, the licence."""
    for pattern in BESIDE:
        for file in source.glob(pattern):
            if file.is_file():
                place = folder / file.relative_to(source)
                place.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, place)


def cast(tensors: Mapping[str, Tensor], dtype: str | None) -> dict[str, Tensor]:
    """Tensors in another precision; None leaves them as they are. What is no fraction stays."""
    if dtype is None:
        return dict(tensors)
    if dtype not in DTYPES:
        raise QkvError(f"There is no precision {dtype!r} to write in: there are {', '.join(DTYPES)}.")
    made = {}
    for name, tensor in tensors.items():
        made[name] = tensor.to(DTYPES[dtype]) if tensor.is_floating_point() else tensor
        if tensor.is_floating_point() and bool(made[name].isinf().any() & ~tensor.isinf().any()):
            raise QkvError(f"{name} has numbers too large for {dtype}: take bfloat16 or float32.")
    return made
