"""Checkpoints of llama2.c: seven whole numbers, then float32 after float32 to the end. Its vocabularies likewise.

Nothing in the file says what it is, so its length must be exactly what the seven numbers ask for.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.weights.maps.llama2c import CLASSIFIER, TENSORS, rules
from qkv.weights.rules import to_ours

HEADER = struct.Struct("<7i")
NEWER = 0x616B3432  # how files of llama2.c's later versions begin
LARGEST = 2**31  # no size of a model is near it


def read_llama2c(path: Path | str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """`config.json` and the tensors that Hugging Face's Llama would have."""
    path = Path(path)
    content = _content(path, HEADER.size, "llama2.c checkpoint")
    width, hidden, layers, heads, key_heads, vocabulary, longest = HEADER.unpack(content[: HEADER.size].tobytes())
    if width == NEWER:
        raise QkvError(f"{path} is a llama2.c checkpoint of version {hidden}; read here is version 0, without a magic.")
    shared = vocabulary > 0  # a file that holds its own classifier says so by the sign
    sizes = {
        "vocabulary": abs(vocabulary), "width": width, "hidden": hidden, "layers": layers, "longest": longest,
        "heads": heads, "key_heads": key_heads,
    }  # fmt: skip
    wrong = [name for name, size in sizes.items() if not 0 < size < LARGEST]
    if wrong or width % (2 * heads) or heads % key_heads:
        raise QkvError(f"{path} is not a llama2.c checkpoint: its first seven numbers are no sizes of a model.")
    sizes |= {"key_width": width // heads * key_heads, "half_head": width // heads // 2}
    theirs = _tensors(path, content[HEADER.size :], sizes, shared)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "vocab_size": abs(vocabulary),
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": width // heads,
        "max_position_embeddings": longest,
        # What follows stands in llama2.c itself, not in the file.
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": shared,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    wanted = {
        ours.format(layer) for name, _, ours in TENSORS if ours and not (shared and name == CLASSIFIER)
        for layer in range(layers)
    }  # fmt: skip
    return config, to_ours(rules(heads, key_heads), theirs, wanted)


def _tensors(path: Path, content: np.ndarray, sizes: dict[str, int], shared: bool) -> dict[str, Tensor]:
    """The tensors under llama2.c's names, one by one from the file."""
    kept = [(name, tuple(sizes[letter] for letter in shape)) for name, shape, _ in TENSORS]
    kept = [(name, shape) for name, shape in kept if not (shared and name == CLASSIFIER)]
    floats = sum(math.prod(shape) * (sizes["layers"] if "{}" in name else 1) for name, shape in kept)
    if 4 * floats != len(content):
        raise QkvError(
            f"{path} is not a whole llama2.c checkpoint: its first numbers ask for {4 * floats + HEADER.size:,} bytes, "
            f"and it has {len(content) + HEADER.size:,}."
        )
    tensors, place = {}, 0
    for name, shape in kept:
        for layer in range(sizes["layers"] if "{}" in name else 1):
            size = 4 * math.prod(shape)
            numbers = content[place : place + size].view("<f4").astype(np.float32)
            tensors[name.format(layer)] = torch.from_numpy(numbers).reshape(shape)
            place += size
    return tensors


def read_llama2c_vocabulary(path: Path | str) -> tuple[list[str], list[float]]:
    """The pieces of a `tokenizer.bin`, with a space for SentencePiece's mark of one, and their scores."""
    path = Path(path)
    content = _content(path, 4, "llama2.c vocabulary").tobytes()
    pieces: list[str] = []
    scores: list[float] = []
    place = 4
    while place < len(content):
        if place + 8 > len(content):
            raise QkvError(f"{path} is not a whole llama2.c vocabulary: it ends within a piece.")
        score, length = struct.unpack_from("<fi", content, place)
        piece = content[place + 8 : place + 8 + max(length, 0)]
        if len(piece) != length:
            raise QkvError(f"{path} is not a whole llama2.c vocabulary: piece {len(pieces)} would have {length} bytes.")
        try:
            pieces.append(piece.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise QkvError(f"{path} is not a llama2.c vocabulary: piece {len(pieces)} is not UTF-8.") from error
        scores.append(score)
        place += 8 + length
    return pieces, scores


def _content(path: Path, least: int, what: str) -> np.ndarray:
    if not path.is_file():
        raise QkvError(f"There is no file {path}: give a {what}.")
    try:
        if path.stat().st_size < least:
            raise QkvError(f"{path} is too short to be a {what}.")
        return np.asarray(np.memmap(path, np.uint8, mode="r"))
    except OSError as error:
        raise QkvError(f"Cannot read {path}: {(error.strerror or str(error)).lower()}.") from error
