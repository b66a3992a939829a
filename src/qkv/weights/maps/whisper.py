"""Whisper as Hugging Face's transformers saves it."""

from __future__ import annotations

from qkv.models.head_choice import HeadChoice
from qkv.models.whisper import WhisperEncoderSizes
from qkv.weights.config_map import ConfigMap, Size, activation
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Copy, Map, Rename, rename_modules

# fmt: off
MODULES = [
    ("model.encoder.conv1",                               "source.near"),
    ("model.encoder.conv2",                               "source.halving"),
    ("model.encoder.layers.{}.self_attn.q_proj",          "encoder.blocks.{}.attention.mixer.project.query"),
    ("model.encoder.layers.{}.self_attn.v_proj",          "encoder.blocks.{}.attention.mixer.project.value"),
    ("model.encoder.layers.{}.self_attn.out_proj",        "encoder.blocks.{}.attention.mixer.out"),
    ("model.encoder.layers.{}.self_attn_layer_norm",      "encoder.blocks.{}.attention.norm"),
    ("model.encoder.layers.{}.fc1",                       "encoder.blocks.{}.feed_forward.mixer.inner"),
    ("model.encoder.layers.{}.fc2",                       "encoder.blocks.{}.feed_forward.mixer.outer"),
    ("model.encoder.layers.{}.final_layer_norm",          "encoder.blocks.{}.feed_forward.norm"),
    ("model.encoder.layer_norm",                          "encoder.norm"),
    ("model.decoder.layers.{}.self_attn.q_proj",          "decoder.blocks.{}.attention.mixer.project.query"),
    ("model.decoder.layers.{}.self_attn.v_proj",          "decoder.blocks.{}.attention.mixer.project.value"),
    ("model.decoder.layers.{}.self_attn.out_proj",        "decoder.blocks.{}.attention.mixer.out"),
    ("model.decoder.layers.{}.self_attn_layer_norm",      "decoder.blocks.{}.attention.norm"),
    ("model.decoder.layers.{}.encoder_attn.q_proj",       "decoder.blocks.{}.cross.mixer.query"),
    ("model.decoder.layers.{}.encoder_attn.v_proj",       "decoder.blocks.{}.cross.mixer.project.value"),
    ("model.decoder.layers.{}.encoder_attn.out_proj",     "decoder.blocks.{}.cross.mixer.out"),
    ("model.decoder.layers.{}.encoder_attn_layer_norm",   "decoder.blocks.{}.cross.norm"),
    ("model.decoder.layers.{}.fc1",                       "decoder.blocks.{}.feed_forward.mixer.inner"),
    ("model.decoder.layers.{}.fc2",                       "decoder.blocks.{}.feed_forward.mixer.outer"),
    ("model.decoder.layers.{}.final_layer_norm",          "decoder.blocks.{}.feed_forward.norm"),
    ("model.decoder.layer_norm",                          "decoder.norm"),
]
# Keys have no bias.
TABLES = [
    ("model.encoder.embed_positions",                     "source.position"),
    ("model.encoder.layers.{}.self_attn.k_proj",          "encoder.blocks.{}.attention.mixer.project.key"),
    ("model.decoder.embed_tokens",                        "target.tokens"),
    ("model.decoder.embed_positions",                     "target.position"),
    ("model.decoder.layers.{}.self_attn.k_proj",          "decoder.blocks.{}.attention.mixer.project.key"),
    ("model.decoder.layers.{}.encoder_attn.k_proj",       "decoder.blocks.{}.cross.mixer.project.key"),
]
# fmt: on

HEARS = "model.encoder."
OURS = {"source": "embed", "encoder": "stack"}  # of a model that hears alone


def _alone(names: tuple[str, str]) -> tuple[str, str]:
    """The names of a module of the encoder where there is no decoder."""
    theirs, ours = names
    place, _, rest = ours.partition(".")
    return theirs.removeprefix("model."), f"{OURS[place]}.{rest}"


def encoder_rules(sizes: WhisperEncoderSizes, head: HeadChoice | None) -> Map:
    heard = [_alone(names) for names in MODULES if names[0].startswith(HEARS)]
    tables = [_alone(names) for names in TABLES if names[0].startswith(HEARS)]
    found: list[Rename] = [
        *rename_modules([*heard, ("projector", "head.project"), ("classifier", "head.out")]),
        *(Rename(f"{theirs}.weight", f"{ours}.weight") for theirs, ours in tables),
    ]
    if sizes.summed:
        found.append(Rename("layer_weights", "stack.shares"))
    return found


RULES: Map = [
    Copy("proj_out.weight", of="model.decoder.embed_tokens.weight"),
    *rename_modules(MODULES),
    *(Rename(f"{theirs}.weight", f"{ours}.weight") for theirs, ours in TABLES),
]

HIDES = frozenset(
    {
        "mask_time_prob",  # how frames are hidden in training, which `apply_spec_augment` switches on
        "mask_time_length",
        "mask_time_min_masks",
        "mask_feature_prob",
        "mask_feature_length",
        "mask_feature_min_masks",
    }
)
CONFIG = ConfigMap(
    name="Whisper",
    sizes=(
        Size("vocab_size", "vocabulary"),
        Size("num_mel_bins", "mels"),
        Size("max_source_positions", "source_positions"),
        Size("max_target_positions", "target_positions"),
        Size("d_model", "width"),
        Size("encoder_ffn_dim", "encoder_hidden"),
        Size("decoder_ffn_dim", "decoder_hidden"),
        Size("encoder_attention_heads", "encoder_heads"),
        Size("decoder_attention_heads", "decoder_heads"),
        Size("encoder_layers", "encoder_layers"),
        Size("decoder_layers", "decoder_layers"),
        activation("activation_function", absent="gelu"),
        Size("dropout", "dropout", absent=0.0),
        Size("activation_dropout", "hidden_dropout", absent=0.0),
        Size("attention_dropout", "attention_dropout", absent=0.0),
    ),
    fixed={"model_type": ("whisper",)},
    fixed_by_default={
        "is_encoder_decoder": (True,),
        "is_decoder": (False,),
        "scale_embedding": (False,),
        "tie_word_embeddings": (True,),
        "encoder_layerdrop": (0.0, 0),
        "decoder_layerdrop": (0.0, 0),
    },
    never={"use_weighted_layer_sum": (False,), "apply_spec_augment": (False,)},
    other=HIDES
    | {
        "classifier_proj_size",  # of another head
        "median_filter_width",  # of word times
        "forced_decoder_ids",  # how outputs begin
        "max_length",
    },
    same=(("num_hidden_layers", "encoder_layers"),),
)

WHISPER = PublishedFamily(
    model_type="whisper",
    family="whisper",
    config=CONFIG,
    architectures={"": "WhisperForConditionalGeneration"},
    rules=lambda sizes, head: RULES,
)

ENCODER_CONFIG = ConfigMap(
    name="Whisper's encoder",
    sizes=(
        Size("num_mel_bins", "mels"),
        Size("max_source_positions", "source_positions"),
        Size("d_model", "width"),
        Size("encoder_ffn_dim", "hidden"),
        Size("encoder_attention_heads", "heads"),
        Size("encoder_layers", "layers"),
        activation("activation_function", absent="gelu"),
        Size("dropout", "dropout", absent=0.0),
        Size("activation_dropout", "hidden_dropout", absent=0.0),
        Size("attention_dropout", "attention_dropout", absent=0.0),
        Size("classifier_proj_size", "decision_width", absent=256),
        Size("use_weighted_layer_sum", "summed", absent=False),
    ),
    fixed={"model_type": ("whisper",)},
    fixed_by_default={"is_decoder": (False,), "scale_embedding": (False,), "encoder_layerdrop": (0.0, 0)},
    never={"apply_spec_augment": (False,)},
    other=HIDES
    | {
        "vocab_size",  # of the half that writes, which there is not
        "decoder_layers",
        "decoder_ffn_dim",
        "decoder_attention_heads",
        "decoder_layerdrop",
        "max_target_positions",
        "is_encoder_decoder",
        "tie_word_embeddings",
        "median_filter_width",
        "forced_decoder_ids",
        "max_length",
    },
    same=(("num_hidden_layers", "encoder_layers"),),
)

WHISPER_ENCODER = PublishedFamily(
    model_type="whisper",
    family="whisper-encoder",
    config=ENCODER_CONFIG,
    architectures={"classification": "WhisperForAudioClassification"},
    rules=encoder_rules,
)
