"""DETR as Hugging Face's transformers saves it. The names on disk are older than those in memory.

Its residual network goes by two sets of names: those of transformers, which has no dilated one, and those of timm,
which all published models have and which knows networks by their names alone. Either is read; timm's is written where
there is no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from qkv.errors import QkvError
from qkv.models.detr import DetrSizes
from qkv.models.head_choice import HeadChoice
from qkv.weights.config_map import ConfigMap, Size, Together, activation
from qkv.weights.maps.two_stacks import LAYERS
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Drop, Map, Rename, rename_modules

BODY = "model.backbone.conv_encoder.model."
STEPS = {"bottleneck": 3, "basic": 2}
NORM = {"weight": "weight", "bias": "bias", "running_mean": "running_mean", "running_var": "running_variance"}

# fmt: off
MODULES = [
    ("model.input_projection",                            "project"),
    *LAYERS,
    ("model.decoder.layernorm",                           "decoder.norm"),
]
HEAD = [
    ("class_labels_classifier",                           "head.classes"),
    ("bbox_predictor.layers.{}",                          "head.box.{}"),
]
# The residual networks that timm has by name: their blocks and depths. The widths follow from the blocks.
TIMM = {
    "resnet18":  ("basic",      (2, 2, 2, 2)),
    "resnet34":  ("basic",      (3, 4, 6, 3)),
    "resnet50":  ("bottleneck", (3, 4, 6, 3)),
    "resnet101": ("bottleneck", (3, 4, 23, 3)),
    "resnet152": ("bottleneck", (3, 8, 36, 3)),
}
# fmt: on


def convolution_rules(theirs: str, norm: str, ours: str) -> Iterator[Rename | Drop]:
    yield Rename(f"{theirs}.weight", f"{ours}.convolution.weight")
    for their_kind, kind in NORM.items():
        yield Rename(f"{norm}.{their_kind}", f"{ours}.norm.{kind}")
    yield Drop(f"{norm}.num_batches_tracked", "how long the statistics were learned")


def transformers_rules(sizes: DetrSizes) -> Iterator[Rename | Drop]:
    """The residual network as transformers calls it."""

    def parts(theirs: str, ours: str) -> Iterator[Rename | Drop]:
        return convolution_rules(f"{theirs}.convolution", f"{theirs}.normalization", ours)

    yield from parts(f"{BODY}embedder.embedder", "backbone.stem")
    for stage in range(len(sizes.stage_depths)):
        theirs, ours = f"{BODY}encoder.stages.{stage}.layers.{{}}", f"backbone.stages.{stage}.{{}}"
        yield from parts(f"{theirs}.shortcut", f"{ours}.shortcut")
        for step in range(STEPS[sizes.residual]):
            yield from parts(f"{theirs}.layer.{step}", f"{ours}.steps.{step}")


def timm_rules(sizes: DetrSizes) -> Iterator[Rename | Drop]:
    """The same as timm calls it."""
    yield from convolution_rules(f"{BODY}conv1", f"{BODY}bn1", "backbone.stem")
    for stage in range(len(sizes.stage_depths)):
        theirs, ours = f"{BODY}layer{stage + 1}.{{}}", f"backbone.stages.{stage}.{{}}"
        yield from convolution_rules(f"{theirs}.downsample.0", f"{theirs}.downsample.1", f"{ours}.shortcut")
        for step in range(STEPS[sizes.residual]):
            yield from convolution_rules(f"{theirs}.conv{step + 1}", f"{theirs}.bn{step + 1}", f"{ours}.steps.{step}")


def rules(sizes: DetrSizes, head: HeadChoice | None) -> Map:
    """Both sets of names are read; the first is written."""
    assert head is not None
    forms = [transformers_rules(sizes), timm_rules(sizes)]
    first, second = forms if sizes.last_stride == 2 else reversed(forms)
    return [
        *first,
        *second,
        Rename("model.query_position_embeddings.weight", "queries"),
        *rename_modules(MODULES),
        *(rename_modules(HEAD) if head.kind == "detection" else ()),
    ]


def one_form(sizes: DetrSizes, tensors: Mapping[str, Tensor]) -> DetrSizes:
    """A network that is there under both sets of names could be either of two."""
    if f"{BODY}conv1.weight" in tensors and f"{BODY}embedder.embedder.convolution.weight" in tensors:
        raise QkvError("The weights hold a residual network by timm's names and another by those of transformers.")
    return sizes


def timm_widths(residual: str) -> tuple[int, ...]:
    return tuple((4 if residual == "bottleneck" else 1) * width for width in (64, 128, 256, 512))


def read_backbone(config: Mapping[str, Any]) -> dict[str, Any]:
    """The residual network, as old and new files describe it."""
    body = config.get("backbone_config")
    if body is None:
        if config.get("use_timm_backbone", True) is not True:
            raise QkvError("The config.json says nothing of its residual network: it lacks backbone_config.")
        body = {"model_type": "timm_backbone", "backbone": config.get("backbone") or "resnet50"}
        body |= {"out_indices": [1, 2, 3, 4], **(config.get("backbone_kwargs") or {})}
    if not isinstance(body, dict):
        raise QkvError(f'The "backbone_config" of a DETR must be an object, not {body!r}.')
    dilated = config.get("dilation", False)
    if dilated not in (True, False):
        raise QkvError(f'The "dilation" of a DETR is true or false, not {dilated!r}.')
    if body.get("model_type") == "resnet":
        if dilated:
            raise QkvError(
                "A residual network by the names of transformers has no dilation; the config.json asks for it."
            )
        return RESNET.read(body)
    if body.get("model_type") != "timm_backbone":
        raise QkvError(f"The network under a DETR here is a residual one, not {body.get('model_type')!r}.")
    body = {**body, "output_stride": body.get("output_stride") or (16 if dilated else 32)}
    if dilated != (body["output_stride"] == 16):
        raise QkvError(f"The config.json has dilation {dilated} and an output_stride of {body['output_stride']!r}.")
    return TIMM_BODY.read(body)


def write_backbone(sizes: DetrSizes) -> dict[str, Any]:
    if sizes.last_stride == 2:
        names = [f"stage{number + 1}" for number in range(len(sizes.stage_depths))]
        described = {**RESNET.write(sizes), "out_features": names[-1:], "out_indices": [len(names)]}
        return {"backbone_config": described, "use_timm_backbone": False, "dilation": False}
    return {"backbone_config": TIMM_BODY.write(sizes), "dilation": True}


def _named_network(body: Mapping[str, Any]) -> dict[str, Any]:
    if body.get("backbone") not in TIMM:
        raise QkvError(f"The residual networks here are {', '.join(TIMM)}, not {body.get('backbone')!r}.")
    residual, depths = TIMM[body["backbone"]]
    stride = 1 if body["output_stride"] == 16 else 2
    return {
        "stem": 64, "residual": residual, "stage_depths": depths, "stage_widths": timm_widths(residual),
        "last_stride": stride,
    }  # fmt: skip


def _network_name(sizes: DetrSizes) -> dict[str, Any]:
    for name, (residual, depths) in TIMM.items():
        alike = (sizes.stem, sizes.residual, sizes.stage_depths, sizes.stage_widths)
        if alike == (64, residual, depths, timm_widths(residual)):
            return {"backbone": name, "output_stride": 16 if sizes.last_stride == 1 else 32}
    raise QkvError(f"A dilated residual network is published by its name alone, and only as {', '.join(TIMM)}.")


# What a residual network says of itself that this use of it does not ask for.
UNUSED = frozenset({"out_features", "out_indices", "stage_names", "tie_word_embeddings", "num_channels"})
RESNET = ConfigMap(
    name="the residual network of DETR",
    sizes=(
        Size("embedding_size", "stem", absent=64),
        Size("hidden_sizes", "stage_widths", absent=[256, 512, 1024, 2048], to_ours=tuple, to_theirs=list),
        Size("depths", "stage_depths", absent=[3, 4, 6, 3], to_ours=tuple, to_theirs=list),
        Size("layer_type", "residual", absent="bottleneck"),
    ),
    fixed={"model_type": ("resnet",)},
    fixed_by_default={
        "hidden_act": ("relu",),
        "downsample_in_first_stage": (False,),
        "downsample_in_bottleneck": (False,),
    },
    never={"is_encoder_decoder": (False,)},
    other=UNUSED,
)
TIMM_BODY = ConfigMap(
    name="the residual network of DETR",
    sizes=(),
    fixed={"model_type": ("timm_backbone",)},
    fixed_by_default={
        "features_only": (True,),
        "out_indices": ([1, 2, 3, 4],),
        "use_pretrained_backbone": (False, True),
    },
    never={"is_encoder_decoder": (False,), "freeze_batch_norm_2d": (False, True)},
    other=frozenset({"num_channels", "in_chans", "tie_word_embeddings", "out_features", "stage_names"}),
    together=(Together(frozenset({"backbone", "output_stride"}), _named_network, _network_name),),
)

# What the losses weigh, which an objective says here, and what no part of a DETR has.
NOT_HERE = frozenset({
    "class_cost", "bbox_cost", "giou_cost", "mask_loss_coefficient", "dice_loss_coefficient", "bbox_loss_coefficient",
    "giou_loss_coefficient", "eos_coefficient", "init_xavier_std", "classifier_dropout", "max_position_embeddings",
    "tie_word_embeddings", "use_pretrained_backbone",
})  # fmt: skip
CONFIG = ConfigMap(
    name="DETR",
    sizes=(
        Size("num_channels", "channels", absent=3),
        Size("num_queries", "queries", absent=100),
        Size("d_model", "width"),
        Size("encoder_ffn_dim", "encoder_hidden"),
        Size("decoder_ffn_dim", "decoder_hidden"),
        Size("encoder_attention_heads", "encoder_heads"),
        Size("decoder_attention_heads", "decoder_heads"),
        Size("encoder_layers", "encoder_layers"),
        Size("decoder_layers", "decoder_layers"),
        activation("activation_function", absent="relu"),
        Size("dropout", "dropout", absent=0.1),
        Size("attention_dropout", "attention_dropout", absent=0.0),
        Size("activation_dropout", "hidden_dropout", absent=0.0),
    ),
    fixed={"model_type": ("detr",)},
    fixed_by_default={
        "is_encoder_decoder": (True,),
        "position_embedding_type": ("sine",),
        # With it the reference norms the stream between the layers of its decoder, which DETR does not.
        "auxiliary_loss": (False,),
        "encoder_layerdrop": (0.0,),
        "decoder_layerdrop": (0.0,),
    },
    never={"scale_embedding": (False,)},
    other=NOT_HERE,
    same=(
        ("num_hidden_layers", "encoder_layers"),
        ("hidden_size", "d_model"),
        ("num_attention_heads", "encoder_attention_heads"),
    ),
    together=(
        Together(
            frozenset({"backbone_config", "backbone", "use_timm_backbone", "backbone_kwargs", "dilation"}),
            read_backbone,
            write_backbone,
        ),
    ),
)

DETR = PublishedFamily(
    model_type="detr",
    family="detr",
    config=CONFIG,
    architectures={"states": "DetrModel", "detection": "DetrForObjectDetection"},
    rules=rules,
    settle=one_form,
    untold=("map_norm",),  # which learns or not
    base="model.",
)
