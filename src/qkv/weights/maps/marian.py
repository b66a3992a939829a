"""Marian as Hugging Face's transformers saves it: tensor names and `config.json`."""

from __future__ import annotations

from qkv.weights.config_map import ConfigMap, Size
from qkv.weights.maps.two_stacks import LAYERS
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Copy, Drop, Flatten, Map, Rename, rename_modules

RULES: Map = [
    Copy("model.encoder.embed_tokens.weight", of="model.shared.weight"),
    Copy("model.decoder.embed_tokens.weight", of="model.shared.weight"),
    Copy("lm_head.weight", of="model.shared.weight"),
    Rename("model.shared.weight", "source.tokens.weight"),
    Flatten("final_logits_bias", "head.bias"),
    *rename_modules(LAYERS),
    Drop("model.encoder.embed_positions.weight", "fixed sinusoids, computed"),
    Drop("model.decoder.embed_positions.weight", "fixed sinusoids, computed"),
]

CONFIG = ConfigMap(
    name="Marian",
    sizes=(
        Size("vocab_size", "vocabulary"),
        Size("d_model", "width"),
        Size("encoder_ffn_dim", "encoder_hidden"),
        Size("decoder_ffn_dim", "decoder_hidden"),
        Size("encoder_attention_heads", "encoder_heads"),
        Size("decoder_attention_heads", "decoder_heads"),
        Size("encoder_layers", "encoder_layers"),
        Size("decoder_layers", "decoder_layers"),
        Size("dropout", "dropout"),
    ),
    fixed={
        "model_type": ("marian",),
        "activation_function": ("swish", "silu"),
        "scale_embedding": (True,),
    },
    fixed_by_default={
        "is_encoder_decoder": (True,),
        "is_decoder": (False,),
        "share_encoder_decoder_embeddings": (True,),
        "tie_word_embeddings": (True,),
        "attention_dropout": (0.0,),
        "activation_dropout": (0.0,),
        "encoder_layerdrop": (0.0,),
        "decoder_layerdrop": (0.0,),
        "normalize_before": (False,),
        "normalize_embedding": (False,),
        "add_final_layer_norm": (False,),
        "add_bias_logits": (False,),
        "static_position_embeddings": (True,),
    },
    # positions are computed to any length; translation has no classification head
    other=frozenset({"max_position_embeddings", "classif_dropout", "classifier_dropout"}),
    same=(("decoder_vocab_size", "vocab_size"), ("num_hidden_layers", "encoder_layers")),
)

MARIAN = PublishedFamily(
    model_type="marian",
    family="marian",
    config=CONFIG,
    architectures={"": "MarianMTModel"},
    rules=lambda sizes, head: RULES,
)
