"""The tensors of a llama2.c checkpoint in the order in which they stand, and Hugging Face's names for them.

The file names nothing. `{}` marks a tensor that stands once for each layer, all layers one after the other.
"""

from __future__ import annotations

from qkv.weights.maps.rotary_rows import PairedRows
from qkv.weights.rules import Drop, Map, Rename

CLASSIFIER = "wcls"  # stands there only where the embedding does not serve for it

# fmt: off
TENSORS = [
    ("token_embedding_table",  ("vocabulary", "width"),   "model.embed_tokens.weight"),
    ("rms_att_weight.{}",      ("width",),                "model.layers.{}.input_layernorm.weight"),
    ("wq.{}",                  ("width", "width"),        "model.layers.{}.self_attn.q_proj.weight"),
    ("wk.{}",                  ("key_width", "width"),    "model.layers.{}.self_attn.k_proj.weight"),
    ("wv.{}",                  ("key_width", "width"),    "model.layers.{}.self_attn.v_proj.weight"),
    ("wo.{}",                  ("width", "width"),        "model.layers.{}.self_attn.o_proj.weight"),
    ("rms_ffn_weight.{}",      ("width",),                "model.layers.{}.post_attention_layernorm.weight"),
    ("w1.{}",                  ("hidden", "width"),       "model.layers.{}.mlp.gate_proj.weight"),
    ("w2.{}",                  ("width", "hidden"),       "model.layers.{}.mlp.down_proj.weight"),
    ("w3.{}",                  ("hidden", "width"),       "model.layers.{}.mlp.up_proj.weight"),
    ("rms_final_weight",       ("width",),                "model.norm.weight"),
    ("freq_cis_real",          ("longest", "half_head"),  None),
    ("freq_cis_imag",          ("longest", "half_head"),  None),
    (CLASSIFIER,               ("vocabulary", "width"),   "lm_head.weight"),
]
# fmt: on


def rules(heads: int, key_heads: int) -> Map:
    """From the tensors of llama2.c to Hugging Face's."""
    rotated = {"wq.{}": heads, "wk.{}": key_heads}
    made: list[Rename | Drop] = []
    for theirs, _, ours in TENSORS:
        if ours is None:
            made.append(Drop(theirs, "sines and cosines, which llama2.c too computes anew"))
        elif theirs in rotated:
            made.append(PairedRows(theirs, ours, rotated[theirs]))
        else:
            made.append(Rename(theirs, ours))
    return made
