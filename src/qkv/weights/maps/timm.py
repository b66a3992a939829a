"""ViT and DeiT as timm saves them: the architecture by its name, and what differs from it.

A name stands for sizes and choices that timm keeps in its code. Of its many kinds those are read that are made of the
parts here; another is refused by its name, by its arguments or by its tensors, whichever tells it first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.models.catalogue import find_family
from qkv.models.head_choice import HeadChoice
from qkv.weights.rules import Flatten, Map, Rename, Split, rename_modules

BLOCK = "stack.blocks.{}"
QKV = tuple(f"{BLOCK}.attention.mixer.project.{part}" for part in ("query", "key", "value"))

# fmt: off
MODULES = [
    ("patch_embed.proj",     "embed.patches"),
    ("blocks.{}.norm1",      f"{BLOCK}.attention.norm"),
    ("blocks.{}.attn.proj",  f"{BLOCK}.attention.mixer.out"),
    ("blocks.{}.norm2",      f"{BLOCK}.feed_forward.norm"),
    ("blocks.{}.mlp.fc1",    f"{BLOCK}.feed_forward.mixer.inner"),
    ("blocks.{}.mlp.fc2",    f"{BLOCK}.feed_forward.mixer.outer"),
    ("norm",                 "stack.norm"),
]
# fmt: on
CLASS = Flatten("cls_token", "embed.class_token", axes=2)
DISTILLATION = Flatten("dist_token", "embed.distillation_token", axes=2)


def rules(family: str, query_bias: bool, head: HeadChoice) -> Map:
    heads = [("head", "head.out")] if head.labels else []
    if head.kind == "distilled":
        heads.append(("head_dist", "head.teacher_out"))
    bias: list[Rename | Split] = []
    if query_bias:
        bias = [Split("blocks.{}.attn.qkv.bias", tuple(f"{name}.bias" for name in QKV))]
    return [
        CLASS,
        *([DISTILLATION] if family == "deit" else []),
        Flatten("pos_embed", "embed.position.weight"),
        *rename_modules(MODULES),
        Split("blocks.{}.attn.qkv.weight", tuple(f"{name}.weight" for name in QKV)),
        *bias,
        *rename_modules(heads),
    ]


NAME = re.compile(r"(vit|deit)_(tiny|small|base|large|huge)(_distilled)?_patch(\d+)_(\d+)")
NAMES = "vit_{tiny,small,base,large,huge}_patch16_224 and its like, deit_{tiny,small,base}[_distilled]_patch16_224"
# Width, layers, heads.
SCALES = {
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "huge": (1280, 32, 16),
}
# Arguments that are sizes of ours, and those that must be as they are without being said.
ARGUMENTS = {
    "img_size": "image",
    "patch_size": "patch",
    "in_chans": "channels",
    "embed_dim": "width",
    "depth": "layers",
    "num_heads": "heads",
    "qkv_bias": "query_bias",
    "attn_drop_rate": "attention_dropout",
    "drop_path_rate": "path_dropout",
}
FIXED: dict[str, tuple[Any, ...]] = {
    "global_pool": ("token",),
    "class_token": (True,),
    "pos_embed": ("learn",),
    "no_embed_class": (False,),
    "reg_tokens": (0,),
    "pre_norm": (False,),
    "final_norm": (True,),
    "fc_norm": (None, False),
    "qk_norm": (False,),
    "proj_bias": (True,),
    "init_values": (None,),
    "drop_rate": (0.0,),
    "pos_drop_rate": (0.0,),
    "patch_drop_rate": (0.0,),
    "proj_drop_rate": (0.0,),
    "dynamic_img_size": (False, True),  # pictures of any size are read anyway
    "dynamic_img_pad": (False,),
}
OTHER_ARGUMENTS = {"num_classes", "mlp_ratio", "weight_init", "fix_init"}
KEYS = {
    "architecture", "num_classes", "num_features", "global_pool", "label_names", "label_descriptions", "model_args",
    "pretrained_cfg",
}  # fmt: skip
# What tensors tell that is not among the parts.
REFUSED = {
    r"blocks\.0\.ls1\..*": "scales of what each sub-layer adds (LayerScale)",
    r"reg_token": "register tokens",
    r"norm_pre\..*": "a norm before the first block",
    r"fc_norm\..*": "a norm after the mean of all patches",
    r"attn_pool\..*": "attention that pools",
    r"blocks\.0\.attn\.q_norm\..*": "norms of queries and keys",
    r"pre_logits\..*": "a layer before the classifier",
}


def is_timm(config: Any) -> bool:
    return isinstance(config, dict) and "architecture" in config and not {"model_type", "format"} & config.keys()


def read_config(config: Mapping[str, Any], folder: Path) -> tuple[str, Any, HeadChoice]:
    """The family, its sizes and its head."""
    if unknown := sorted(set(config) - KEYS):
        raise QkvError(f"The config.json of {folder} has keys that timm does not write: {', '.join(unknown)}.")
    named = NAME.fullmatch(str(config["architecture"]))
    if named is None:
        raise QkvError(f"{folder} holds timm's {config['architecture']}; of timm's models qkv reads {NAMES}.")
    family = "deit" if named[3] else "vit"
    arguments = {"global_pool": config.get("global_pool", "token"), **_object(config, "model_args", folder)}
    for name, value in arguments.items():
        if name in FIXED and value not in FIXED[name]:
            raise QkvError(f"{folder} holds a model with {name} {value!r}; qkv reads those with {FIXED[name][0]!r}.")
    if unknown := sorted(set(arguments) - ARGUMENTS.keys() - FIXED.keys() - OTHER_ARGUMENTS):
        raise QkvError(f"The config.json of {folder} has arguments that qkv does not know: {', '.join(unknown)}.")
    width, layers, heads = SCALES[named[2]]
    values = {"image": int(named[5]), "patch": int(named[4]), "width": width, "layers": layers, "heads": heads}
    values |= _input(_object(config, "pretrained_cfg", folder).get("input_size"), folder)
    values |= {ours: arguments[theirs] for theirs, ours in ARGUMENTS.items() if theirs in arguments}
    if config.get("num_features", values["width"]) != values["width"]:
        raise QkvError(f"The config.json of {folder} has num_features {config['num_features']} for {values['width']}.")
    values["hidden"] = int(values["width"] * arguments.get("mlp_ratio", 4))
    sizes = find_family(family).sizes({**values, "epsilon": 1e-6, "resampling": "bicubic_antialiased"})
    return family, sizes, _head(config, arguments, family, folder)


def _object(config: Mapping[str, Any], key: str, folder: Path) -> dict[str, Any]:
    value = config.get(key) or {}
    if not isinstance(value, dict):
        raise QkvError(f'In the config.json of {folder}, "{key}" must be an object, not {value!r}.')
    return value


def _input(size: Any, folder: Path) -> dict[str, Any]:
    """What pictures the model was made for: channels, height and width."""
    if size is None:
        return {}
    if not isinstance(size, list) or len(size) != 3 or size[1] != size[2]:
        raise QkvError(f'The "input_size" of {folder} must be [channels, side, side] of square pictures, not {size!r}.')
    return {"channels": size[0], "image": size[1]}


def _head(config: Mapping[str, Any], arguments: Mapping[str, Any], family: str, folder: Path) -> HeadChoice:
    count = arguments.get("num_classes", config.get("num_classes", 1000))
    if type(count) is not int or count < 0:
        raise QkvError(f'In the config.json of {folder}, "num_classes" must be a whole number, not {count!r}.')
    if count == 0:
        return HeadChoice("states")
    names = config.get("label_names") or [f"LABEL_{number}" for number in range(count)]
    if isinstance(names, dict):
        names = [names.get(str(number)) for number in range(count)]
    if not isinstance(names, list) or len(names) != count or not all(isinstance(name, str) for name in names):
        raise QkvError(f'The "label_names" of {folder} must name each of its {count} classes.')
    return HeadChoice("distilled" if family == "deit" else "classification", tuple(names))


def refuse_others(tensors: Collection[str], folder: Path) -> None:
    """Kinds of ViT that differ in their tensors and not always in their names."""
    for pattern, what in REFUSED.items():
        if any(re.fullmatch(pattern, name) for name in tensors):
            raise QkvError(f"{folder} holds a ViT with {what}, which qkv does not have.")
