"""RoFormer as Hugging Face's transformers saves it."""

from __future__ import annotations

from functools import partial

from qkv.models.head_choice import HeadChoice
from qkv.models.roformer import RoFormerSizes
from qkv.parts.position import halves, sinusoids
from qkv.weights.config_map import ConfigMap, Size, activation
from qkv.weights.maps.bert_names import OLDER_NORMS, bert_layers, masked_rules, task_rules
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Computed, Map, Rename, rename_modules

BASE = "roformer."
PREDICTIONS = "cls.predictions"


def rules(sizes: RoFormerSizes, head: HeadChoice | None) -> Map:
    assert head is not None
    table = partial(sinusoids, sizes.positions, sizes.width // sizes.heads, halves)
    return [
        Rename(f"{BASE}embeddings.word_embeddings.weight", "embed.tokens.weight"),
        Rename(f"{BASE}embeddings.token_type_embeddings.weight", "embed.segments.weight"),
        *rename_modules(
            [(f"{BASE}embeddings.LayerNorm", "embed.norm"), (f"{BASE}embeddings_project", "embed.project")]
        ),
        Computed(f"{BASE}encoder.embed_positions.weight", table),  # the angles, which are computed here
        *bert_layers(BASE),
        *own_head(sizes, head),
    ]


def own_head(sizes: RoFormerSizes, head: HeadChoice) -> Map:
    if head.kind == "masked":
        return masked_rules(PREDICTIONS, f"{PREDICTIONS}.transform.", BASE, head, sizes.tied)
    if head.kind == "classification":
        layers = [("classifier.dense", "head.pool.dense"), ("classifier.out_proj", "head.out")]
        return list(rename_modules(layers))
    return task_rules(head)


CONFIG = ConfigMap(
    name="RoFormer",
    sizes=(
        Size("vocab_size", "vocabulary"),
        Size("max_position_embeddings", "positions"),
        Size("type_vocab_size", "segments", absent=2),
        Size("embedding_size", "embedding", absent=None),
        Size("hidden_size", "width"),
        Size("intermediate_size", "hidden"),
        Size("num_attention_heads", "heads"),
        Size("num_hidden_layers", "layers"),
        activation("hidden_act", absent="gelu"),
        Size("layer_norm_eps", "epsilon", absent=1e-12),
        Size("hidden_dropout_prob", "dropout", absent=0.1),
        Size("attention_probs_dropout_prob", "attention_dropout", absent=0.1),
        Size("tie_word_embeddings", "tied", absent=True),
    ),
    fixed={"model_type": ("roformer",)},
    fixed_by_default={"rotary_value": (False,), "is_decoder": (False,)},
    complete=lambda sizes: {**sizes, "embedding": sizes["embedding"] or sizes["width"]},
)

ROFORMER = PublishedFamily(
    model_type="roformer",
    family="roformer",
    config=CONFIG,
    architectures={
        "masked": "RoFormerForMaskedLM",
        "states": "RoFormerModel",
        "classification": "RoFormerForSequenceClassification",
        "tokens": "RoFormerForTokenClassification",
        "spans": "RoFormerForQuestionAnswering",
    },
    rules=rules,
    base=BASE,
    marks={"masked": (f"{PREDICTIONS}.transform.dense.weight",)},
    older=OLDER_NORMS,
)
