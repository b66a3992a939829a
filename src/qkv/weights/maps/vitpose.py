"""ViTPose as Hugging Face's transformers saves it: tensor names and `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.models.head_choice import HeadChoice
from qkv.models.vitpose import ViTPoseSizes
from qkv.weights.config_map import ConfigMap, Size, Together, activation
from qkv.weights.maps.vit import one_side
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Drop, Map, Rename, Split, rename_modules

BLOCK, LAYER = "stack.blocks.{}", "backbone.encoder.layer.{}"
NORM = {"weight": "weight", "bias": "bias", "running_mean": "running_mean", "running_var": "running_variance"}

# fmt: off
MODULES = [
    ("backbone.embeddings.patch_embeddings.projection",  "embed.patches"),
    (f"{LAYER}.layernorm_before",                        f"{BLOCK}.attention.norm"),
    (f"{LAYER}.attention.output.dense",                  f"{BLOCK}.attention.mixer.out"),
    (f"{LAYER}.layernorm_after",                         f"{BLOCK}.feed_forward.norm"),
    (f"{LAYER}.mlp.fc1",                                 f"{BLOCK}.feed_forward.mixer.inner"),
    (f"{LAYER}.mlp.fc2",                                 f"{BLOCK}.feed_forward.mixer.outer"),
    ("backbone.layernorm",                               "stack.norm"),
    ("head.conv",                                        "head.out"),
]
ATTENTION = [
    (f"{LAYER}.attention.attention.query",               f"{BLOCK}.attention.mixer.project.query"),
    (f"{LAYER}.attention.attention.key",                 f"{BLOCK}.attention.mixer.project.key"),
    (f"{LAYER}.attention.attention.value",               f"{BLOCK}.attention.mixer.project.value"),
]
# fmt: on


@dataclass(frozen=True)
class OffsetAndGrid(Split):
    """Theirs is a table of one row [1 1+n d]: first what is added to all positions, then the grid."""

    def to_ours(self, theirs: list[Tensor]) -> list[Tensor]:
        return [theirs[0][0, 0], theirs[0][0, 1:]]

    def to_theirs(self, ours: list[Tensor]) -> list[Tensor]:
        offset, grid = ours
        return [torch.cat((offset[None], grid))[None]]


def rules(sizes: ViTPoseSizes, head: HeadChoice | None) -> Map:
    found: list[Any] = [
        OffsetAndGrid("backbone.embeddings.position_embeddings", ("embed.position.offset", "embed.position.weight")),
        *rename_modules(MODULES),
        *rename_modules(ATTENTION, ("weight", "bias") if sizes.query_bias else ("weight",)),
    ]
    if sizes.decoder == "deconvolved":
        for number, step in enumerate(("first", "second"), start=1):
            found.append(Rename(f"head.deconv{number}.weight", f"head.{step}.deconvolution.weight"))
            found += [Rename(f"head.batchnorm{number}.{kind}", f"head.{step}.norm.{NORM[kind]}") for kind in NORM]
            count = f"head.batchnorm{number}.num_batches_tracked"
            found.append(Drop(count, "how long the statistics were learned", zeros=()))
    return found


def _read_backbone(config: Mapping[str, Any]) -> dict[str, Any]:
    body = config.get("backbone_config")
    if not isinstance(body, dict):
        raise QkvError("The config.json of a ViTPose lacks its backbone_config.")
    layers = body.get("num_hidden_layers", 12)
    for key, last in (("out_indices", [layers]), ("out_features", [f"stage{layers}"])):
        if body.get(key) not in (None, last):
            raise QkvError(
                f"Maps are drawn here from the last layer, {last[0]}; the config.json has {key} {body[key]}."
            )
    if body.get("out_indices") is None and body.get("out_features") is None:
        raise QkvError("The config.json does not say which layer maps are drawn from: it lacks out_indices.")
    sizes = BODY.read(body)
    ratio = sizes.pop("ratio")
    return {**sizes, "hidden": int(sizes["width"] * ratio)}


def _write_backbone(sizes: ViTPoseSizes) -> dict[str, Any]:
    layers = {"out_indices": [sizes.layers], "out_features": [f"stage{sizes.layers}"]}
    if sizes.hidden % sizes.width:
        raise QkvError("A published ViTPose has hidden units that are a multiple of its width.")
    written = {each.theirs: each.to_theirs(getattr(sizes, each.ours)) for each in BODY.sizes if each.ours != "ratio"}
    written |= {key: meant[0] for key, meant in {**BODY.fixed, **BODY.fixed_by_default}.items()}
    side = {"image_size": [sizes.image, sizes.image_width], "patch_size": [sizes.patch, sizes.patch]}
    return {"backbone_config": {**written, **side, **layers, "mlp_ratio": sizes.hidden // sizes.width}}


def _read_sides(body: Mapping[str, Any]) -> dict[str, Any]:
    image = body.get("image_size", [256, 192])
    image = [image, image] if isinstance(image, int) else image
    if not isinstance(image, list) or len(image) != 2:
        raise QkvError(f'The "image_size" of a ViTPose is a height and a width, not {image!r}.')
    return {"image": image[0], "image_width": image[1], "patch": one_side("patch_size")(body.get("patch_size", 16))}


BODY = ConfigMap(
    name="the encoder of ViTPose",
    sizes=(
        Size("num_channels", "channels", absent=3),
        Size("hidden_size", "width", absent=768),
        Size("num_attention_heads", "heads", absent=12),
        Size("num_hidden_layers", "layers", absent=12),
        Size("mlp_ratio", "ratio", absent=4),
        activation("hidden_act", absent="gelu"),
        Size("layer_norm_eps", "epsilon", absent=1e-12),
        Size("qkv_bias", "query_bias", absent=True),
        Size("hidden_dropout_prob", "dropout", absent=0.0),
        Size("attention_probs_dropout_prob", "attention_dropout", absent=0.0),
    ),
    fixed={"model_type": ("vitpose_backbone",)},
    fixed_by_default={"num_experts": (1,)},
    never={"is_encoder_decoder": (False,)},
    other=frozenset({"part_features", "out_indices", "out_features", "stage_names", "tie_word_embeddings"}),
    together=(Together(frozenset({"image_size", "patch_size"}), _read_sides, lambda sizes: {}),),
)

CONFIG = ConfigMap(
    name="ViTPose",
    sizes=(
        Size(
            "use_simple_decoder",
            "decoder",
            absent=True,
            to_ours=lambda simple: "plain" if simple else "deconvolved",
            to_theirs=lambda decoder: decoder == "plain",
        ),
    ),
    fixed={"model_type": ("vitpose",)},
    fixed_by_default={"scale_factor": (4,)},
    never={"is_encoder_decoder": (False,), "backbone": (None,), "use_pretrained_backbone": (False,),
           "use_timm_backbone": (False,), "backbone_kwargs": (None,)},
    other=frozenset({"tie_word_embeddings", "edges"}),
    together=(Together(frozenset({"backbone_config"}), _read_backbone, _write_backbone),),
)  # fmt: skip

VITPOSE = PublishedFamily(
    model_type="vitpose",
    family="vitpose",
    config=CONFIG,
    architectures={"keypoints": "VitPoseForPoseEstimation"},
    rules=rules,
    fits=lambda sizes: sizes.decoder_width == 256,
)
