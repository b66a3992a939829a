"""Model files of other forms as a published folder: old pickles, GGUF; and a folder in another precision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.data.gguf_tokenizer import tokenizer_of_gguf
from qkv.data.published_tokenizer import read_tokenizer
from qkv.data.splitting import split_by
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.weights.gguf import read_gguf
from qkv.weights.hub import local_folder, say_aside
from qkv.weights.load import load_model
from qkv.weights.maps.gguf_llama import llama_of_gguf
from qkv.weights.maps.timm import is_timm
from qkv.weights.new_folder import cast, copy_beside, new_folder
from qkv.weights.pickles import pickles_in, read_pickles
from qkv.weights.save import CONFIG_FILE, TENSOR_FILE
from qkv.weights.shards import INDEX_FILE, SHARD_BYTES, read_shards, write_shards
from qkv.weights.single_file import check_gguf

Read = tuple[dict[str, Any], dict[str, Tensor], TextTokenizer | None]


def convert(
    source: Path | str,
    out: Path | str,
    *,
    dtype: str | None = None,
    model_type: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
    split: str | None = None,
    offline: bool | None = None,
    say: Callable[[str], None] = say_aside,
) -> Path:
    """Rewrite a folder, or a GGUF file, as a published folder with safetensors, which is read once to try it.

    The tensors of a folder keep their names and, without a `dtype`, their precision; its tokenizer and licence come
    along. `model_type` is for folders from before `config.json` said it. With `split` the tokenizer is written as one
    that cuts texts so, where a folder does not say it: "smiles".
    """
    source = local_folder(source, offline=offline, pickles=True, say=say)
    if not source.exists():
        raise QkvError(f"There is no {source}: give a model folder or a GGUF file.")
    out = Path(out)
    with new_folder(out, source, overwrite) as passing:
        config, tensors, tokenizer = _of_folder(source, model_type) if source.is_dir() else _of_file(source, model_type)
        if dtype is not None and not is_timm(config):
            config = {key: value for key, value in config.items() if key != "torch_dtype"} | {"dtype": dtype}
        write_shards(passing, cast(tensors, dtype), shard_bytes)
        write_json(passing / CONFIG_FILE, config)
        if source.is_dir():
            copy_beside(source, passing)
        if tokenizer is not None:
            tokenizer.save(passing / "tokenizer.json")
        if split is not None:
            split_by(read_tokenizer(passing), split).save(passing / "tokenizer.json")
        _try(passing, out)
    return out


def _try(passing: Path, out: Path) -> None:
    try:
        load_model(passing)
    except QkvError as error:  # the passing name would tell a person nothing
        raise QkvError(str(error).replace(str(passing), str(out))) from error


def _of_folder(folder: Path, model_type: str | None) -> Read:
    if not (folder / CONFIG_FILE).exists():
        raise QkvError(f"The folder {folder} holds no model: it has no {CONFIG_FILE}.")
    config = read_json(folder / CONFIG_FILE)
    if not isinstance(config, dict):
        raise QkvError(f"{folder / CONFIG_FILE} should hold a JSON object.")
    if "format" in config:
        raise QkvError(f"{folder} is a folder of qkv's own: `qkv export` writes it for others.")
    if model_type is not None and config.get("model_type", model_type) != model_type:
        raise QkvError(f"{folder / CONFIG_FILE} says its model is a {config['model_type']}, not a {model_type}.")
    timm = is_timm(config) and model_type is None  # which says it in another way
    if "model_type" not in config and model_type is None and not timm:
        raise QkvError(f"{folder / CONFIG_FILE} does not say what model it is: name it, such as --model-type bert.")
    config = config if timm else {"model_type": model_type, **config}
    files = pickles_in(folder)
    safe = (folder / TENSOR_FILE).exists() or (folder / INDEX_FILE).exists()
    return config, read_shards(folder) if safe or not files else read_pickles(files), None


def _of_file(file: Path, model_type: str | None) -> Read:
    if model_type not in (None, "llama"):
        raise QkvError(f"{file} can only be a llama, not a {model_type}.")
    check_gguf(file)
    opened = read_gguf(file)
    return *llama_of_gguf(opened), tokenizer_of_gguf(opened.metadata)
