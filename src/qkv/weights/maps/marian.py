"""Marian as Hugging Face's transformers saves it: tensor names and `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.errors import QkvError
from qkv.models.marian import MarianSizes
from qkv.weights.rules import Copy, Drop, Flatten, Map, Rename, rename_modules

# fmt: off
MODULES = [
    ("model.encoder.layers.{}.self_attn.q_proj",          "encoder.blocks.{}.attention.mixer.project.query"),
    ("model.encoder.layers.{}.self_attn.k_proj",          "encoder.blocks.{}.attention.mixer.project.key"),
    ("model.encoder.layers.{}.self_attn.v_proj",          "encoder.blocks.{}.attention.mixer.project.value"),
    ("model.encoder.layers.{}.self_attn.out_proj",        "encoder.blocks.{}.attention.mixer.out"),
    ("model.encoder.layers.{}.self_attn_layer_norm",      "encoder.blocks.{}.attention.norm"),
    ("model.encoder.layers.{}.fc1",                       "encoder.blocks.{}.feed_forward.mixer.inner"),
    ("model.encoder.layers.{}.fc2",                       "encoder.blocks.{}.feed_forward.mixer.outer"),
    ("model.encoder.layers.{}.final_layer_norm",          "encoder.blocks.{}.feed_forward.norm"),
    ("model.decoder.layers.{}.self_attn.q_proj",          "decoder.blocks.{}.attention.mixer.project.query"),
    ("model.decoder.layers.{}.self_attn.k_proj",          "decoder.blocks.{}.attention.mixer.project.key"),
    ("model.decoder.layers.{}.self_attn.v_proj",          "decoder.blocks.{}.attention.mixer.project.value"),
    ("model.decoder.layers.{}.self_attn.out_proj",        "decoder.blocks.{}.attention.mixer.out"),
    ("model.decoder.layers.{}.self_attn_layer_norm",      "decoder.blocks.{}.attention.norm"),
    ("model.decoder.layers.{}.encoder_attn.q_proj",       "decoder.blocks.{}.cross.mixer.query"),
    ("model.decoder.layers.{}.encoder_attn.k_proj",       "decoder.blocks.{}.cross.mixer.project.key"),
    ("model.decoder.layers.{}.encoder_attn.v_proj",       "decoder.blocks.{}.cross.mixer.project.value"),
    ("model.decoder.layers.{}.encoder_attn.out_proj",     "decoder.blocks.{}.cross.mixer.out"),
    ("model.decoder.layers.{}.encoder_attn_layer_norm",   "decoder.blocks.{}.cross.norm"),
    ("model.decoder.layers.{}.fc1",                       "decoder.blocks.{}.feed_forward.mixer.inner"),
    ("model.decoder.layers.{}.fc2",                       "decoder.blocks.{}.feed_forward.mixer.outer"),
    ("model.decoder.layers.{}.final_layer_norm",          "decoder.blocks.{}.feed_forward.norm"),
]
# fmt: on

RULES: Map = [
    Copy("model.encoder.embed_tokens.weight", of="model.shared.weight"),
    Copy("model.decoder.embed_tokens.weight", of="model.shared.weight"),
    Copy("lm_head.weight", of="model.shared.weight"),
    Rename("model.shared.weight", "source.tokens.weight"),
    Flatten("final_logits_bias", "head.bias"),
    *rename_modules(MODULES),
    Drop("model.encoder.embed_positions.weight", "fixed sinusoids, computed"),
    Drop("model.decoder.embed_positions.weight", "fixed sinusoids, computed"),
]

# config.json: what our sizes hold,
SIZE_KEYS = {
    "vocab_size": "vocabulary",
    "d_model": "width",
    "encoder_ffn_dim": "encoder_hidden",
    "decoder_ffn_dim": "decoder_hidden",
    "encoder_attention_heads": "encoder_heads",
    "decoder_attention_heads": "decoder_heads",
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "dropout": "dropout",
}
# what the family fixes: the values that mean the same as our structure, the one we write first;
FIXED: dict[str, tuple[Any, ...]] = {
    "model_type": ("marian",),
    "activation_function": ("swish", "silu"),
    "scale_embedding": (True,),
}
# the same, where an absent key means what we have;
FIXED_BY_DEFAULT: dict[str, tuple[Any, ...]] = {
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
}
# and what does not change what the model computes.
ABOUT_OTHER_THINGS = {
    # special tokens and how outputs are searched for
    "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "decoder_start_token_id", "forced_eos_token_id",
    "bad_words_ids", "num_beams", "max_length", "length_penalty", "early_stopping", "use_cache",
    # positions are computed to any length
    "max_position_embeddings",
    # initial values, a classification head that translation does not have, gradient memory
    "init_std", "classif_dropout", "classifier_dropout", "num_labels", "_num_labels", "id2label", "label2id",
    "gradient_checkpointing",
    # bookkeeping
    "architectures", "transformers_version", "torch_dtype", "dtype", "_name_or_path", "tokenizer_class",
}  # fmt: skip


def sizes_of(config: Mapping[str, Any]) -> MarianSizes:
    """Our sizes from their `config.json`; a key that asks for another computation, or an unknown one, is an error."""
    for key, meant in (FIXED | FIXED_BY_DEFAULT).items():
        if key not in config and key in FIXED:
            raise QkvError(f"This is not a Marian config.json: it lacks {key}, which should be {meant[0]!r}.")
        if config.get(key, meant[0]) not in meant:
            raise QkvError(f"Marian here has {key} {meant[0]!r}; the config.json asks for {config[key]!r}.")
    vocabulary = config.get("vocab_size")
    if config.get("decoder_vocab_size", vocabulary) not in (None, vocabulary):
        raise QkvError("Marian here has one vocabulary for both sides; the config.json has another for the decoder.")
    if config.get("num_hidden_layers", config.get("encoder_layers")) != config.get("encoder_layers"):
        raise QkvError("The config.json gives two numbers of encoder layers: num_hidden_layers and encoder_layers.")
    known = {*SIZE_KEYS, *FIXED, *FIXED_BY_DEFAULT, *ABOUT_OTHER_THINGS, "decoder_vocab_size", "num_hidden_layers"}
    if unknown := sorted(set(config) - known):
        raise QkvError(f"The config.json has keys that could change what Marian computes: {', '.join(unknown)}.")
    if absent := sorted(set(SIZE_KEYS) - set(config)):
        raise QkvError(f"The config.json lacks {', '.join(absent)}.")
    return MarianSizes(**{ours: config[theirs] for theirs, ours in SIZE_KEYS.items()})


def config_of(sizes: MarianSizes) -> dict[str, Any]:
    """Their `config.json` for our sizes, without the special tokens, which the tokenizer knows."""
    fixed = {key: meant[0] for key, meant in FIXED.items()}
    return fixed | {theirs: getattr(sizes, ours) for theirs, ours in SIZE_KEYS.items()}
