"""wav2vec 2.0 as Hugging Face's transformers saves it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from qkv.models.head_choice import HeadChoice
from qkv.models.wav2vec2 import Wav2Vec2Sizes
from qkv.weights.config_map import ConfigMap, Size, activation
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Drop, Flatten, Map, Rename, rename_modules

BASE = "wav2vec2."
FRAMES, LAYER, POSITION = (
    f"{BASE}feature_extractor.conv_layers",
    f"{BASE}encoder.layers",
    f"{BASE}encoder.pos_conv_embed",
)
BLOCK = "stack.blocks.{}"
LENGTH, DIRECTION = "conv.parametrizations.weight.original0", "conv.parametrizations.weight.original1"

# fmt: off
MODULES = [
    (f"{BASE}feature_projection.layer_norm",                "embed.features"),
    (f"{BASE}feature_projection.projection",                "embed.project"),
    (f"{LAYER}.{{}}.attention.q_proj",                      f"{BLOCK}.attention.mixer.project.query"),
    (f"{LAYER}.{{}}.attention.k_proj",                      f"{BLOCK}.attention.mixer.project.key"),
    (f"{LAYER}.{{}}.attention.v_proj",                      f"{BLOCK}.attention.mixer.project.value"),
    (f"{LAYER}.{{}}.attention.out_proj",                    f"{BLOCK}.attention.mixer.out"),
    (f"{LAYER}.{{}}.layer_norm",                            f"{BLOCK}.attention.norm"),
    (f"{LAYER}.{{}}.feed_forward.intermediate_dense",       f"{BLOCK}.feed_forward.mixer.inner"),
    (f"{LAYER}.{{}}.feed_forward.output_dense",             f"{BLOCK}.feed_forward.mixer.outer"),
    (f"{LAYER}.{{}}.final_layer_norm",                      f"{BLOCK}.feed_forward.norm"),
]
HEADS = {
    "ctc": [("lm_head", "head.out")],
    "classification": [("projector", "head.project"), ("classifier", "head.out")],
    "tokens": [("classifier", "head.out")],
    "pretraining": [
        ("quantizer.weight_proj", "head.quantiser.choose"),
        ("project_hid", "head.predict"),
        ("project_q", "head.want"),
    ],
}
# fmt: on


@dataclass(frozen=True)
class Line(Rename):
    """Theirs is [1 1 n], ours [n]."""

    def to_ours(self, theirs: list[Tensor]) -> list[Tensor]:
        return [each.reshape(-1) if each.shape[:2] == (1, 1) else each for each in theirs]

    def to_theirs(self, ours: list[Tensor]) -> list[Tensor]:
        return [each[None, None] for each in ours]


def rules(sizes: Wav2Vec2Sizes, head: HeadChoice | None) -> Map:
    assert head is not None
    convolutions = [(f"{FRAMES}.{{}}.conv", "frames.layers.{}.convolution")]
    hides = sizes.hidden_share > 0 or sizes.hidden_channel_share > 0
    hidden = f"{BASE}masked_spec_embed"
    found: list[Rename | Drop] = [
        *rename_modules(MODULES),
        *rename_modules(convolutions, ("weight", "bias") if sizes.frame_bias else ("weight",)),
        *rename_modules([(f"{FRAMES}.{{}}.layer_norm", "frames.layers.{}.norm")]),
        *rename_modules([(f"{BASE}encoder.layer_norm", "stack.norm" if sizes.norm == "before" else "embed.norm")]),
        Line(f"{POSITION}.{LENGTH}", "embed.position.length"),
        Rename(f"{POSITION}.{DIRECTION}", "embed.position.direction"),
        Rename(f"{POSITION}.conv.bias", "embed.position.bias"),
        Rename(hidden, "embed.hidden") if hides else Drop(hidden, "nothing is ever hidden from such a model"),
        *rename_modules(HEADS.get(head.kind, [])),
    ]
    if head.kind == "pretraining":
        found.append(Flatten("quantizer.codevectors", "head.quantiser.entries"))
    if sizes.summed and head.kind in ("classification", "tokens"):
        found.append(Rename("layer_weights", "stack.shares"))
    return found


NORMS = {False: "after", True: "before"}
FRAME_NORMS = {"group": "channel", "layer": "frame"}


def _frame_norm(theirs: str) -> str:
    return FRAME_NORMS.get(theirs, theirs)  # what is not known is refused by the sizes


CONFIG = ConfigMap(
    name="wav2vec 2.0",
    sizes=(
        Size("vocab_size", "vocabulary", absent=32),
        Size("conv_dim", "channels", absent=(512,) * 7, to_theirs=list),
        Size("conv_kernel", "kernels", absent=(10, 3, 3, 3, 3, 2, 2), to_theirs=list),
        Size("conv_stride", "strides", absent=(5, 2, 2, 2, 2, 2, 2), to_theirs=list),
        Size(
            "feat_extract_norm",
            "frame_norm",
            absent="group",
            to_ours=_frame_norm,
            to_theirs=lambda ours: next(theirs for theirs, name in FRAME_NORMS.items() if name == ours),
        ),
        Size("conv_bias", "frame_bias", absent=False),
        activation("feat_extract_activation", "frame_activation", absent="gelu"),
        Size("num_conv_pos_embeddings", "position_kernel", absent=128),
        Size("num_conv_pos_embedding_groups", "position_groups", absent=16),
        Size("hidden_size", "width", absent=768),
        Size("intermediate_size", "hidden", absent=3072),
        Size("num_attention_heads", "heads", absent=12),
        Size("num_hidden_layers", "layers", absent=12),
        Size(
            "do_stable_layer_norm",
            "norm",
            absent=False,
            to_ours=lambda theirs: NORMS.get(theirs, str(theirs)),
            to_theirs=lambda ours: ours == "before",
        ),
        activation("hidden_act", absent="gelu"),
        Size("layer_norm_eps", "epsilon", absent=1e-5),
        Size("hidden_dropout", "dropout", absent=0.1),
        Size("activation_dropout", "hidden_dropout", absent=0.1),
        Size("attention_dropout", "attention_dropout", absent=0.1),
        Size("feat_proj_dropout", "frame_dropout", absent=0.0),
        Size("feat_quantizer_dropout", "quantiser_dropout", absent=0.0),
        Size("final_dropout", "head_dropout", absent=0.1),
        Size("layerdrop", "layer_dropout", absent=0.1),
        Size("apply_spec_augment", "augment", absent=True),
        Size("mask_time_prob", "hidden_share", absent=0.05),
        Size("mask_time_length", "hidden_length", absent=10),
        Size("mask_time_min_masks", "hidden_least", 2, lambda theirs: theirs or None, lambda ours: ours or 0),
        Size("mask_feature_prob", "hidden_channel_share", absent=0.0),
        Size("mask_feature_length", "hidden_channel_length", absent=10),
        Size(
            "mask_feature_min_masks", "hidden_channel_least", 0, lambda theirs: theirs or None, lambda ours: ours or 0
        ),
        Size("num_codevector_groups", "codebooks", absent=2),
        Size("num_codevectors_per_group", "entries", absent=320),
        Size("codevector_dim", "quantised", absent=256),
        Size("proj_codevector_dim", "space", absent=256),
        Size("classifier_proj_size", "decision_width", absent=256),
        Size("use_weighted_layer_sum", "summed", absent=False),
    ),
    fixed={"model_type": ("wav2vec2",)},
    fixed_by_default={"add_adapter": (False,), "adapter_attn_dim": (None,)},
    other=frozenset({
        "num_feat_extract_layers",  # as many as conv_dim has
        "adapter_kernel_size", "adapter_stride", "num_adapter_layers",  # of an adapter, which there is not
        "tdnn_dim", "tdnn_kernel", "tdnn_dilation", "xvector_output_dim",  # of a head that is not read
        # of losses, which objectives have
        "ctc_loss_reduction", "ctc_zero_infinity", "contrastive_logits_temperature", "num_negatives",
        "diversity_loss_weight",
        # of older files, and of none of their models
        "feat_extract_dropout", "hidden_dropout_prob", "mask_channel_length", "mask_channel_min_space",
        "mask_channel_other", "mask_channel_prob", "mask_channel_selection", "mask_time_min_space", "mask_time_other",
        "mask_time_selection",
    }),
    same=(("output_hidden_size", "hidden_size"),),
)  # fmt: skip

WAV2VEC2 = PublishedFamily(
    model_type="wav2vec2",
    family="wav2vec2",
    config=CONFIG,
    architectures={
        "ctc": "Wav2Vec2ForCTC",
        "pretraining": "Wav2Vec2ForPreTraining",
        "states": "Wav2Vec2Model",
        "classification": "Wav2Vec2ForSequenceClassification",
        "tokens": "Wav2Vec2ForAudioFrameClassification",
    },
    rules=rules,
    base=BASE,
    marks={
        "ctc": ("lm_head.weight",),
        "pretraining": ("quantizer.codevectors",),
    },
    older={
        "pos_conv_embed.conv.weight_g": f"pos_conv_embed.{LENGTH}",
        "pos_conv_embed.conv.weight_v": f"pos_conv_embed.{DIRECTION}",
    },
)
