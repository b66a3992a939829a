"""The layers of GPT-1 and GPT-2, which transformers names alike and keeps on their sides."""

from __future__ import annotations

from qkv.weights.rules import Drop, Map, Rename, Split, SplitColumns, Transpose, rename_modules

BLOCK = "stack.blocks.{}"
QKV = tuple(f"{BLOCK}.attention.mixer.project.{part}" for part in ("query", "key", "value"))

# fmt: off
NORMS = [
    ("transformer.h.{}.ln_1",         f"{BLOCK}.attention.norm"),
    ("transformer.h.{}.ln_2",         f"{BLOCK}.feed_forward.norm"),
]
# Matrices that theirs keeps as [inputs outputs].
TRANSPOSED = [
    ("transformer.h.{}.attn.c_proj",  f"{BLOCK}.attention.mixer.out"),
    ("transformer.h.{}.mlp.c_fc",     f"{BLOCK}.feed_forward.mixer.inner"),
    ("transformer.h.{}.mlp.c_proj",   f"{BLOCK}.feed_forward.mixer.outer"),
]
# fmt: on

GPT_LAYERS: Map = [
    *rename_modules(NORMS),
    *(Transpose(f"{theirs}.weight", f"{ours}.weight") for theirs, ours in TRANSPOSED),
    *(Rename(f"{theirs}.bias", f"{ours}.bias") for theirs, ours in TRANSPOSED),
    SplitColumns("transformer.h.{}.attn.c_attn.weight", tuple(f"{name}.weight" for name in QKV)),
    Split("transformer.h.{}.attn.c_attn.bias", tuple(f"{name}.bias" for name in QKV)),
    Drop("transformer.h.{}.attn.bias", "the look-ahead mask, computed"),
]
