"""GPT-Neo as Hugging Face's transformers saves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.errors import QkvError
from qkv.models.gpt_neo import GPTNeoSizes
from qkv.models.head_choice import HeadChoice
from qkv.weights.config_map import ConfigMap, Size, Together, activation
from qkv.weights.maps.decoder_heads import decoder_head_rules
from qkv.weights.maps.layer_words import fewest
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Copy, Drop, Map, Rename, rename_modules

BLOCK = "stack.blocks.{}"

# fmt: off
MODULES = [
    ("transformer.h.{}.ln_1",                     f"{BLOCK}.attention.norm"),
    ("transformer.h.{}.attn.attention.out_proj",  f"{BLOCK}.attention.mixer.out"),
    ("transformer.h.{}.ln_2",                     f"{BLOCK}.feed_forward.norm"),
    ("transformer.h.{}.mlp.c_fc",                 f"{BLOCK}.feed_forward.mixer.inner"),
    ("transformer.h.{}.mlp.c_proj",               f"{BLOCK}.feed_forward.mixer.outer"),
    ("transformer.ln_f",                          "stack.norm"),
]
WITHOUT_BIAS = [
    ("transformer.wte",                           "embed.tokens"),
    ("transformer.wpe",                           "embed.position"),
    ("transformer.h.{}.attn.attention.q_proj",    f"{BLOCK}.attention.mixer.project.query"),
    ("transformer.h.{}.attn.attention.k_proj",    f"{BLOCK}.attention.mixer.project.key"),
    ("transformer.h.{}.attn.attention.v_proj",    f"{BLOCK}.attention.mixer.project.value"),
]
# fmt: on


def rules(sizes: GPTNeoSizes, head: HeadChoice | None) -> Map:
    assert head is not None
    own: list[Copy | Rename] = [Copy("lm_head.weight", of="transformer.wte.weight")]
    if not sizes.tied:
        own = [Rename("lm_head.weight", "head.weight")]
    return [
        *rename_modules(MODULES),
        *rename_modules(WITHOUT_BIAS, ["weight"]),
        Drop("transformer.h.{}.attn.attention.bias", "the look-ahead mask, computed"),
        Drop("transformer.h.{}.attn.attention.masked_bias", "the value of hidden scores, computed"),
        *decoder_head_rules(head, own),
    ]


def _read_sights(config: Mapping[str, Any]) -> dict[str, Any]:
    """`[[["global", "local"], 6]]` is "global local", six times: as few words as say the same of all layers."""
    said = config.get("attention_types", [[["global", "local"], 12]])
    try:
        # No more than are needed to see that there are too many: a number may be anything.
        layers = [str(word) for words, times in said for _ in range(min(times, 10_000)) for word in words]
    except (TypeError, ValueError) as error:
        raise QkvError(
            f'"attention_types" in config.json must look like [[["global", "local"], 6]], not {said!r:.80}.'
        ) from error
    if len(layers) != config.get("num_layers"):
        raise QkvError(
            f'"attention_types" in config.json tells of {len(layers)} layers, "num_layers" of '
            f"{config.get('num_layers')!r}."
        )
    if config.get("attention_layers", layers) != layers:
        raise QkvError('In config.json, "attention_layers" says another thing than "attention_types".')
    return {"sights": fewest(layers)}


def _write_sights(sizes: GPTNeoSizes) -> dict[str, Any]:
    words = sizes.sights.split()
    if sizes.layers % len(words) == 0:
        return {"attention_types": [[words, sizes.layers // len(words)]]}
    return {"attention_types": [[(words * sizes.layers)[: sizes.layers], 1]]}


CONFIG = ConfigMap(
    name="GPT-Neo",
    sizes=(
        Size("vocab_size", "vocabulary"),
        Size("max_position_embeddings", "positions"),
        Size("hidden_size", "width"),
        Size("num_heads", "heads"),
        Size("num_layers", "layers"),
        Size("intermediate_size", "hidden", absent=None),
        Size("window_size", "window", absent=256),
        activation("activation_function", absent="gelu_new"),
        Size("layer_norm_epsilon", "epsilon", absent=1e-5),
        Size("resid_dropout", "dropout", absent=0.0),
        Size("embed_dropout", "embedding_dropout", absent=0.0),
        Size("attention_dropout", "attention_dropout", absent=0.0),
        Size("classifier_dropout", "head_dropout", absent=0.1),
        Size("tie_word_embeddings", "tied", absent=True),
    ),
    fixed={"model_type": ("gpt_neo",)},
    fixed_by_default={},
    together=(Together(frozenset({"attention_types", "attention_layers"}), _read_sights, _write_sights),),
    other=frozenset(
        {
            # of a head for multiple choice
            "summary_type",
            "summary_use_proj",
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
        }
    ),
    complete=lambda sizes: {**sizes, "hidden": sizes["hidden"] or 4 * sizes["width"]},
)

GPT_NEO = PublishedFamily(
    model_type="gpt_neo",
    family="gpt-neo",
    config=CONFIG,
    architectures={
        "language": "GPTNeoForCausalLM",
        "states": "GPTNeoModel",
        "classification": "GPTNeoForSequenceClassification",
        "tokens": "GPTNeoForTokenClassification",
        "spans": "GPTNeoForQuestionAnswering",
    },
    rules=rules,
    base="transformer.",
)
