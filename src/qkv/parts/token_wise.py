"""Which parts read documents that stand in line as if each had a row of its own."""

from __future__ import annotations

from torch import nn

from qkv.parts import heads, pool
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.visibility import Causal, Everything
from qkv.parts.block import Block
from qkv.parts.eight_bits import Int8Linear
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP, GatedMLP
from qkv.parts.linear import JoinedLinear
from qkv.parts.narrow_maps import BFloat16Linear, NarrowJoinedLinear
from qkv.parts.norm import LayerNorm, RMSNorm
from qkv.parts.position import Learned, Rotary, Sinusoidal
from qkv.parts.residual import DeepNorm, Parallel, PathDropout, PostNorm, PreNorm
from qkv.parts.spec import Known, depends_on
from qkv.parts.stack import Stack

# Parts that treat each token by itself, or by the position that the context says, and those that know of documents.
# What is not named here may look at neighbours: then every text gets a row of its own.
TOKEN_WISE: frozenset[type[nn.Module]] = frozenset(
    {
        nn.Linear, nn.Dropout, nn.Identity, nn.ModuleList, JoinedLinear, Int8Linear, BFloat16Linear,
        NarrowJoinedLinear,
        LayerNorm, RMSNorm, MLP, GatedMLP,
        Block, Stack, PreNorm, PostNorm, Parallel, PathDropout, DeepNorm, Attention, Rotary,
        Embed, TokenEmbedding, Learned, Sinusoidal,
        heads.TiedHead, heads.LogitHead, heads.States, heads.MaskedHead, heads.PretrainingHead, heads.PooledStatesHead,
        heads.ClassificationHead, heads.ProjectionHead, heads.TokenHead, heads.PooledHead,
        pool.FirstToken, pool.LastToken, pool.MeanOfTokens, pool.DensePool, pool.UnitLength,
    }
)  # fmt: skip


BY_TOKENS = Known(
    Attention, "heads key_value_heads key_width value_width scale dropout project out rotary query_norm key_norm",
    visibility=lambda rule: rule in (Everything(), Causal()),
)  # fmt: skip


def reads_in_line(model: nn.Module) -> bool:
    """Says whether all that is inside a model may be given documents in line. A bias counts slots, so it may not."""
    return all(_fits(module) for name, module in model.named_modules() if name)


def _fits(module: nn.Module) -> bool:
    if type(module) not in TOKEN_WISE or (isinstance(module, Stack) and module.bias is not None):
        return False
    says = depends_on(type(module))
    if says is None or says.undeclared(module) is not None:
        return False
    return not isinstance(module, Attention) or BY_TOKENS.refusal(module) is None
