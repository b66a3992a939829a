"""CLIP and its two towers as Hugging Face's transformers saves them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from qkv.models.clip import OF_A_TOWER, OF_IMAGE, OF_TEXT, CLIPSizes, CLIPTextSizes, TowerSizes, image_sizes, text_sizes
from qkv.models.head_choice import HeadChoice
from qkv.weights.config_map import ConfigMap, Size, Together, activation
from qkv.weights.maps.vit import one_side
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Drop, Map, Rename, rename_modules

TEXT, IMAGE = "text_model.", "vision_model."
LARGEST = 2  # the end of a text in old files, which means the largest token of its row

# fmt: off
LAYER = [
    ("encoder.layers.{}.layer_norm1",          "stack.blocks.{}.attention.norm"),
    ("encoder.layers.{}.self_attn.q_proj",     "stack.blocks.{}.attention.mixer.project.query"),
    ("encoder.layers.{}.self_attn.k_proj",     "stack.blocks.{}.attention.mixer.project.key"),
    ("encoder.layers.{}.self_attn.v_proj",     "stack.blocks.{}.attention.mixer.project.value"),
    ("encoder.layers.{}.self_attn.out_proj",   "stack.blocks.{}.attention.mixer.out"),
    ("encoder.layers.{}.layer_norm2",          "stack.blocks.{}.feed_forward.norm"),
    ("encoder.layers.{}.mlp.fc1",              "stack.blocks.{}.feed_forward.mixer.inner"),
    ("encoder.layers.{}.mlp.fc2",              "stack.blocks.{}.feed_forward.mixer.outer"),
]
# fmt: on


def layers(theirs: str, ours: str) -> Iterator[Rename]:
    return rename_modules((theirs + their_name, ours + our_name) for their_name, our_name in LAYER)


def text_rules(head: HeadChoice, ours: str = "") -> Map:
    projection: Rename | Drop = Rename("text_projection.weight", f"{ours}head.out.weight")
    if head.kind != "projection":
        projection = Drop("text_projection.weight", "no answer of this head is projected")
    return [
        Rename(f"{TEXT}embeddings.token_embedding.weight", f"{ours}embed.tokens.weight"),
        Rename(f"{TEXT}embeddings.position_embedding.weight", f"{ours}embed.position.weight"),
        Drop(f"{TEXT}embeddings.position_ids", "the numbers 0, 1, 2, …, counted"),
        *layers(TEXT, ours),
        *rename_modules([(f"{TEXT}final_layer_norm", f"{ours}stack.norm")]),
        projection,
    ]


def image_rules(head: HeadChoice, width: int, ours: str = "") -> Map:
    projection: Rename | Drop = Rename("visual_projection.weight", f"{ours}head.out.weight")
    if head.kind != "projection":
        projection = Drop("visual_projection.weight", "no answer of this head is projected")
    post: Map = list(rename_modules([(f"{IMAGE}post_layernorm", f"{ours}head.pool.norm")]))
    if head.kind not in ("pooled", "projection"):
        reason = "no answer of this head is made from the class token"
        post = [Drop(f"{IMAGE}post_layernorm.{kind}", reason, zeros=(width,)) for kind in ("weight", "bias")]
    return [
        Rename(f"{IMAGE}embeddings.class_embedding", f"{ours}embed.class_token"),
        Rename(f"{IMAGE}embeddings.patch_embedding.weight", f"{ours}embed.patches.weight"),
        Rename(f"{IMAGE}embeddings.position_embedding.weight", f"{ours}embed.position.weight"),
        Drop(f"{IMAGE}embeddings.position_ids", "the numbers 0, 1, 2, …, counted"),
        *rename_modules([(f"{IMAGE}pre_layrnorm", f"{ours}embed.norm")]),
        *layers(IMAGE, ours),
        *post,
        projection,
    ]


def tower_rules(sizes: TowerSizes, head: HeadChoice | None) -> Map:
    assert head is not None
    return text_rules(head) if isinstance(sizes, CLIPTextSizes) else image_rules(head, sizes.width)


def tower_config(name: str, model_type: str, width: int, heads: int, own: tuple[Size, ...]) -> ConfigMap:
    """What a key means that is not there, is what it means to the reference; old files leave many out."""
    return ConfigMap(
        name=name,
        sizes=(
            *own,
            Size("hidden_size", "width", absent=width),
            Size("intermediate_size", "hidden", absent=4 * width),
            Size("num_attention_heads", "heads", absent=heads),
            Size("num_hidden_layers", "layers", absent=12),
            Size("projection_dim", "projection", absent=512),
            activation("hidden_act", absent="quick_gelu"),
            Size("layer_norm_eps", "epsilon", absent=1e-5),
            Size("attention_dropout", "attention_dropout", absent=0.0),
        ),
        fixed={"model_type": (model_type,)},
        fixed_by_default={},
        never={"dropout": (0.0,), "is_decoder": (False,), "is_encoder_decoder": (False,)},
        other=frozenset({"tie_word_embeddings", "tf_legacy_loss"}),
    )


TEXT_CONFIG = tower_config(
    "CLIP's text model",
    "clip_text_model",
    512,
    8,
    (
        Size("vocab_size", "vocabulary", absent=49408),
        Size("max_position_embeddings", "positions", absent=77),
        Size(
            "eos_token_id",
            "end",
            absent=49407,
            to_ours=lambda end: None if end == LARGEST else end,
            to_theirs=lambda end: LARGEST if end is None else end,
        ),
    ),
)
IMAGE_CONFIG = tower_config(
    "CLIP's image model",
    "clip_vision_model",
    768,
    12,
    (
        Size("image_size", "image", absent=224, to_ours=one_side("image_size")),
        Size("patch_size", "patch", absent=32, to_ours=one_side("patch_size")),
        Size("num_channels", "channels", absent=3),
    ),
)


def read_tower(config: Mapping[str, Any], theirs: str, ours: str, towers: ConfigMap, own: tuple[str, ...]) -> Any:
    """A tower's sizes from the part of the configuration that is about it.

    Some files have that twice; then the reference goes by the second, whose name ends in `_dict`.
    """
    given = config.get(f"{theirs}_config_dict")
    given = config.get(f"{theirs}_config") if given is None else given
    sizes = towers.read({"model_type": towers.fixed["model_type"][0], **(given or {})})
    named = {f"{ours}_{name}": sizes[name] for name in OF_A_TOWER}
    return {**named, **{name: sizes[name] for name in own}}


CONFIG = ConfigMap(
    name="CLIP",
    sizes=(Size("projection_dim", "projection", absent=512),),
    fixed={"model_type": ("clip",)},
    fixed_by_default={},
    never={"is_encoder_decoder": (False,), "is_decoder": (False,)},
    other=frozenset({"logit_scale_init_value", "tie_word_embeddings", "tf_legacy_loss"}),
    together=(
        Together(
            frozenset({"text_config", "text_config_dict"}),
            lambda config: read_tower(config, "text", "text", TEXT_CONFIG, OF_TEXT),
            lambda sizes: {"text_config": TEXT_CONFIG.write(text_sizes(sizes))},
        ),
        Together(
            frozenset({"vision_config", "vision_config_dict"}),
            lambda config: read_tower(config, "vision", "image", IMAGE_CONFIG, OF_IMAGE),
            lambda sizes: {"vision_config": IMAGE_CONFIG.write(image_sizes(sizes))},
        ),
    ),
)


def both_rules(sizes: CLIPSizes, head: HeadChoice | None) -> Map:
    projection = HeadChoice("projection")
    return [
        *text_rules(projection, "text."),
        *image_rules(projection, sizes.image_width, "image."),
        Rename("logit_scale", "log_scale"),
    ]


CLIP = PublishedFamily(
    model_type="clip", family="clip", config=CONFIG, architectures={"": "CLIPModel"}, rules=both_rules
)

CLIP_TEXT = PublishedFamily(
    model_type="clip_text_model",
    family="clip-text",
    config=TEXT_CONFIG,
    architectures={"projection": "CLIPTextModelWithProjection", "pooled": "CLIPTextModel", "states": "CLIPTextModel"},
    rules=tower_rules,
    base=TEXT,
    marks={"projection": ("text_projection.weight",)},
)

CLIP_IMAGE = PublishedFamily(
    model_type="clip_vision_model",
    family="clip-image",
    config=IMAGE_CONFIG,
    architectures={
        "projection": "CLIPVisionModelWithProjection",
        "pooled": "CLIPVisionModel",
        "states": "CLIPVisionModel",
    },
    rules=tower_rules,
    base=IMAGE,
    marks={
        "projection": ("visual_projection.weight",),
        "pooled": (f"{IMAGE}post_layernorm.weight",),
    },
)
