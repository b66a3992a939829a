"""DistilBERT as Hugging Face's transformers saves it."""

from __future__ import annotations

from qkv.models.distilbert import DistilBertSizes
from qkv.models.head_choice import HeadChoice
from qkv.weights.config_map import ConfigMap, Size, activation
from qkv.weights.maps.bert_names import task_rules
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Copy, Drop, Map, Rename, rename_modules

BASE = "distilbert."
LAYER, BLOCK = f"{BASE}transformer.layer.{{}}", "stack.blocks.{}"
TOKENS = f"{BASE}embeddings.word_embeddings.weight"

# fmt: off
MODULES = [
    (f"{BASE}embeddings.LayerNorm",   "embed.norm"),
    (f"{LAYER}.attention.q_lin",      f"{BLOCK}.attention.mixer.project.query"),
    (f"{LAYER}.attention.k_lin",      f"{BLOCK}.attention.mixer.project.key"),
    (f"{LAYER}.attention.v_lin",      f"{BLOCK}.attention.mixer.project.value"),
    (f"{LAYER}.attention.out_lin",    f"{BLOCK}.attention.mixer.out"),
    (f"{LAYER}.sa_layer_norm",        f"{BLOCK}.attention.norm"),
    (f"{LAYER}.ffn.lin1",             f"{BLOCK}.feed_forward.mixer.inner"),
    (f"{LAYER}.ffn.lin2",             f"{BLOCK}.feed_forward.mixer.outer"),
    (f"{LAYER}.output_layer_norm",    f"{BLOCK}.feed_forward.norm"),
]
MASKED = [
    ("vocab_transform",               "head.dense"),
    ("vocab_layer_norm",              "head.norm"),
]
# fmt: on


def rules(sizes: DistilBertSizes, head: HeadChoice | None) -> Map:
    assert head is not None
    return [
        Rename(TOKENS, "embed.tokens.weight"),
        Rename(f"{BASE}embeddings.position_embeddings.weight", "embed.position.weight"),
        Drop(f"{BASE}embeddings.position_ids", "the numbers 0, 1, 2, …, counted"),
        *rename_modules(MODULES),
        *own_head(sizes, head),
        *task_rules(head),
    ]


def own_head(sizes: DistilBertSizes, head: HeadChoice) -> Map:
    if head.kind == "masked":
        weight = "vocab_projector.weight"
        return [
            *rename_modules(MASKED),
            Copy(weight, of=TOKENS) if sizes.tied else Rename(weight, "head.logits.weight"),
            Rename("vocab_projector.bias", "head.logits.bias"),
        ]
    if head.kind == "classification":
        return list(rename_modules([("pre_classifier", "head.pool.dense")]))
    return []


CONFIG = ConfigMap(
    name="DistilBERT",
    sizes=(
        Size("vocab_size", "vocabulary"),
        Size("max_position_embeddings", "positions"),
        Size("dim", "width"),
        Size("hidden_dim", "hidden"),
        Size("n_heads", "heads"),
        Size("n_layers", "layers"),
        activation("activation", absent="gelu"),
        Size("dropout", "dropout", absent=0.1),
        Size("attention_dropout", "attention_dropout", absent=0.1),
        Size("seq_classif_dropout", "classifier_dropout", absent=0.2),
        Size("qa_dropout", "span_dropout", absent=0.1),
        Size("tie_word_embeddings", "tied", absent=True),
    ),
    fixed={"model_type": ("distilbert",)},
    fixed_by_default={"sinusoidal_pos_embds": (False,)},
    never={"tie_weights_": (True,)},
)

DISTILBERT = PublishedFamily(
    model_type="distilbert",
    family="distilbert",
    config=CONFIG,
    architectures={
        "masked": "DistilBertForMaskedLM",
        "states": "DistilBertModel",
        "classification": "DistilBertForSequenceClassification",
        "tokens": "DistilBertForTokenClassification",
        "spans": "DistilBertForQuestionAnswering",
    },
    rules=rules,
    base=BASE,
    marks={"masked": ("vocab_transform.weight",)},
)
