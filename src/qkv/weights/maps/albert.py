"""ALBERT as Hugging Face's transformers saves it."""

from __future__ import annotations

from qkv.models.albert import AlbertSizes
from qkv.models.head_choice import HeadChoice
from qkv.weights.config_map import ConfigMap, Size, activation
from qkv.weights.maps.bert_names import OLDER_NORMS, embedding_rules, masked_rules, pooler_rules, task_rules, unread
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Map, rename_modules

BASE = "albert."
LAYER = f"{BASE}encoder.albert_layer_groups.0.albert_layers.0"  # the only one
BLOCK = "stack.blocks.0"
PREDICTIONS, ORDER, POOLER = "predictions", "sop_classifier.classifier", f"{BASE}pooler"

# fmt: off
MODULES = [
    (f"{BASE}encoder.embedding_hidden_mapping_in",  "embed.project"),
    (f"{LAYER}.attention.query",                    f"{BLOCK}.attention.mixer.project.query"),
    (f"{LAYER}.attention.key",                      f"{BLOCK}.attention.mixer.project.key"),
    (f"{LAYER}.attention.value",                    f"{BLOCK}.attention.mixer.project.value"),
    (f"{LAYER}.attention.dense",                    f"{BLOCK}.attention.mixer.out"),
    (f"{LAYER}.attention.LayerNorm",                f"{BLOCK}.attention.norm"),
    (f"{LAYER}.ffn",                                f"{BLOCK}.feed_forward.mixer.inner"),
    (f"{LAYER}.ffn_output",                         f"{BLOCK}.feed_forward.mixer.outer"),
    (f"{LAYER}.full_layer_layer_norm",              f"{BLOCK}.feed_forward.norm"),
]
# fmt: on


def rules(sizes: AlbertSizes, head: HeadChoice | None) -> Map:
    assert head is not None
    return [
        *embedding_rules(BASE),
        *rename_modules(MODULES),
        *pooler_rules(POOLER, head, sizes.width),
        *own_head(sizes, head),
        *task_rules(head),
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
        activation("hidden_act", absent="gelu_new"),
        Size("layer_norm_eps", "epsilon", absent=1e-12),
        Size("hidden_dropout_prob", "dropout", absent=0.0),
        Size("attention_probs_dropout_prob", "attention_dropout", absent=0.0),
        Size("classifier_dropout_prob", "classifier_dropout", absent=0.1),
        Size("tie_word_embeddings", "tied", absent=True),
    ),
    fixed={"model_type": ("albert",)},
    fixed_by_default={"num_hidden_groups": (1,), "inner_group_num": (1,)},
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
