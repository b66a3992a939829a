"""torch.nn.Transformer: its two stacks. Embeddings and the head are not part of it.

It has a norm after each stack, with norms before the sub-layers and after them: build ours as
`transformer(sizes, PostNorm, final_norm=LayerNorm)` or as `prenorm_transformer(sizes)`.
"""

from __future__ import annotations

from qkv.weights.rules import Map, Split, rename_modules

# fmt: off
MODULES = [
    ("encoder.layers.{}.self_attn.out_proj",      "encoder.blocks.{}.attention.mixer.out"),
    ("encoder.layers.{}.norm1",                   "encoder.blocks.{}.attention.norm"),
    ("encoder.layers.{}.linear1",                 "encoder.blocks.{}.feed_forward.mixer.inner"),
    ("encoder.layers.{}.linear2",                 "encoder.blocks.{}.feed_forward.mixer.outer"),
    ("encoder.layers.{}.norm2",                   "encoder.blocks.{}.feed_forward.norm"),
    ("encoder.norm",                              "encoder.norm"),
    ("decoder.layers.{}.self_attn.out_proj",      "decoder.blocks.{}.attention.mixer.out"),
    ("decoder.layers.{}.norm1",                   "decoder.blocks.{}.attention.norm"),
    ("decoder.layers.{}.multihead_attn.out_proj", "decoder.blocks.{}.cross.mixer.out"),
    ("decoder.layers.{}.norm2",                   "decoder.blocks.{}.cross.norm"),
    ("decoder.layers.{}.linear1",                 "decoder.blocks.{}.feed_forward.mixer.inner"),
    ("decoder.layers.{}.linear2",                 "decoder.blocks.{}.feed_forward.mixer.outer"),
    ("decoder.layers.{}.norm3",                   "decoder.blocks.{}.feed_forward.norm"),
    ("decoder.norm",                              "decoder.norm"),
]
JOINED = {
    "encoder.layers.{}.self_attn.in_proj":      ["encoder.blocks.{}.attention.mixer.project.query",
                                                 "encoder.blocks.{}.attention.mixer.project.key",
                                                 "encoder.blocks.{}.attention.mixer.project.value"],
    "decoder.layers.{}.self_attn.in_proj":      ["decoder.blocks.{}.attention.mixer.project.query",
                                                 "decoder.blocks.{}.attention.mixer.project.key",
                                                 "decoder.blocks.{}.attention.mixer.project.value"],
    "decoder.layers.{}.multihead_attn.in_proj": ["decoder.blocks.{}.cross.mixer.query",
                                                 "decoder.blocks.{}.cross.mixer.project.key",
                                                 "decoder.blocks.{}.cross.mixer.project.value"],
}
# fmt: on

RULES: Map = [
    *rename_modules(MODULES),
    *(
        Split(f"{theirs}_{kind}", tuple(f"{name}.{kind}" for name in ours))
        for theirs, ours in JOINED.items()
        for kind in ("weight", "bias")
    ),
]
