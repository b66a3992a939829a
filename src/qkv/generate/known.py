"""What the ways of decoding on a CPU honour, part by part (`parts/spec.py`); whatever else they leave to the parts."""

from __future__ import annotations

from types import NoneType
from typing import Any

from torch import nn

from qkv.parts.attention.attention import Attention, CrossAttention
from qkv.parts.attention.visibility import Causal, Everything
from qkv.parts.block import Block
from qkv.parts.eight_bits import Int8Linear
from qkv.parts.feedforward import MLP, GatedMLP, programmed_name
from qkv.parts.heads import LogitHead, TiedHead
from qkv.parts.linear import JoinedLinear
from qkv.parts.narrow_maps import BFloat16Linear, NarrowJoinedLinear
from qkv.parts.norm import LayerNorm, RMSNorm
from qkv.parts.position import RelativeBuckets, Rotary, rotate_halves, rotate_neighbours
from qkv.parts.residual import PathDropout, PostNorm, PreNorm
from qkv.parts.spec import Honoured, Known, anything, by_forward
from qkv.parts.stack import Stack

_FORM = "heads key_value_heads key_width value_width scale dropout"
_HEADS = f"{_FORM} project out"


def _is_programmed(activation: Any) -> bool:
    return programmed_name(activation) is not None


def _turns(pairing: Any) -> bool:
    return pairing in (rotate_halves, rotate_neighbours)


# Matrices that are packed. What is dropped in training is there in evaluation as a whole.
MAPS = Honoured(
    Known(nn.Linear, "weight bias"),
    Known(JoinedLinear, "width outputs biases weight bias"),
    Known(LogitHead, "weight bias scale"),
    Known(TiedHead, "bias scale", _embedding=tuple),
    Known(nn.Dropout, "p inplace"),
)

# Residual steps that `cpu_steps.cpp` does: a norm, a mixer and what it adds to the stream.
STEPS = MAPS.and_also(
    Known(Int8Linear, "scale"),
    Known(BFloat16Linear, "scale"),
    Known(NarrowJoinedLinear, "together sizes"),
    Known(PreNorm, "norm mixer dropout path"),
    Known(PostNorm, "norm mixer dropout"),
    Known(PathDropout, "rate"),
    Known(LayerNorm, "weight bias eps"),
    Known(RMSNorm, "weight epsilon"),
    Known(MLP, "inner outer dropout", activation=_is_programmed),
    Known(GatedMLP, "inner outer dropout", activation=_is_programmed),
    Known(Attention, _HEADS, visibility=(Causal, Everything), rotary=(NoneType, Rotary)),
    Known(Rotary, "rates", pairing=_turns),
    Known(CrossAttention, _HEADS + " query", visibility=Everything),
)

# A stack of which all steps are such: one call does them, and the norm behind them.
STACK = STEPS.and_also(
    Known(Stack, "blocks order dropout norm", bias=anything),
    Known(nn.ModuleList, "children"),
    Known(Block, "children"),
)

# What decodes with fewer small operations of torch where there is no compiler (`straight.py`).
STRAIGHT = Honoured(
    Known(Attention, _FORM, visibility=(Causal, Everything), project=by_forward, out=by_forward),
    Known(CrossAttention, _FORM, visibility=Everything, query=by_forward, project=by_forward, out=by_forward),
    Known(PreNorm, "path dropout", norm=by_forward, mixer=by_forward),
    Known(PostNorm, "dropout", norm=by_forward, mixer=by_forward),
    Known(PathDropout, "rate"),
    Known(nn.Dropout, "p inplace"),
    Known(nn.Identity),
    Known(MLP, "dropout", activation=anything, inner=by_forward, outer=by_forward),
    Known(RMSNorm, "weight epsilon"),
    Known(RelativeBuckets, "buckets farthest looks_ahead weight"),
    Known(Block, children=by_forward),
)  # fmt: skip
