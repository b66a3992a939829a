"""ALBERT as Hugging Face's transformers saves it."""

from __future__ import annotations

from qkv.models.albert import AlbertSizes
from qkv.models.head_choice import HeadChoice
from qkv.weights.config_map import ConfigMap, Size, activation
from qkv.weights.maps.bert_names import OLDER_NORMS, embedding_rules, masked_rules, pooler_rules, task_rules, unread
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Map, rename_modules

BASE = "albert."
PREDICTIONS, ORDER, POOLER = "predictions", "sop_classifier.classifier", f"{BASE}pooler"

# fmt: off
LAYER = [
    ("attention.query",         "attention.mixer.project.query"),
    ("attention.key",           "attention.mixer.project.key"),
    ("attention.value",         "attention.mixer.project.value"),
    ("attention.dense",         "attention.mixer.out"),
    ("attention.LayerNorm",     "attention.norm"),
    ("ffn",                     "feed_forward.mixer.inner"),
    ("ffn_output",              "feed_forward.mixer.outer"),
    ("full_layer_layer_norm",   "feed_forward.norm"),
]
# fmt: on


def rules(sizes: AlbertSizes, head: HeadChoice | None) -> Map:
    assert head is not None
    return [
        *embedding_rules(BASE),
        *rename_modules([(f"{BASE}encoder.embedding_hidden_mapping_in", "embed.project"), *layers(sizes)]),
        *pooler_rules(POOLER, head, sizes.width),
        *own_head(sizes, head),
        *task_rules(head),
    ]


def layers(sizes: AlbertSizes) -> list[tuple[str, str]]:
    """Groups of layers, which we count through."""
    return [
        (
            f"{BASE}encoder.albert_layer_groups.{group}.albert_layers.{number}.{theirs}",
            f"stack.blocks.{group * sizes.group_layers + number}.{ours}",
        )
        for group in range(sizes.groups)
        for number in range(sizes.group_layers)
        for theirs, ours in LAYER
    ]


def own_head(sizes: AlbertSizes, head: HeadChoice) -> Map:
    if head.kind not in ("masked", "pretraining"):
        return []
    masked = masked_rules(PREDICTIONS, f"{PREDICTIONS}.", BASE, head, sizes.tied)
    if head.kind == "pretraining":
        return [*masked, *rename_modules([(ORDER, "head.next_sentence")])]
    return [*masked, *unread([ORDER], "the order of two texts is not asked of a masked head")]


CONFIG = ConfigMap(
    name="ALBERT",
    sizes=(
        Size("vocab_size", "vocabulary"),
        Size("max_position_embeddings", "positions"),
        Size("type_vocab_size", "segments", absent=2),
        Size("embedding_size", "embedding"),
        Size("hidden_size", "width"),
        Size("intermediate_size", "hidden"),
        Size("num_attention_heads", "heads"),
        Size("num_hidden_layers", "layers"),
        Size("num_hidden_groups", "groups", absent=1),
        Size("inner_group_num", "group_layers", absent=1),
        activation("hidden_act", absent="gelu_new"),
        Size("layer_norm_eps", "epsilon", absent=1e-12),
        Size("hidden_dropout_prob", "dropout", absent=0.0),
        Size("attention_probs_dropout_prob", "attention_dropout", absent=0.0),
        Size("classifier_dropout_prob", "classifier_dropout", absent=0.1),
        Size("tie_word_embeddings", "tied", absent=True),
    ),
    fixed={"model_type": ("albert",)},
    fixed_by_default={},
    never={
        "position_embedding_type": ("absolute",),
        "is_decoder": (False,),
        "down_scale_factor": (1,),
        "gap_size": (0,),
        "net_structure_type": (0,),
        "num_memory_blocks": (0,),
    },
)

ALBERT = PublishedFamily(
    model_type="albert",
    family="albert",
    config=CONFIG,
    architectures={
        "pretraining": "AlbertForPreTraining",
        "masked": "AlbertForMaskedLM",
        "pooled": "AlbertModel",
        "states": "AlbertModel",
        "classification": "AlbertForSequenceClassification",
        "tokens": "AlbertForTokenClassification",
        "spans": "AlbertForQuestionAnswering",
    },
    rules=rules,
    base=BASE,
    marks={
        "pretraining": (f"{PREDICTIONS}.dense.weight", f"{ORDER}.weight", f"{POOLER}.weight"),
        "masked": (f"{PREDICTIONS}.dense.weight",),
        "pooled": (f"{POOLER}.weight",),
    },
    older=OLDER_NORMS,
)
