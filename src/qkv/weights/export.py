"""A model of ours, or one that was read here, as a folder that the reference library opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qkv.data.letters import VOCABULARY_FILE
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.models.catalogue import Model, head_of
from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.models.sound_model import SoundModel
from qkv.weights.hub import local_folder
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.new_folder import DTYPES, cast, copy_beside, new_folder
from qkv.weights.picture_folder import write_published_preprocessing
from qkv.weights.published import save_published
from qkv.weights.save import CONFIG_FILE, GENERATION_FILE, tensors_of
from qkv.weights.shards import SHARD_BYTES
from qkv.weights.sound_folder import letters_of, write_features

TOKENIZER_FILE = "tokenizer.json"
TARGET_FILE = "target_tokenizer.json"  # of a translator with one for each side
# The roles of our tokenizers, and what a configuration calls their ids.
ROLES = {
    "pad": "pad_token_id",
    "start": "bos_token_id",
    "end": "eos_token_id",
    "classifier": "cls_token_id",
    "separator": "sep_token_id",
}
KEPT = (*ROLES.values(), "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids",
        "task_specific_params", "prefix", "tokenizer_class")  # fmt: skip
GENERATED = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


def export(
    folder: Path | str,
    out: Path | str,
    *,
    dtype: str = "float32",
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
) -> Path:
    """Write the model of a folder for the reference library, with its tokenizer and its special tokens."""
    folder, out = local_folder(folder), Path(out)
    if dtype not in DTYPES:
        raise QkvError(f"There is no precision {dtype!r} to write in: there are {', '.join(DTYPES)}.")
    model: Model = load_model(folder)
    if folder.is_file():
        raise QkvError(f"{folder} is a model in one file: `qkv convert` rewrites it as a folder.")
    config = read_json(folder / CONFIG_FILE)
    more = special_tokens(model, folder, config)
    cast(tensors_of(model), dtype)  # numbers that do not fit are told before anything is written
    with new_folder(out, folder, overwrite) as passing:
        copy_beside(folder, passing)
        save_published(model.to(DTYPES[dtype]), passing, PUBLISHED, {**more, "dtype": dtype}, shard_bytes)
        writes = isinstance(model, SequenceToSequence) or getattr(head_of(model), "kind", "") == "language"
        if writes and not (passing / GENERATION_FILE).exists():
            # Without it the reference takes its family's own habits, such as an end that Marian is forced to write.
            write_json(passing / GENERATION_FILE, {key: more[key] for key in GENERATED if more.get(key) is not None})
        write_features(passing, model)
        write_published_preprocessing(folder, passing, model)
    return out


def special_tokens(model: Model, folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """What a published configuration says of special tokens; for a folder of our own, what its tokenizer knows."""
    if "model_type" in config:
        return {key: config[key] for key in KEPT if key in config}
    if isinstance(model, SoundModel) and (folder / VOCABULARY_FILE).exists():
        return {"pad_token_id": letters_of(folder, model).blank}  # by which the other library knows the blank
    files = [folder / name for name in (TOKENIZER_FILE, TARGET_FILE) if (folder / name).exists()]
    if not files:
        return {"pad_token_id": None}
    tokenizer = TextTokenizer.load(files[0])
    more: dict[str, Any] = {key: tokenizer.role(role) for role, key in ROLES.items() if tokenizer.has(role)}
    if isinstance(model, SequenceToSequence):
        more |= {"decoder_start_token_id": tokenizer.start, "forced_eos_token_id": None}
    return more
