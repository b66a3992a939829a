"""AST as Hugging Face's transformers saves it. The names on disk are older than those in memory."""

from __future__ import annotations

from qkv.models.ast import ASTSizes
from qkv.models.head_choice import HeadChoice
from qkv.weights.config_map import ConfigMap, Size, activation
from qkv.weights.maps.vit import encoder_rules, one_side
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Map, rename_modules

BASE = "audio_spectrogram_transformer."


def rules(sizes: ASTSizes, head: HeadChoice | None) -> Map:
    assert head is not None
    classifier = [("classifier.layernorm", "head.pool.norm"), ("classifier.dense", "head.out")]
    return [
        *encoder_rules(BASE, sizes.query_bias, ["cls_token", "distillation_token"]),
        *rename_modules(classifier if head.kind == "classification" else []),
    ]


CONFIG = ConfigMap(
    name="AST",
    sizes=(
        Size("num_mel_bins", "bands", absent=128),
        Size("max_length", "frames", absent=1024),
        Size("patch_size", "patch", absent=16, to_ours=one_side("patch_size")),
        Size("frequency_stride", "frequency_stride", absent=10),
        Size("time_stride", "time_stride", absent=10),
        Size("hidden_size", "width", absent=768),
        Size("intermediate_size", "hidden", absent=3072),
        Size("num_attention_heads", "heads", absent=12),
        Size("num_hidden_layers", "layers", absent=12),
        activation("hidden_act", absent="gelu"),
        Size("layer_norm_eps", "epsilon", absent=1e-12),
        Size("qkv_bias", "query_bias", absent=True),
        Size("hidden_dropout_prob", "dropout", absent=0.0),
        Size("attention_probs_dropout_prob", "attention_dropout", absent=0.0),
    ),
    fixed={"model_type": ("audio-spectrogram-transformer",)},
    fixed_by_default={},
)

AST = PublishedFamily(
    model_type="audio-spectrogram-transformer",
    family="ast",
    config=CONFIG,
    architectures={
        "classification": "ASTForAudioClassification",
        "pooled": "ASTModel",
        "states": "ASTModel",
    },
    rules=rules,
    base=BASE,
    marks={"classification": ("classifier.dense.weight",)},
)
