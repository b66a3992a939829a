"""Longformer as Hugging Face's transformers saves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.errors import QkvError
from qkv.models.head_choice import HeadChoice
from qkv.models.longformer import LongformerSizes
from qkv.weights.config_map import ConfigMap, Size, Together, activation
from qkv.weights.maps.bert_names import BLOCK, bert_layers, embedding_rules, pooler_rules, task_rules, unread
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Copy, Drop, Map, Rename, rename_modules

BASE = "longformer."
POOLER = f"{BASE}pooler.dense"


def rules(sizes: LongformerSizes, head: HeadChoice | None) -> Map:
    assert head is not None
    of_marked = [
        (f"{BASE}encoder.layer.{{}}.attention.self.{name}_global", f"{BLOCK}.attention.mixer.of_marked.{name}")
        for name in ("query", "key", "value")
    ]
    return [
        *embedding_rules(BASE),
        *bert_layers(BASE),
        *rename_modules(of_marked),
        *_head_rules(sizes, head),
    ]


def _head_rules(sizes: LongformerSizes, head: HeadChoice) -> Map:
    if head.kind in ("pooled", "states", "embedding"):
        return pooler_rules(POOLER, head, sizes.width)
    pooler = unread([POOLER], "no answer of this head depends on the pooled vector")
    if head.kind == "classification":
        return [
            *pooler,
            *rename_modules([("classifier.dense", "head.pool.dense"), ("classifier.out_proj", "head.out")]),
        ]
    return [*pooler, *(_masked_rules(sizes) if head.kind == "masked" else task_rules(head))]


def _masked_rules(sizes: LongformerSizes) -> Map:
    layer = rename_modules([("lm_head.dense", "head.dense"), ("lm_head.layer_norm", "head.norm")])
    if sizes.tied:
        return [
            *layer,
            Copy("lm_head.decoder.weight", of=f"{BASE}embeddings.word_embeddings.weight"),
            Copy("lm_head.decoder.bias", of="lm_head.bias"),
            Rename("lm_head.bias", "head.logits.bias"),
        ]
    return [
        *layer,
        *rename_modules([("lm_head.decoder", "head.logits")]),
        Drop("lm_head.bias", "never added where the logits are not tied", written_as="lm_head.decoder.bias"),
    ]


def _read_positions(config: Mapping[str, Any]) -> dict[str, Any]:
    """Positions are counted from the padding token on, in the same table."""
    pad, rows = config.get("pad_token_id", 1), config.get("max_position_embeddings")
    if type(pad) is not int or type(rows) is not int or not 0 <= pad < rows - 1:
        raise QkvError(
            '"max_position_embeddings" in config.json must be a whole number more than one above "pad_token_id", after '
            f"which positions begin: they are {rows!r} and {pad!r}."
        )
    return {"first_position": pad + 1, "positions": rows - pad - 1}


def _write_positions(sizes: LongformerSizes) -> dict[str, Any]:
    return {
        "max_position_embeddings": sizes.first_position + sizes.positions,
        "pad_token_id": sizes.first_position - 1,
    }


def _read_window(config: Mapping[str, Any]) -> dict[str, Any]:
    said = config.get("attention_window", 512)
    windows = set(said) if isinstance(said, list) and all(type(each) is int for each in said) else {said}
    if len(windows) != 1 or type(both := windows.pop()) is not int or both < 2 or both % 2:
        raise QkvError(
            f'"attention_window" in config.json must be one even number, the same in all layers, not {said!r:.80}.'
        )
    return {"window": both // 2}


CONFIG = ConfigMap(
    name="Longformer",
    sizes=(
        Size("vocab_size", "vocabulary"),
        Size("type_vocab_size", "segments", absent=2),
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
    fixed={"model_type": ("longformer",)},
    fixed_by_default={},
    never={"position_embedding_type": ("absolute",), "is_decoder": (False,), "attention_mode": ("longformer",)},
    together=(
        Together(frozenset({"max_position_embeddings", "pad_token_id"}), _read_positions, _write_positions),
        Together(frozenset({"attention_window"}), _read_window, lambda sizes: {"attention_window": 2 * sizes.window}),
    ),
    other=frozenset({"onnx_export", "ignore_attention_mask"}),
)

LONGFORMER = PublishedFamily(
    model_type="longformer",
    family="longformer",
    config=CONFIG,
    architectures={
        "masked": "LongformerForMaskedLM",
        "pooled": "LongformerModel",
        "states": "LongformerModel",
        "classification": "LongformerForSequenceClassification",
        "tokens": "LongformerForTokenClassification",
    },
    rules=rules,
    base=BASE,
    marks={"masked": ("lm_head.dense.weight",), "pooled": (f"{POOLER}.weight",)},
)
