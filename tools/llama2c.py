"""A checkpoint of llama2.c, and the `tokenizer.bin` beside it, as a published folder.

    python -m tools.llama2c checkpoints/stories15m/stories15M.bin published/stories15m

The file has seven whole numbers, then float32 after float32 to the end; its vocabulary stands likewise.
Nothing in the file says what it is, so its length must be exactly what the seven numbers ask for.
"""

from __future__ import annotations

import math
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.sentencepiece import (
    BPE,
    BYTE,
    CONTROL,
    SPACE,
    UNKNOWN,
    Piece,
    SentencePieceModel,
    sentencepiece_tokenizer,
)
from qkv.data.token_roles import TokenizerNotes, frame
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.files import read_bytes, write_json
from qkv.weights.load import load_model
from qkv.weights.maps.rotary_rows import PairedRows
from qkv.weights.rules import Drop, Map, Rename, to_ours
from qkv.weights.save import CONFIG_FILE
from qkv.weights.shards import SHARD_BYTES, write_shards

HEADER = struct.Struct("<7i")
NEWER = 0x616B3432  # how files of llama2.c's later versions begin
LARGEST = 2**31  # no size of a model is near it
FIRST_BYTE = 3  # of a vocabulary: behind the unknown, the start and the end token

# The tensors in the order in which they stand, and Hugging Face's names for them. `{}` marks a tensor that stands once
# for each layer, all layers one after the other.
CLASSIFIER = "wcls"  # stands there only where the embedding does not serve for it

# fmt: off
TENSORS = [
    ("token_embedding_table",  ("vocabulary", "width"),   "model.embed_tokens.weight"),
    ("rms_att_weight.{}",      ("width",),                "model.layers.{}.input_layernorm.weight"),
    ("wq.{}",                  ("width", "width"),        "model.layers.{}.self_attn.q_proj.weight"),
    ("wk.{}",                  ("key_width", "width"),    "model.layers.{}.self_attn.k_proj.weight"),
    ("wv.{}",                  ("key_width", "width"),    "model.layers.{}.self_attn.v_proj.weight"),
    ("wo.{}",                  ("width", "width"),        "model.layers.{}.self_attn.o_proj.weight"),
    ("rms_ffn_weight.{}",      ("width",),                "model.layers.{}.post_attention_layernorm.weight"),
    ("w1.{}",                  ("hidden", "width"),       "model.layers.{}.mlp.gate_proj.weight"),
    ("w2.{}",                  ("width", "hidden"),       "model.layers.{}.mlp.down_proj.weight"),
    ("w3.{}",                  ("hidden", "width"),       "model.layers.{}.mlp.up_proj.weight"),
    ("rms_final_weight",       ("width",),                "model.norm.weight"),
    ("freq_cis_real",          ("longest", "half_head"),  None),
    ("freq_cis_imag",          ("longest", "half_head"),  None),
    (CLASSIFIER,               ("vocabulary", "width"),   "lm_head.weight"),
]
# fmt: on


def publish(file: Path, out: Path) -> None:
    """Write the folder that Hugging Face's Llama would have, which is read once to try it."""
    config, tensors = read_llama2c(file)
    out.mkdir(parents=True)
    write_shards(out, tensors, SHARD_BYTES)
    write_json(out / CONFIG_FILE, config)
    if file.with_name("tokenizer.bin").exists():
        read_tokenizer(file.with_name("tokenizer.bin")).save(out / "tokenizer.json")
    load_model(out)


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


def rules(heads: int, key_heads: int) -> Map:
    """From the tensors of llama2.c to Hugging Face's."""
    rotated = {"wq.{}": heads, "wk.{}": key_heads}
    made: list[Rename | Drop] = []
    for theirs, _, ours in TENSORS:
        if ours is None:
            made.append(Drop(theirs, "sines and cosines, which llama2.c too computes anew"))
        elif theirs in rotated:
            made.append(PairedRows(theirs, ours, rotated[theirs]))
        else:
            made.append(Rename(theirs, ours))
    return made


def read_tokenizer(file: Path) -> TextTokenizer:
    """Read the `tokenizer.bin` of llama2.c: scores and pieces of a SentencePiece BPE model, its spaces written out."""
    content = read_bytes(file)
    pieces: list[Piece] = []
    place = 4  # behind the length of the longest piece
    try:
        while place < len(content):
            score, length = struct.unpack_from("<fi", content, place)
            text = content[place + 8 : place + 8 + length].decode()
            if length < 0 or len(text.encode()) < length:
                raise ValueError
            place += 8 + length
            pieces.append(_piece(len(pieces), text, score))
    except (struct.error, ValueError) as error:
        at = f"it breaks off after {len(pieces)} pieces"
        raise QkvError(f"{file} is not a whole tokenizer of llama2.c: {at}.") from error
    if len(pieces) <= FIRST_BYTE:
        raise QkvError(f"{file} is not a tokenizer of llama2.c: it holds {len(pieces)} pieces.")
    model = SentencePieceModel(pieces=tuple(pieces), kind=BPE, byte_fallback=True, removes_spaces=False)
    tokenizer = sentencepiece_tokenizer(model)
    roles = {"unknown": pieces[0].text, "start": pieces[1].text, "end": pieces[2].text}
    frame(tokenizer, roles, True, False)
    return TextTokenizer(tokenizer, TokenizerNotes(roles=roles))


def _piece(number: int, text: str, score: float) -> Piece:
    """The piece behind a text of the file, which older files wrote as what it stands for."""
    if number < FIRST_BYTE:
        return Piece(text.strip(), score, CONTROL if number else UNKNOWN)
    name = f"<0x{number - FIRST_BYTE:02X}>"
    if number < FIRST_BYTE + 256 and text in (name, chr(number - FIRST_BYTE)):
        return Piece(name, score, BYTE)
    return Piece(text.replace(" ", SPACE), score)


def _content(path: Path, least: int, what: str) -> np.ndarray:
    if not path.is_file():
        raise QkvError(f"There is no file {path}: give a {what}.")
    try:
        if path.stat().st_size < least:
            raise QkvError(f"{path} is too short to be a {what}.")
        return np.asarray(np.memmap(path, np.uint8, mode="r"))
    except OSError as error:
        raise QkvError(f"Cannot read {path}: {(error.strerror or str(error)).lower()}.") from error


if __name__ == "__main__":
    publish(Path(sys.argv[1]), Path(sys.argv[2]))
