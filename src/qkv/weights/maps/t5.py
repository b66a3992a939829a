"""T5 as Hugging Face's transformers saves it, versions 1.0 and 1.1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from qkv.models.head_choice import HeadChoice
from qkv.models.t5 import T5Sizes
from qkv.weights.config_map import ConfigMap, Size
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Copy, Drop, Map, Rename, rename_modules

# fmt: off
MODULES = [
    ("encoder.block.{}.layer.0.SelfAttention.q",    "encoder.blocks.{}.attention.mixer.project.query"),
    ("encoder.block.{}.layer.0.SelfAttention.k",    "encoder.blocks.{}.attention.mixer.project.key"),
    ("encoder.block.{}.layer.0.SelfAttention.v",    "encoder.blocks.{}.attention.mixer.project.value"),
    ("encoder.block.{}.layer.0.SelfAttention.o",    "encoder.blocks.{}.attention.mixer.out"),
    ("encoder.block.{}.layer.0.layer_norm",         "encoder.blocks.{}.attention.norm"),
    ("encoder.block.{}.layer.1.DenseReluDense.wo",  "encoder.blocks.{}.feed_forward.mixer.outer"),
    ("encoder.block.{}.layer.1.layer_norm",         "encoder.blocks.{}.feed_forward.norm"),
    ("encoder.final_layer_norm",                    "encoder.norm"),
    ("decoder.block.{}.layer.0.SelfAttention.q",    "decoder.blocks.{}.attention.mixer.project.query"),
    ("decoder.block.{}.layer.0.SelfAttention.k",    "decoder.blocks.{}.attention.mixer.project.key"),
    ("decoder.block.{}.layer.0.SelfAttention.v",    "decoder.blocks.{}.attention.mixer.project.value"),
    ("decoder.block.{}.layer.0.SelfAttention.o",    "decoder.blocks.{}.attention.mixer.out"),
    ("decoder.block.{}.layer.0.layer_norm",         "decoder.blocks.{}.attention.norm"),
    ("decoder.block.{}.layer.1.EncDecAttention.q",  "decoder.blocks.{}.cross.mixer.query"),
    ("decoder.block.{}.layer.1.EncDecAttention.k",  "decoder.blocks.{}.cross.mixer.project.key"),
    ("decoder.block.{}.layer.1.EncDecAttention.v",  "decoder.blocks.{}.cross.mixer.project.value"),
    ("decoder.block.{}.layer.1.EncDecAttention.o",  "decoder.blocks.{}.cross.mixer.out"),
    ("decoder.block.{}.layer.1.layer_norm",         "decoder.blocks.{}.cross.norm"),
    ("decoder.block.{}.layer.2.DenseReluDense.wo",  "decoder.blocks.{}.feed_forward.mixer.outer"),
    ("decoder.block.{}.layer.2.layer_norm",         "decoder.blocks.{}.feed_forward.norm"),
    ("decoder.final_layer_norm",                    "decoder.norm"),
]
PLAIN = [
    ("encoder.block.{}.layer.1.DenseReluDense.wi",    "encoder.blocks.{}.feed_forward.mixer.inner"),
    ("decoder.block.{}.layer.2.DenseReluDense.wi",    "decoder.blocks.{}.feed_forward.mixer.inner"),
]
GATED = [
    ("encoder.block.{}.layer.1.DenseReluDense.wi_0",  "encoder.blocks.{}.feed_forward.mixer.inner.gate"),
    ("encoder.block.{}.layer.1.DenseReluDense.wi_1",  "encoder.blocks.{}.feed_forward.mixer.inner.value"),
    ("decoder.block.{}.layer.2.DenseReluDense.wi_0",  "decoder.blocks.{}.feed_forward.mixer.inner.gate"),
    ("decoder.block.{}.layer.2.DenseReluDense.wi_1",  "decoder.blocks.{}.feed_forward.mixer.inner.value"),
]
# fmt: on
BUCKETS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def rules(sizes: T5Sizes, head: HeadChoice | None) -> Map:
    tied = Copy("lm_head.weight", of="shared.weight")
    return [
        Copy("encoder.embed_tokens.weight", of="shared.weight"),
        Copy("decoder.embed_tokens.weight", of="shared.weight"),
        tied if sizes.tied else Rename("lm_head.weight", "head.weight"),
        Rename("shared.weight", "source.tokens.weight"),
        Rename(f"encoder.{BUCKETS}", "encoder.bias.weight"),
        Rename(f"decoder.{BUCKETS}", "decoder.bias.weight"),
        *rename_modules([*MODULES, *(GATED if sizes.feed_forward.startswith("gated-") else PLAIN)], ("weight",)),
        Drop(
            "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
            "in old files; cross-attention has no positions",
        ),
    ]


def complete(sizes: dict[str, Any]) -> dict[str, Any]:
    """Older files do not say whether the stream is shrunk before the logits: it is where these are tied."""
    layers = sizes["decoder_layers"] or sizes["encoder_layers"]
    scaled = sizes["tied"] if sizes["scaled"] is None else sizes["scaled"]
    return {**sizes, "decoder_layers": layers, "scaled": scaled}


def settle(sizes: T5Sizes, tensors: Mapping[str, Tensor]) -> T5Sizes:
    """Newer files of version 1.1 say that the logits are tied and hold a matrix of their own for them."""
    logits, shared = tensors.get("lm_head.weight"), tensors.get("shared.weight")
    own = logits is not None and shared is not None and not torch.equal(logits, shared)
    return replace(sizes, tied=False) if own else sizes


CONFIG = ConfigMap(
    name="T5",
    sizes=(
        Size("vocab_size", "vocabulary"),
        Size("d_model", "width"),
        Size("d_kv", "key_width"),
        Size("d_ff", "hidden"),
        Size("num_heads", "heads"),
        Size("num_layers", "encoder_layers"),
        Size("num_decoder_layers", "decoder_layers", absent=None),
        Size("relative_attention_num_buckets", "buckets", absent=32),
        Size("relative_attention_max_distance", "farthest", absent=128),
        Size("feed_forward_proj", "feed_forward", absent="relu"),
        Size("layer_norm_epsilon", "epsilon", absent=1e-6),
        Size("dropout_rate", "dropout", absent=0.1),
        Size("tie_word_embeddings", "tied", absent=True),
        Size("scale_decoder_outputs", "scaled", absent=None),
    ),
    fixed={"model_type": ("t5",)},
    fixed_by_default={"is_encoder_decoder": (True,), "is_decoder": (False,)},
    other=frozenset(
        {
            "n_positions",  # of the tasks it was trained on: distances have no bound
            "output_past",
            "classifier_dropout",
            "dense_act_fn",  # both follow from feed_forward_proj
            "is_gated_act",
        }
    ),
    complete=complete,
)

T5 = PublishedFamily(
    model_type="t5",
    family="t5",
    config=CONFIG,
    architectures={"": "T5ForConditionalGeneration"},
    rules=rules,
    settle=settle,
)
