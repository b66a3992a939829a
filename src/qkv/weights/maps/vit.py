"""ViT and DeiT as Hugging Face's transformers saves them. The names on disk are older than those in memory.

A folder does not say how positions come to pictures of another size: transformers interpolates them bicubically, and so
do models that are read from one. What is written from a model that does otherwise agrees at the size it was made for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qkv.errors import QkvError
from qkv.models.deit import DeiTSizes
from qkv.models.head_choice import WITH_LABELS, HeadChoice
from qkv.models.vit import PatchSizes, ViTSizes
from qkv.weights.config_map import ConfigMap, Size, Together, activation
from qkv.weights.maps.bert_names import pooler_rules, unread
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Flatten, Map, rename_modules

BLOCK = "stack.blocks.{}"

# fmt: off
MODULES = [
    ("embeddings.patch_embeddings.projection",        "embed.patches"),
    ("encoder.layer.{}.layernorm_before",             f"{BLOCK}.attention.norm"),
    ("encoder.layer.{}.attention.output.dense",       f"{BLOCK}.attention.mixer.out"),
    ("encoder.layer.{}.layernorm_after",              f"{BLOCK}.feed_forward.norm"),
    ("encoder.layer.{}.intermediate.dense",           f"{BLOCK}.feed_forward.mixer.inner"),
    ("encoder.layer.{}.output.dense",                 f"{BLOCK}.feed_forward.mixer.outer"),
    ("layernorm",                                     "stack.norm"),
]
ATTENTION = [
    ("encoder.layer.{}.attention.attention.query",    f"{BLOCK}.attention.mixer.project.query"),
    ("encoder.layer.{}.attention.attention.key",      f"{BLOCK}.attention.mixer.project.key"),
    ("encoder.layer.{}.attention.attention.value",    f"{BLOCK}.attention.mixer.project.value"),
]
TOKENS = {
    "cls_token":          "embed.class_token",
    "distillation_token": "embed.distillation_token",
}
# fmt: on


def encoder_rules(base: str, query_bias: bool, tokens: list[str]) -> Map:
    """Everything below the head."""

    def based(names: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        return ((base + theirs, ours) for theirs, ours in names)

    return [
        *(Flatten(f"{base}embeddings.{token}", TOKENS[token], axes=2) for token in tokens),
        Flatten(f"{base}embeddings.position_embeddings", "embed.position.weight"),
        *rename_modules(based(MODULES)),
        *rename_modules(based(ATTENTION), ("weight", "bias") if query_bias else ("weight",)),
    ]


def vit_rules(sizes: ViTSizes, head: HeadChoice | None) -> Map:
    assert head is not None
    return [
        *encoder_rules("vit.", sizes.query_bias, ["cls_token"]),
        *image_head_rules("vit.", head, sizes.width),
    ]


def deit_rules(sizes: DeiTSizes, head: HeadChoice | None) -> Map:
    assert head is not None
    distilled = [("cls_classifier", "head.out"), ("distillation_classifier", "head.teacher_out")]
    return [
        *encoder_rules("deit.", sizes.query_bias, ["cls_token", "distillation_token"]),
        *image_head_rules("deit.", head, sizes.width),
        *(rename_modules(distilled) if head.kind == "distilled" else ()),
    ]


def image_head_rules(base: str, head: HeadChoice, width: int) -> Map:
    """A classifier reads the class token itself; the layer over it is the headless model's."""
    pooler = f"{base}pooler.dense"
    if head.kind not in WITH_LABELS:
        return pooler_rules(pooler, head, width)
    classifier = rename_modules([("classifier", "head.out")]) if head.kind == "classification" else ()
    return [*unread([pooler], "a decision is made from the class token itself"), *classifier]


def one_side(key: str) -> Any:
    """A picture's or patch's one side from what may be given as two."""

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        if len(value) != 2 or value[0] != value[1]:
            raise QkvError(f"Pictures and patches are square here; the config.json has {key} {value}.")
        return value[0]

    return read


def _without_stem(sizes: PatchSizes) -> dict[str, Any]:
    if sizes.stem is not None:
        raise QkvError(
            f"This model has a stem of {sizes.stem} convolutions before its patches, and the other library's ViT and "
            "DeiT have none: train one with --size patch=4 to write it."
        )
    return {}


def patch_config(name: str, model_type: str) -> ConfigMap:
    return ConfigMap(
        name=name,
        sizes=(
            Size("image_size", "image", to_ours=one_side("image_size")),
            Size("patch_size", "patch", to_ours=one_side("patch_size")),
            Size("num_channels", "channels", absent=3),
            Size("hidden_size", "width"),
            Size("intermediate_size", "hidden"),
            Size("num_attention_heads", "heads"),
            Size("num_hidden_layers", "layers"),
            activation("hidden_act", absent="gelu"),
            Size("layer_norm_eps", "epsilon", absent=1e-12),
            Size("qkv_bias", "query_bias", absent=True),
            Size("hidden_dropout_prob", "dropout", absent=0.0),
            Size("attention_probs_dropout_prob", "attention_dropout", absent=0.0),
        ),
        fixed={"model_type": (model_type,)},
        fixed_by_default={"pooler_act": ("tanh",)},
        never={"is_decoder": (False,), "is_encoder_decoder": (False,)},
        # of a decoder of pixels, which is a head that none of ours is; and of words, which pictures have none of
        other=frozenset({"encoder_stride", "tie_word_embeddings"}),
        same=(("pooler_output_size", "hidden_size"),),
        together=(Together(frozenset(), read=lambda config: {}, write=_without_stem),),
    )


VIT = PublishedFamily(
    model_type="vit",
    family="vit",
    config=patch_config("ViT", "vit"),
    architectures={"pooled": "ViTModel", "states": "ViTModel", "classification": "ViTForImageClassification"},
    rules=vit_rules,
    base="vit.",
    untold=("resampling",),  # of positions, for pictures of another size than these
    fits=lambda sizes: sizes.pooling == "class",
    marks={"pooled": ("vit.pooler.dense.weight",)},
)

DEIT = PublishedFamily(
    model_type="deit",
    family="deit",
    config=patch_config("DeiT", "deit"),
    architectures={
        "pooled": "DeiTModel",
        "states": "DeiTModel",
        "distilled": "DeiTForImageClassificationWithTeacher",
        "classification": "DeiTForImageClassification",
    },
    untold=("resampling",),
    rules=deit_rules,
    base="deit.",
    marks={"pooled": ("deit.pooler.dense.weight",)},
)
