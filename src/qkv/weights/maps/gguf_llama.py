"""Llama as llama.cpp writes it into a GGUF file, turned into Hugging Face's names: configuration and tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.weights.gguf import GgufFile
from qkv.weights.maps.rotary_rows import PairedRows
from qkv.weights.rules import Map, Rename, to_ours

# fmt: off
MODULES = [
    ("token_embd",             "model.embed_tokens"),
    ("blk.{}.attn_norm",       "model.layers.{}.input_layernorm"),
    ("blk.{}.attn_q",          "model.layers.{}.self_attn.q_proj"),
    ("blk.{}.attn_k",          "model.layers.{}.self_attn.k_proj"),
    ("blk.{}.attn_v",          "model.layers.{}.self_attn.v_proj"),
    ("blk.{}.attn_output",     "model.layers.{}.self_attn.o_proj"),
    ("blk.{}.ffn_norm",        "model.layers.{}.post_attention_layernorm"),
    ("blk.{}.ffn_gate",        "model.layers.{}.mlp.gate_proj"),
    ("blk.{}.ffn_up",          "model.layers.{}.mlp.up_proj"),
    ("blk.{}.ffn_down",        "model.layers.{}.mlp.down_proj"),
    ("output_norm",            "model.norm"),
    ("output",                 "lm_head"),
]
# fmt: on
ROTATED = {"blk.{}.attn_q": "num_attention_heads", "blk.{}.attn_k": "num_key_value_heads"}
ATTENTION_BIASES = ("attn_q", "attn_k", "attn_v", "attn_output")
FEED_FORWARD_BIASES = ("ffn_gate", "ffn_up", "ffn_down")
ROTARY_FACTORS = "rope_freqs.weight"  # what each frequency is divided by

# Metadata, named after "llama.": whole numbers,
WHOLE = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
# others that are read below,
READ = {
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
    "vocab_size", "rope.freq_base", "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor",
}  # fmt: skip
# those that must say what a Llama does anyway,
FIXED: dict[str, Any] = {"expert_count": 0, "expert_used_count": 0, "attention.causal": True}
# and those that change nothing: what the file was made from, and how it was scaled when trained.
ABOUT_OTHER_THINGS = {"tensor_data_layout", "rope.scaling.finetuned", "rope.scaling.original_context_length"}
SPECIAL_TOKENS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "padding_token_id": "pad_token_id"}

# How Llama 3.1 and later stretch their positions; only the factor differs between them, and the file holds the outcome.
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def llama_of_gguf(file: GgufFile) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """`config.json` and the tensors that Hugging Face's Llama would have; the tensors are decoded."""
    architecture = file.metadata.get("general.architecture")
    if architecture != "llama":
        raise QkvError(f"{file.path} holds a model of the architecture {architecture!r:.60}; read here is 'llama'.")
    config = _config(file)
    held = {name: file.tensors[name] for name in file.tensors if name != ROTARY_FACTORS}
    wanted = _wanted(config, file)
    return config, to_ours(rules(config), held, wanted)


def rules(config: Mapping[str, Any]) -> Map:
    """From GGUF's tensors to Hugging Face's, for a model of this configuration."""
    return [
        PairedRows(f"{theirs}.{kind}", f"{ours}.{kind}", config[ROTATED[theirs]])
        if theirs in ROTATED
        else Rename(f"{theirs}.{kind}", f"{ours}.{kind}")
        for theirs, ours in MODULES
        for kind in ("weight", "bias")
    ]


def _wanted(config: Mapping[str, Any], file: GgufFile) -> set[str]:
    biased = {name for name in (*ATTENTION_BIASES, *FEED_FORWARD_BIASES) if _has_bias(file, name)}
    wanted = set()
    for theirs, ours in MODULES:
        kinds = ["weight", "bias"] if theirs.removeprefix("blk.{}.") in biased else ["weight"]
        if ours == "lm_head" and config["tie_word_embeddings"]:
            continue
        layers = range(config["num_hidden_layers"]) if "{}" in ours else [0]
        wanted |= {f"{ours.format(layer)}.{kind}" for layer in layers for kind in kinds}
    return wanted


def _has_bias(file: GgufFile, module: str) -> bool:
    return f"blk.0.{module}.bias" in file.notes


def _config(file: GgufFile) -> dict[str, Any]:
    known = {*WHOLE, *READ, *FIXED, *ABOUT_OTHER_THINGS}
    said = {key.removeprefix("llama."): value for key, value in file.metadata.items() if key.startswith("llama.")}
    if unknown := sorted(set(said) - known):
        raise QkvError(f"{file.path} says things that could change what Llama computes: llama.{unknown[0]:.60}.")
    for key, meant in FIXED.items():
        if said.get(key, meant) != meant:
            raise QkvError(f"{file.path} has llama.{key} {said[key]!r:.40}; a Llama has {meant!r}.")
    config: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu"}
    config |= {ours: _whole(file, said, theirs) for theirs, ours in WHOLE.items()}
    heads, width = config["num_attention_heads"], config["hidden_size"]
    if config["num_hidden_layers"] > len(file.notes):
        raise QkvError(f"{file.path} announces {config['num_hidden_layers']} layers, more than it has tensors.")
    head_width = _whole(file, said, "attention.key_length", default=max(1, width // heads))
    for key in ("attention.value_length", "rope.dimension_count"):
        if said.get(key, head_width) != head_width:
            raise QkvError(
                f"{file.path} has llama.{key} {said[key]!r:.40}; a Llama has the width of a head, {head_width}."
            )
    if "token_embd.weight" not in file.notes:
        raise QkvError(f"{file.path} has no tensor token_embd.weight: it holds a vocabulary, not a model.")
    config |= {
        "vocab_size": _whole(file, said, "vocab_size", default=file.notes["token_embd.weight"].shape[0]),
        "num_key_value_heads": _whole(file, said, "attention.head_count_kv", default=heads),
        "head_dim": head_width,
        "rms_norm_eps": _number(file, said, "attention.layer_norm_rms_epsilon"),
        "rope_theta": _number(file, said, "rope.freq_base", default=10000.0),
        "attention_bias": any(_has_bias(file, name) for name in ATTENTION_BIASES),
        "mlp_bias": any(_has_bias(file, name) for name in FEED_FORWARD_BIASES),
        "tie_word_embeddings": "output.weight" not in file.notes,
    }
    if scaling := _rotary_scaling(file, said, config):
        config["rope_scaling"] = scaling
    tokens = {ours: file.metadata.get(f"tokenizer.ggml.{theirs}") for theirs, ours in SPECIAL_TOKENS.items()}
    return config | {name: number for name, number in tokens.items() if type(number) is int}


def _whole(file: GgufFile, said: Mapping[str, Any], key: str, default: int | None = None) -> int:
    number = said.get(key, default)
    if type(number) is not int or not 0 < number < 2**31:
        raise QkvError(f"{file.path} has llama.{key} {number!r:.40}; it should be one whole number above 0.")
    return number


def _number(file: GgufFile, said: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """The shortest number that is the same in single precision: 1e-05, not 9.99999974e-06."""
    number = said.get(key, default)
    if type(number) is not float or not 0 < number < math.inf:
        raise QkvError(f"{file.path} has llama.{key} {number!r:.40}; it should be a number above 0.")
    return float(str(np.float32(number)))


def _rotary_scaling(file: GgufFile, said: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = said.get("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise QkvError(
            f"{file.path} stretches its rotary positions by {kind!r:.40}; read here are 'none' and 'linear'."
        )
    if kind == "linear":
        if ROTARY_FACTORS in file.notes:
            raise QkvError(
                f"{file.path} stretches its rotary positions twice: by llama.rope.scaling and {ROTARY_FACTORS}."
            )
        return {"rope_type": "linear", "factor": _number(file, said, "rope.scaling.factor")}
    if ROTARY_FACTORS not in file.notes:
        return None
    factors = file.tensors[ROTARY_FACTORS].double()
    factor = float(factors.max())
    expected = _llama3_factors(factor, config["rope_theta"], config["head_dim"])
    if factors.shape != expected.shape or not torch.allclose(factors, expected, rtol=1e-4):
        raise QkvError(
            f"{file.path} stretches its rotary positions by {ROTARY_FACTORS}, in another way than Llama 3 does."
        )
    return {"rope_type": "llama3", "factor": factor, **LLAMA3}


def _llama3_factors(factor: float, base: float, width: int) -> Tensor:
    """Fast turns stay, slow ones are slowed by the factor, those between by something between."""
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    turns = LLAMA3["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return 1 / ((1 - share) / factor + share)
