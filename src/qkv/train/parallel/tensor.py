"""Tensor parallel: the ranks of a group hold a part of each matrix, and all of them see the same rows. [shoeybi2019 §3]

An attention is divided by its heads, a feed-forward by its hidden units: the first map by its outputs, the last by its
inputs, so that one sum over the ranks is all that a layer needs on the way forward, and one on the way back. All else
(embeddings, norms, heads, pools, convolutions) stays whole on every rank, where it computes the same of the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention, CrossAttention, MultiHead
from qkv.parts.attention.big_bird import BlockAttention, DrawnBlocks
from qkv.parts.attention.global_tokens import GlobalAttention
from qkv.parts.attention.recurrent import AttentiveGRU, BidirectionalGRU
from qkv.parts.attention.shared import SharedAttention
from qkv.parts.experts import Mixture
from qkv.parts.feedforward import MLP, ChunkedMLP, GatedMLP
from qkv.parts.linear import JoinedLinear
from qkv.parts.low_rank import AdaptedJoinedLinear, AdaptedLinear
from qkv.parts.position import ALiBi, RelativeBuckets
from qkv.parts.spec import Honoured, Known, anything
from qkv.train.parallel.experts import HeldExperts
from qkv.train.parallel.tensor_styles import BiasOfHeads, JoinedColumns

Plan = Mapping[str, ParallelStyle]

# What is done with the maps of each kind of part. A kind that is not here may compute with its heads or units in a way
# of its own, so that it is not taken for the kind that it was made from.
_SELF: Plan = {"project": JoinedColumns(), "out": RowwiseParallel()}
_PLAIN: Plan = {"inner": ColwiseParallel(), "outer": RowwiseParallel()}
PLANS: dict[type[nn.Module], Plan] = {
    Attention: _SELF,
    DrawnBlocks: _SELF,
    BlockAttention: _SELF,
    SharedAttention: _SELF,
    GlobalAttention: {**_SELF, "of_marked": JoinedColumns()},
    CrossAttention: {"query": ColwiseParallel(), "project": JoinedColumns(), "out": RowwiseParallel()},
    MLP: _PLAIN,
    ChunkedMLP: _PLAIN,
    GatedMLP: {"inner": JoinedColumns(), "outer": RowwiseParallel()},
}


# What a rank computes with its heads or units as if they were all; kernels and maps are looked at one by one.
_HEADS = "heads key_value_heads key_width value_width scale dropout"
_BOTH = dict.fromkeys(("project", "out", "visibility", "kernel"), anything)
_ANY = {**_BOTH, "rotary": anything}
_UNITS = dict.fromkeys(("inner", "outer", "activation"), anything)
DIVIDED = Honoured(
    Known(Attention, _HEADS, **_ANY),
    Known(DrawnBlocks, f"{_HEADS} block randoms seed", **_ANY),
    Known(BlockAttention, f"{_HEADS} block randoms seed", **_ANY),
    Known(SharedAttention, _HEADS, **_ANY),
    Known(GlobalAttention, _HEADS, of_marked=anything, **_ANY),
    Known(CrossAttention, _HEADS, query=anything, **_BOTH),
    Known(MLP, "dropout", **_UNITS),
    Known(ChunkedMLP, "dropout chunk", **_UNITS),
    Known(GatedMLP, "dropout", **_UNITS),
)


def divide_tensors(model: nn.Module, mesh: DeviceMesh) -> None:
    """Leave this rank its part of every attention and feed-forward; `mesh` are the ranks that share a model.

    All of them must have the same model, of which nothing is sent: each keeps its part of its own. What cannot be
    divided is refused before anything is changed. Experts must be on different ranks before, where there are any.
    """
    ranks = mesh.size()
    if ranks == 1:
        return
    divided = divided_parts(model, ranks)
    tables = tables_of_heads(model)
    for module in divided:
        if isinstance(module, MultiHead):
            count_own_heads(module, ranks)
        for name, style in PLANS[type(module)].items():
            parallelize_module(getattr(module, name), mesh, style, src_data_rank=None)
    for table in tables:
        parallelize_module(table, mesh, BiasOfHeads(), src_data_rank=None)


def divided_parts(model: nn.Module, ranks: int) -> list[nn.Module]:
    """The attentions and feed-forwards whose maps are divided as `PLANS` says; one that cannot be is refused."""
    divided = [module for name, module in model.named_modules() if _is_divided(name, module, ranks)]
    if not divided:
        raise QkvError("This model has no attention or feed-forward that tensor ranks could share: leave out tensor.")
    return divided


def tables_of_heads(model: nn.Module) -> list[RelativeBuckets | ALiBi]:
    """Biases on scores, of which a rank needs those of its heads."""
    return [module for module in model.modules() if isinstance(module, RelativeBuckets | ALiBi)]


def _is_divided(name: str, module: nn.Module, ranks: int) -> bool:
    """Whether this part is divided, and not left whole or within one that is; one that cannot be is refused."""
    if isinstance(module, Mixture):
        if isinstance(module.outer, HeldExperts):  # tensor ranks send the same tokens, each to experts of its own
            return False
        raise QkvError(
            f"Tensor ranks do not share experts, such as {name}: give these to different ranks, by expert:{ranks}."
        )
    if isinstance(module, AttentiveGRU | BidirectionalGRU):
        raise QkvError(f"Tensor ranks cannot share a recurrent net, such as {name}: leave out tensor.")
    if not isinstance(module, MultiHead | MLP | GatedMLP):
        return False
    kind = type(module)
    if kind not in PLANS:
        raise QkvError(f"Tensor ranks cannot share a {kind.__name__}, as {name} is one: leave out tensor.")
    _check_maps(name, module)
    if isinstance(module, MultiHead):
        _check_heads(name, module, ranks)
    elif (hidden := module.outer.in_features) % ranks:
        raise QkvError(f"{ranks} tensor ranks cannot share the {hidden} hidden units of {name} evenly.")
    return True


def _check_maps(name: str, module: nn.Module) -> None:
    why = DIVIDED.of(type(module)).refusal(module)
    if why is not None:
        raise QkvError(f"Tensor ranks cannot share {name}, because its heads or units are not all of it: {why}.")
    for own in PLANS[type(module)]:
        linear = getattr(module, own)
        if isinstance(linear, AdaptedLinear | AdaptedJoinedLinear):
            raise QkvError(
                f"Tensor ranks do not share maps with low-rank updates beside them, such as {name}.{own}: leave out "
                "tensor."
            )
        if type(linear) not in (nn.Linear, JoinedLinear):
            raise QkvError(f"Tensor ranks cannot share a {type(linear).__name__}, as {name}.{own} is one.")


def _check_heads(name: str, attention: MultiHead, ranks: int) -> None:
    if isinstance(attention.kernel, nn.Module):  # it has numbers for each head, or draws some
        raise QkvError(
            f"Tensor ranks cannot share an attention by {type(attention.kernel).__name__}, as {name} is one: leave out "
            "tensor."
        )
    if attention.key_value_heads % ranks:
        raise QkvError(
            f"{ranks} tensor ranks cannot share the {attention.key_value_heads} key/value heads and {attention.heads} "
            f"query heads of {name} evenly: choose a number of ranks that divides both."
        )


def count_own_heads(attention: MultiHead, ranks: int) -> None:
    """Have an attention compute with the heads of one of so many ranks."""
    attention.heads //= ranks
    attention.key_value_heads //= ranks
    attention.query_size //= ranks
    attention.key_size //= ranks
    attention.value_size //= ranks
