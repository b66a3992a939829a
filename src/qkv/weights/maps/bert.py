"""BERT as Hugging Face's transformers saves it."""

from __future__ import annotations

from qkv.models.bert import BertSizes
from qkv.models.head_choice import HeadChoice
from qkv.weights.config_map import ConfigMap, Size, activation
from qkv.weights.maps.bert_names import (
    OLDER_NORMS,
    bert_layers,
    embedding_rules,
    masked_rules,
    pooler_rules,
    task_rules,
    unread,
)
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Map, rename_modules

BASE = "bert."
PREDICTIONS, NEXT_SENTENCE, POOLER = "cls.predictions", "cls.seq_relationship", f"{BASE}pooler.dense"


def rules(sizes: BertSizes, head: HeadChoice | None) -> Map:
    assert head is not None
    return [
        *embedding_rules(BASE),
        *bert_layers(BASE),
        *pooler_rules(POOLER, head, sizes.width),
        *own_head(sizes, head),
        *task_rules(head),
    ]


def own_head(sizes: BertSizes, head: HeadChoice) -> Map:
    if head.kind not in ("masked", "pretraining"):
        return []
    masked = masked_rules(PREDICTIONS, f"{PREDICTIONS}.transform.", BASE, head, sizes.tied)
    if head.kind == "pretraining":
        return [*masked, *rename_modules([(NEXT_SENTENCE, "head.next_sentence")])]
    return [*masked, *unread([NEXT_SENTENCE], "whether two texts belong together is not asked of a masked head")]


CONFIG = ConfigMap(
    name="BERT",
    sizes=(
        Size("vocab_size", "vocabulary"),
        Size("max_position_embeddings", "positions"),
        Size("type_vocab_size", "segments", absent=2),
        Size("hidden_size", "width"),
        Size("intermediate_size", "hidden"),
        Size("num_attention_heads", "heads"),
        Size("num_hidden_layers", "layers"),
        activation("hidden_act", absent="gelu"),
        Size("layer_norm_eps", "epsilon", absent=1e-12),
        Size("hidden_dropout_prob", "dropout", absent=0.1),
        Size("attention_probs_dropout_prob", "attention_dropout", absent=0.1),
        Size("classifier_dropout", "classifier_dropout", absent=None),
        Size("tie_word_embeddings", "tied", absent=True),
    ),
    fixed={"model_type": ("bert",)},
    fixed_by_default={"is_decoder": (False,)},
    never={
        "position_embedding_type": ("absolute",),
        "directionality": ("bidi",),
        "pooler_type": ("first_token_transform",),
    },
    # of a pooler that no published class has
    other=frozenset({"pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head"}),
)

BERT = PublishedFamily(
    model_type="bert",
    family="bert",
    config=CONFIG,
    architectures={
        "pretraining": "BertForPreTraining",
        "masked": "BertForMaskedLM",
        "pooled": "BertModel",
        "states": "BertModel",
        "classification": "BertForSequenceClassification",
        "tokens": "BertForTokenClassification",
        "spans": "BertForQuestionAnswering",
    },
    rules=rules,
    base=BASE,
    marks={
        "pretraining": (f"{PREDICTIONS}.transform.dense.weight", f"{NEXT_SENTENCE}.weight", f"{POOLER}.weight"),
        "masked": (f"{PREDICTIONS}.transform.dense.weight",),
        "pooled": (f"{POOLER}.weight",),
    },
    older=OLDER_NORMS,
)
