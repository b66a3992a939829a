"""Whisper as CTranslate2 keeps it, as `faster-whisper` uses it, as a published folder.

    python -m tools.ctranslate2 FOLDER OUT

A folder holds a `model.bin` and two small files beside it.

The file holds a version, a name, and named arrays, each with its shape, its kind and its bytes. Only plain numbers are
read: what was rounded to whole numbers is another model.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from qkv.data.published_tokenizer import read_tokenizer
from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.models.whisper import WhisperSizes
from qkv.weights.load import load_model
from qkv.weights.maps.whisper import CONFIG
from qkv.weights.new_folder import copy_beside
from qkv.weights.save import CONFIG_FILE
from qkv.weights.shards import SHARD_BYTES, write_shards

MODEL_FILE = "model.bin"
NAME = "WhisperSpec"
VERSIONS = range(5, 8)  # of the file: older ones keep shapes another way
KINDS = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
MOST_AXES = 8
GELU = 3
# What a file may say of how it computes, and the value that is Whisper's.
SAID = {
    "activation": GELU, "alibi": 0, "pre_norm": 1, "scale_embeddings": 0, "start_from_zero_embedding": 0,
    "multi_query_attention": 0, "parallel_residual": 0,
}  # fmt: skip
LEFT_OUT = {"decoder/alignment_heads", "decoder/alignment_layer"}  # of its translators
NORMS = {"gamma": "weight", "beta": "bias"}
STEPS = {
    "self_attention/layer_norm": "self_attn_layer_norm",
    "attention/layer_norm": "encoder_attn_layer_norm",
    "ffn/layer_norm": "final_layer_norm",
}
LINEAR = {
    "self_attention/linear_1": "self_attn.out_proj",
    "attention/linear_0": "encoder_attn.q_proj",
    "attention/linear_2": "encoder_attn.out_proj",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
}
JOINED = {"self_attention/linear_0": ("self_attn", "qkv"), "attention/linear_1": ("encoder_attn", "kv")}
OUTSIDE = {
    "encoder/conv1/weight": "model.encoder.conv1.weight",
    "encoder/conv1/bias": "model.encoder.conv1.bias",
    "encoder/conv2/weight": "model.encoder.conv2.weight",
    "encoder/conv2/bias": "model.encoder.conv2.bias",
    "encoder/position_encodings/encodings": "model.encoder.embed_positions.weight",
    "decoder/position_encodings/encodings": "model.decoder.embed_positions.weight",
    "decoder/embeddings/weight": "model.decoder.embed_tokens.weight",
}


def publish(folder: Path, out: Path) -> None:
    """Write the folder that the reference library has for it, which is read once to try it."""
    config, tensors, beside = read_ctranslate2(folder)
    out.mkdir(parents=True)
    write_shards(out, tensors, SHARD_BYTES)
    write_json(out / CONFIG_FILE, config)
    copy_beside(folder, out)
    for name, content in beside.items():
        write_json(out / name, content)
    load_model(out)


def read_ctranslate2(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
    """A folder as a published one: its configuration, its tensors, and further files of JSON by their names."""
    arrays = read_arrays(folder / MODEL_FILE)
    heads = {side: int(_scalar(arrays, f"{side}/num_heads")) for side in ("encoder", "decoder")}
    tensors = published_tensors(arrays)
    sizes = _sizes(tensors, heads)
    tokenizer = read_tokenizer(folder)
    end, start = tokenizer.id_of("<|endoftext|>"), tokenizer.id_of("<|startoftranscript|>")
    special = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    config = {**CONFIG.write(sizes), "architectures": ["WhisperForConditionalGeneration"], **special}
    beside = {"generation_config.json": {**special, **_generation(folder, tokenizer.id_of("<|notimestamps|>"), sizes)}}
    if not (folder / "preprocessor_config.json").exists():
        beside["preprocessor_config.json"] = {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": sizes.mels,
            "sampling_rate": 16000,
            "hop_length": 160,
            "n_fft": 400,
            "chunk_length": 30,
        }
    return config, tensors, beside


def _generation(folder: Path, no_timestamps: int, sizes: WhisperSizes) -> dict[str, Any]:
    """What the folder says of writing, by the names that others know it by."""
    said = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    if not isinstance(said, dict):
        raise QkvError(f"{folder / 'config.json'} should hold a JSON object.")
    names = {
        "alignment_heads": "alignment_heads",
        "suppress_ids": "suppress_tokens",
        "suppress_ids_begin": "begin_suppress_tokens",
    }
    known = {theirs: said[ours] for ours, theirs in names.items() if ours in said}
    return {
        **known,
        "no_timestamps_token_id": no_timestamps,
        "prev_sot_token_id": no_timestamps - 2,
        "is_multilingual": sizes.vocabulary >= 51865,
        "max_initial_timestamp_index": 50,
        "max_length": sizes.target_positions,
    }


def read_arrays(file: Path) -> dict[str, Tensor]:
    """The named arrays of a file; two names may stand for one."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        try:
            version = _number(stream, "<I")
            name = _text(stream)
            if version not in VERSIONS or name != NAME:
                raise QkvError(
                    f"{file} is a {name} of version {version}; qkv reads {NAME} of version {VERSIONS[0]} on."
                )
            _number(stream, "<I")  # which revision of that kind
            arrays: dict[str, Tensor] = {}
            for _ in range(_number(stream, "<I")):
                name, array = _array(stream, file, size)
                arrays[name] = array
            for _ in range(_number(stream, "<I")):
                alias, of = _text(stream), _text(stream)
                if of not in arrays:
                    raise QkvError(f"{file} names {of} twice and does not hold it.")
                arrays[alias] = arrays[of]
        except (struct.error, UnicodeDecodeError) as error:
            raise QkvError(f"{file} is broken or was cut short.") from error
    return arrays


def _array(stream: BinaryIO, file: Path, size: int) -> tuple[str, Tensor]:
    name = _text(stream)
    axes = _number(stream, "<B")
    if axes > MOST_AXES:
        raise QkvError(f"{file} gives {name} {axes} axes, which cannot be.")
    shape = [_number(stream, "<I") for _ in range(axes)]
    kind, length = _number(stream, "<B"), _number(stream, "<I")
    if kind >= len(KINDS):
        raise QkvError(f"{file} keeps {name} in a way that qkv does not know.")
    count = 1
    for extent in shape:
        count *= extent
    if length != count * KINDS[kind].itemsize or stream.tell() + length > size:
        raise QkvError(f"{file} is broken or was cut short: {name} does not have the {length:,} bytes that it says.")
    if not length:
        return name, torch.zeros(shape, dtype=KINDS[kind])
    return name, torch.frombuffer(bytearray(stream.read(length)), dtype=KINDS[kind]).reshape(shape)


def _number(stream: BinaryIO, form: str) -> int:
    return int(struct.unpack(form, stream.read(struct.calcsize(form)))[0])


def _text(stream: BinaryIO) -> str:
    return stream.read(_number(stream, "<H")).decode().removesuffix("\0")


def _scalar(arrays: Mapping[str, Tensor], name: str) -> float:
    if name not in arrays or arrays[name].numel() != 1:
        raise QkvError(f"The model file does not say {name}.")
    return float(arrays[name])


def published_tensors(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The arrays by the names that the reference library gives them. Every array is used, or stops the reading."""
    found: dict[str, Tensor] = {}
    for name, array in arrays.items():
        side, _, rest = name.partition("/")
        layer, _, inner = rest.partition("/")
        if name in LEFT_OUT or rest == "num_heads":
            continue
        if rest in SAID:
            if float(array) != SAID[rest]:
                raise QkvError(f"The model file has {name} {float(array):g}; Whisper's is {SAID[rest]}.")
        elif name == "decoder/projection/weight":
            if not torch.equal(array, arrays["decoder/embeddings/weight"]):
                raise QkvError("The model file has logits of their own; Whisper's are tied.")
        elif not array.is_floating_point():
            raise QkvError(f"The model file keeps {name} in whole numbers: give one that was not quantised.")
        elif name in OUTSIDE:
            found[OUTSIDE[name]] = array
        elif layer == "layer_norm" and inner in NORMS:
            found[f"model.{side}.layer_norm.{NORMS[inner]}"] = array
        elif layer.removeprefix("layer_").isdecimal():
            found |= _of_layer(f"model.{side}.layers.{layer.removeprefix('layer_')}", inner, array)
        else:
            raise QkvError(f"The model file holds {name}, which Whisper has no place for.")
    return found


def _of_layer(prefix: str, name: str, array: Tensor) -> dict[str, Tensor]:
    step, _, kind = name.rpartition("/")
    if step in STEPS and kind in NORMS:
        return {f"{prefix}.{STEPS[step]}.{NORMS[kind]}": array}
    if step in LINEAR and kind in ("weight", "bias"):
        return {f"{prefix}.{LINEAR[step]}.{kind}": array}
    if step in JOINED and kind in ("weight", "bias"):
        where, letters = JOINED[step]
        parts = dict(zip(letters, array.chunk(len(letters)), strict=True))
        if kind == "bias" and bool(parts.pop("k").any()):
            raise QkvError(f"The model file has a bias on the keys of {prefix}; Whisper has none.")
        return {f"{prefix}.{where}.{letter}_proj.{kind}": part.clone() for letter, part in parts.items()}
    raise QkvError(f"The model file holds {name} in {prefix}, which Whisper has no place for.")


def _sizes(tensors: Mapping[str, Tensor], heads: Mapping[str, int]) -> WhisperSizes:
    def shape(name: str) -> list[int]:
        if name not in tensors:
            raise QkvError(f"The model file lacks what is {name} elsewhere.")
        return list(tensors[name].shape)

    def layers(side: str) -> int:
        return sum(name.startswith(f"model.{side}.layers.") and name.endswith(".fc1.bias") for name in tensors)

    vocabulary, width = shape("model.decoder.embed_tokens.weight")
    return WhisperSizes(
        vocabulary=vocabulary,
        mels=shape("model.encoder.conv1.weight")[1],
        source_positions=shape("model.encoder.embed_positions.weight")[0],
        target_positions=shape("model.decoder.embed_positions.weight")[0],
        width=width,
        encoder_hidden=shape("model.encoder.layers.0.fc1.weight")[0],
        decoder_hidden=shape("model.decoder.layers.0.fc1.weight")[0],
        encoder_heads=heads["encoder"],
        decoder_heads=heads["decoder"],
        encoder_layers=layers("encoder"),
        decoder_layers=layers("decoder"),
    )


if __name__ == "__main__":
    publish(Path(sys.argv[1]), Path(sys.argv[2]))
