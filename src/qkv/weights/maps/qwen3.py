"""Qwen3 as Hugging Face's transformers saves it: a Llama with two norms more in each attention."""

from __future__ import annotations

from qkv.models.head_choice import HeadChoice
from qkv.models.qwen3 import Qwen3Sizes
from qkv.weights.config_map import ConfigMap, Size
from qkv.weights.maps import llama
from qkv.weights.maps.rotary_config import ROTARY
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Map, rename_modules

NORMS = [
    ("layers.{}.self_attn.q_norm", f"{llama.BLOCK}.attention.mixer.query_norm"),
    ("layers.{}.self_attn.k_norm", f"{llama.BLOCK}.attention.mixer.key_norm"),
]


def rules(sizes: Qwen3Sizes, head: HeadChoice | None) -> Map:
    base = llama.base_of(head)
    norms = rename_modules([(base + theirs, ours) for theirs, ours in NORMS], ["weight"])
    return [*llama.rules(sizes, head, base), *norms]


QWEN3 = PublishedFamily(
    model_type="qwen3",
    family="qwen3",
    config=ConfigMap(
        name="Qwen3",
        sizes=(
            *llama.COMMON,
            Size("head_dim", "head_width", absent=128),
            Size("num_key_value_heads", "key_value_heads", absent=32),
        ),
        fixed={"model_type": ("qwen3",)},
        fixed_by_default=llama.WITHOUT_WINDOW,
        together=(ROTARY, llama.ATTENTION_BIAS, llama.LAYERS),
        other=llama.OF_NO_WINDOW,
        complete=llama.with_key_heads,
    ),
    architectures=llama.head_architectures("Qwen3"),
    rules=rules,
    base="model.",
    other_bases=tuple(llama.BASES.values()),
    fits=lambda sizes: (
        sizes.attention_bias == sizes.output_bias and not (sizes.feed_forward_bias or sizes.window is not None)
    ),
)
