"""Mixtral as Hugging Face's transformers saves it: each expert under its own number."""

from __future__ import annotations

from qkv.models.head_choice import HeadChoice
from qkv.models.mixtral import MixtralSizes
from qkv.weights.config_map import ConfigMap, Size
from qkv.weights.maps.llama import COMMON, HEAD_WIDTH, complete, head_architectures, rules_but_feed_forward
from qkv.weights.maps.rotary_config import rotary_of
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Gather, Map, Rename

FEED_FORWARD = "stack.blocks.{}.feed_forward.mixer"
MAPS = [("w1", "gate"), ("w3", "value"), ("w2", "outer")]


def rules(sizes: MixtralSizes, head: HeadChoice | None) -> Map:
    theirs = "model.layers.{}.block_sparse_moe"
    experts = [
        Gather(
            tuple(f"{theirs}.experts.{number}.{name}.weight" for number in range(sizes.experts)),
            f"{FEED_FORWARD}.{ours}.weight",
        )
        for name, ours in MAPS
    ]
    return [
        *rules_but_feed_forward(sizes, head),
        Rename(f"{theirs}.gate.weight", f"{FEED_FORWARD}.router.weight"),
        *experts,
    ]


MIXTRAL = PublishedFamily(
    model_type="mixtral",
    family="mixtral",
    config=ConfigMap(
        name="Mixtral",
        sizes=(
            *COMMON,
            HEAD_WIDTH,
            Size("num_key_value_heads", "key_value_heads", absent=8),
            Size("sliding_window", "window", absent=None),
            Size("num_local_experts", "experts", absent=8),
            Size("num_experts_per_tok", "chosen", absent=2),
        ),
        fixed={"model_type": ("mixtral",)},
        fixed_by_default={"router_jitter_noise": (0.0,)},
        together=(rotary_of(1_000_000.0),),
        other=frozenset({"output_router_logits", "router_aux_loss_coef"}),  # of training
        complete=complete,
    ),
    architectures=head_architectures("Mixtral"),
    rules=rules,
    base="model.",
    fits=lambda sizes: not (sizes.attention_bias or sizes.output_bias or sizes.feed_forward_bias),
)
