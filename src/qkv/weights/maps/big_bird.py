"""BigBird as Hugging Face's transformers saves it: the encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.errors import QkvError
from qkv.models.big_bird import BigBirdSizes
from qkv.models.head_choice import HeadChoice
from qkv.weights.config_map import ConfigMap, Size, Together, activation
from qkv.weights.maps.bert_names import BLOCK, LAYER, OLDER_NORMS, embedding_rules, masked_rules, task_rules, unread
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Drop, Map, rename_modules

BASE = "bert."
PREDICTIONS, NEXT_SENTENCE, POOLER = "cls.predictions", "cls.seq_relationship", f"{BASE}pooler"
PROJECTIONS = [f"{BLOCK}.attention.mixer.project.{name}" for name in ("query", "key", "value")]


def rules(sizes: BigBirdSizes, head: HeadChoice | None) -> Map:
    assert head is not None
    layer = [(f"{BASE}encoder.layer.{{}}.{theirs}", ours) for theirs, ours in LAYER]
    biased = [(theirs, ours) for theirs, ours in layer if sizes.projection_bias or ours not in PROJECTIONS]
    return [
        *embedding_rules(BASE),
        *rename_modules(layer, ["weight"]),
        *rename_modules(biased, ["bias"]),
        *_pooler_rules(sizes, head),
        *_head_rules(sizes, head),
    ]


def _pooler_rules(sizes: BigBirdSizes, head: HeadChoice) -> Map:
    """All classes of the other library have one: where ours has none, it is written as zeros."""
    if head.kind in ("pretraining", "pooled"):
        return list(rename_modules([(POOLER, "head.pool.dense")]))
    shapes = {"weight": (sizes.width, sizes.width), "bias": (sizes.width,)}
    reason = "no answer of this head depends on the pooled vector"
    return [Drop(f"{POOLER}.{kind}", reason, zeros=shape) for kind, shape in shapes.items()]


def _head_rules(sizes: BigBirdSizes, head: HeadChoice) -> Map:
    if head.kind == "classification":
        return list(rename_modules([("classifier.dense", "head.pool.dense"), ("classifier.out_proj", "head.out")]))
    if head.kind not in ("masked", "pretraining"):
        return task_rules(head)
    masked = masked_rules(PREDICTIONS, f"{PREDICTIONS}.transform.", BASE, head, sizes.tied)
    if head.kind == "pretraining":
        return [*masked, *rename_modules([(NEXT_SENTENCE, "head.next_sentence")])]
    return [*masked, *unread([NEXT_SENTENCE], "whether two texts belong together is not asked of a masked head")]


def _read_blocks(config: Mapping[str, Any]) -> dict[str, Any]:
    kind = config.get("attention_type", "block_sparse")
    if kind not in ("block_sparse", "original_full"):
        raise QkvError(f'"attention_type" in config.json must be block_sparse or original_full, not {kind!r}.')
    block = config.get("block_size", 64) if kind == "block_sparse" else None
    return {"block": block, "randoms": config.get("num_random_blocks", 3)}


def _write_blocks(sizes: BigBirdSizes) -> dict[str, Any]:
    written: dict[str, Any] = {"attention_type": "original_full", "num_random_blocks": sizes.randoms}
    return written if sizes.block is None else {**written, "attention_type": "block_sparse", "block_size": sizes.block}


CONFIG = ConfigMap(
    name="BigBird",
    sizes=(
        Size("vocab_size", "vocabulary"),
        Size("max_position_embeddings", "positions"),
        Size("type_vocab_size", "segments", absent=2),
        Size("hidden_size", "width"),
        Size("intermediate_size", "hidden"),
        Size("num_attention_heads", "heads"),
        Size("num_hidden_layers", "layers"),
        Size("use_bias", "projection_bias", absent=True),
        Size("rescale_embeddings", "scaled", absent=False),
        activation("hidden_act", absent="gelu_new"),
        Size("layer_norm_eps", "epsilon", absent=1e-12),
        Size("hidden_dropout_prob", "dropout", absent=0.1),
        Size("attention_probs_dropout_prob", "attention_dropout", absent=0.1),
        Size("classifier_dropout", "classifier_dropout", absent=None),
        Size("tie_word_embeddings", "tied", absent=True),
    ),
    fixed={"model_type": ("big_bird",)},
    fixed_by_default={"is_decoder": (False,)},
    never={"position_embedding_type": ("absolute",)},
    together=(Together(frozenset({"attention_type", "block_size", "num_random_blocks"}), _read_blocks, _write_blocks),),
)

BIG_BIRD = PublishedFamily(
    model_type="big_bird",
    family="big-bird",
    config=CONFIG,
    architectures={
        "pretraining": "BigBirdForPreTraining",
        "masked": "BigBirdForMaskedLM",
        "pooled": "BigBirdModel",
        "states": "BigBirdModel",
        "classification": "BigBirdForSequenceClassification",
        "tokens": "BigBirdForTokenClassification",
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
