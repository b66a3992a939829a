"""Llama, Mistral and Qwen2 as Hugging Face's transformers saves them: one family under three names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.errors import QkvError
from qkv.models.head_choice import HeadChoice
from qkv.models.llama import LlamaSizes
from qkv.weights.config_map import ConfigMap, Size, Together, activation
from qkv.weights.maps.decoder_heads import decoder_head_rules
from qkv.weights.maps.rotary_config import ROTARY
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Copy, Drop, Map, Rename, rename_modules

BLOCK = "stack.blocks.{}"
BASES = {"spans": "transformer."}  # of Llama and Qwen; Mistral's names begin alike everywhere

# fmt: off
NORMS_AND_TOKENS = [
    ("embed_tokens",                        "embed.tokens"),
    ("layers.{}.input_layernorm",           f"{BLOCK}.attention.norm"),
    ("layers.{}.post_attention_layernorm",  f"{BLOCK}.feed_forward.norm"),
    ("norm",                                "stack.norm"),
]
MAPS = [
    ("layers.{}.self_attn.q_proj",          f"{BLOCK}.attention.mixer.project.query"),
    ("layers.{}.self_attn.k_proj",          f"{BLOCK}.attention.mixer.project.key"),
    ("layers.{}.self_attn.v_proj",          f"{BLOCK}.attention.mixer.project.value"),
    ("layers.{}.self_attn.o_proj",          f"{BLOCK}.attention.mixer.out"),
]
FEED_FORWARD = [
    ("layers.{}.mlp.gate_proj",             f"{BLOCK}.feed_forward.mixer.inner.gate"),
    ("layers.{}.mlp.up_proj",               f"{BLOCK}.feed_forward.mixer.inner.value"),
    ("layers.{}.mlp.down_proj",             f"{BLOCK}.feed_forward.mixer.outer"),
]
# fmt: on


def rules(sizes: LlamaSizes, head: HeadChoice | None, base: str = "model.") -> Map:
    return [
        *rules_but_feed_forward(sizes, head, base),
        *rename_modules([(base + theirs, ours) for theirs, ours in FEED_FORWARD]),
    ]


def rules_but_feed_forward(sizes: LlamaSizes, head: HeadChoice | None, base: str = "model.") -> Map:
    assert head is not None
    own: list[Copy | Rename] = [Copy("lm_head.weight", of=f"{base}embed_tokens.weight")]
    if not sizes.tied:
        own = [Rename("lm_head.weight", "head.weight")]
    heads = list(rename_modules([("score", "head.out")])) if head.kind == "tokens" else decoder_head_rules(head, own)
    return [
        *rename_modules([(base + theirs, ours) for theirs, ours in NORMS_AND_TOKENS], ["weight"]),
        *rename_modules([(base + theirs, ours) for theirs, ours in MAPS]),
        Drop(f"{base}layers.{{}}.self_attn.rotary_emb.inv_freq", "the rates of the rotary positions, computed"),
        *heads,
    ]


def base_of(head: HeadChoice | None) -> str:
    return BASES.get("" if head is None else head.kind, "model.")


def _rules_with_bases(sizes: LlamaSizes, head: HeadChoice | None) -> Map:
    return rules(sizes, head, base_of(head))


def _read_biases(config: Mapping[str, Any]) -> dict[str, Any]:
    """Llama has one word for all four maps of an attention."""
    bias = config.get("attention_bias", False)
    return {"attention_bias": bias, "output_bias": bias}


ATTENTION_BIAS = Together(
    frozenset({"attention_bias"}), _read_biases, lambda sizes: {"attention_bias": sizes.attention_bias}
)

COMMON = (
    Size("vocab_size", "vocabulary"),
    Size("max_position_embeddings", "positions"),
    Size("hidden_size", "width"),
    Size("intermediate_size", "hidden"),
    Size("num_attention_heads", "heads"),
    Size("num_hidden_layers", "layers"),
    activation("hidden_act", absent="silu"),
    Size("rms_norm_eps", "epsilon", absent=1e-6),
    Size("attention_dropout", "attention_dropout", absent=0.0),
    Size("classifier_dropout", "head_dropout", absent=0.1),
    Size("tie_word_embeddings", "tied", absent=False),
)
HEAD_WIDTH = Size("head_dim", "head_width", absent=None)


def _read_layers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Qwen's layers see all, or are not read here."""
    if any(layer != "full_attention" for layer in config.get("layer_types") or []):
        raise QkvError("Qwen here sees all tokens in all layers; the config.json asks for other layer_types.")
    return {}


LAYERS = Together(frozenset({"layer_types"}), _read_layers, lambda sizes: {})
WITHOUT_WINDOW = {"use_sliding_window": (False,)}
OF_NO_WINDOW = frozenset({"sliding_window", "max_window_layers"})  # of layers that there are none of


def complete(sizes: dict[str, Any]) -> dict[str, Any]:
    """What a configuration leaves out, and a head's width left out where it follows from the rest."""
    if sizes.get("head_width") and sizes["head_width"] * sizes["heads"] == sizes["width"]:
        sizes = {**sizes, "head_width": None}
    return with_key_heads(sizes)


def with_key_heads(sizes: dict[str, Any]) -> dict[str, Any]:
    return {**sizes, "key_value_heads": sizes["key_value_heads"] or sizes["heads"]}


def head_architectures(name: str) -> dict[str, str]:
    return {
        "language": f"{name}ForCausalLM",
        "states": f"{name}Model",
        "classification": f"{name}ForSequenceClassification",
        "tokens": f"{name}ForTokenClassification",
        "spans": f"{name}ForQuestionAnswering",
    }


LLAMA = PublishedFamily(
    model_type="llama",
    family="llama",
    config=ConfigMap(
        name="Llama",
        sizes=(
            *COMMON,
            HEAD_WIDTH,
            Size("num_key_value_heads", "key_value_heads", absent=None),
            Size("mlp_bias", "feed_forward_bias", absent=False),
        ),
        fixed={"model_type": ("llama",)},
        fixed_by_default={},
        never={"rope_interleaved": (False,)},  # the order of a head's rows
        together=(ROTARY, ATTENTION_BIAS),
        other=frozenset(
            {
                "pretraining_tp",  # the order of the arithmetic only
                "is_llama_config",
                "transformers.js_config",
            }
        ),
        same=(("max_sequence_length", "max_position_embeddings"),),
        complete=complete,
    ),
    architectures=head_architectures("Llama"),
    rules=_rules_with_bases,
    base="model.",
    other_bases=tuple(BASES.values()),
    fits=lambda sizes: sizes.attention_bias == sizes.output_bias and sizes.window is None,
)

MISTRAL = PublishedFamily(
    model_type="mistral",
    family="llama",
    config=ConfigMap(
        name="Mistral",
        sizes=(
            *COMMON,
            HEAD_WIDTH,
            Size("num_key_value_heads", "key_value_heads", absent=8),
            Size("sliding_window", "window", absent=4096),
        ),
        fixed={"model_type": ("mistral",)},
        fixed_by_default={},
        together=(ROTARY,),
        complete=complete,
    ),
    architectures=head_architectures("Mistral"),
    rules=rules,
    base="model.",
    fits=lambda sizes: not (sizes.attention_bias or sizes.output_bias or sizes.feed_forward_bias),
)

QWEN2 = PublishedFamily(
    model_type="qwen2",
    family="llama",
    config=ConfigMap(
        name="Qwen2",
        sizes=(*COMMON, Size("num_key_value_heads", "key_value_heads", absent=32)),
        fixed={"model_type": ("qwen2",)},
        fixed_by_default=WITHOUT_WINDOW,
        never={"use_mrope": (False,)},  # positions of several axes
        together=(ROTARY, LAYERS),
        other=OF_NO_WINDOW,
        complete=lambda sizes: complete({**sizes, "attention_bias": True}),
    ),
    architectures=head_architectures("Qwen2"),
    rules=_rules_with_bases,
    base="model.",
    other_bases=tuple(BASES.values()),
    fits=lambda sizes: (
        sizes.attention_bias
        and not (sizes.output_bias or sizes.feed_forward_bias or sizes.window)
        and sizes.head_width is None
    ),
)
