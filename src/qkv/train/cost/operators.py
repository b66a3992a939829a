"""What an operator of torch costs, from the shapes of what it is given and what it makes.

An operator is a matrix product, an attention, or one that reads and writes and computes next to nothing. Shapes: m
rows, n columns and k terms of a product; b rows, h heads, q queries, k keys, d width of a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from qkv.parts.attention.blocks import TILE
from qkv.parts.attention.kernels.learned import is_long

aten = torch.ops.aten

TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "bfloat16", torch.float64: "float64"}
FOR_A_BAND = 4  # tensors that our own kernel takes at most for a rule that is a band, and more for any other
ALIGNED = 8  # numbers of 16 bits: rows that begin at no multiple of 16 bytes keep a product from its fastest kernels


@dataclass(frozen=True)
class Work:
    """One operator: of which kind, how much, and for products and attentions of which shape."""

    kind: str  # "product", "attention", "nothing" (views, memory alone) or a kind of traffic
    name: str  # of the operator
    flops: int
    bytes: int  # read and written
    shape: tuple[Any, ...] = ()  # Product or Attention, as a plain tuple
    workspace: int = 0  # elements of queries, for attentions on their way back


@dataclass(frozen=True)
class Product:
    dtype: str
    layout: str  # "nt", "nn", "tn", "tt": which side lies transposed
    batch: int
    m: int
    n: int
    k: int
    aligned: bool


@dataclass(frozen=True)
class AttentionShape:
    kernel: str  # "cudnn", "flash", "efficient", "cpu", "tiles", "short" and "long" (our own)
    dtype: str
    back: bool
    causal: bool
    masked: bool
    dropout: bool
    heads: int  # of all rows: b·h
    queries: int
    keys: int
    width: int


_NO_KERNEL = frozenset(
    ["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias", "lift_fresh", "set_",
     "_local_scalar_dense", "record_stream"]
)  # fmt: skip
_FILLS = frozenset(
    ["zero_", "fill_", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "arange", "new_zeros",
     "new_full", "new_ones"]
)  # fmt: skip
_KINDS = {
    "norm": ["native_layer_norm", "_fused_rms_norm", "native_group_norm"],
    "norm_back": ["native_layer_norm_backward", "_fused_rms_norm_backward", "native_group_norm_backward"],
    "softmax": ["_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"],
    "logsumexp": ["logsumexp"],  # on a GPU several kernels one after the other
    "dropout": ["native_dropout", "bernoulli_", "bernoulli"],
    "gather": ["embedding", "index", "index_select", "gather", "_unsafe_index"],
    "scatter": ["embedding_dense_backward", "index_put_", "_index_put_impl_", "index_put", "scatter_add_", "scatter_",
                "scatter", "scatter_add", "index_add_", "index_add", "index_copy", "index_copy_"],
    "sort": ["sort", "argsort", "topk", "searchsorted", "unique"],
    "adam": ["_fused_adam_", "_fused_adamw_"],
    "reduce": ["sum", "mean", "amax", "amin", "max", "min", "any", "all", "var", "argmax", "linalg_vector_norm",
               "_foreach_norm", "cumsum"],
}  # fmt: skip
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}
KINDS_OF_TRAFFIC = (*_KINDS, "reduce_rows", "copy", "widen", "transpose", "pointwise", "broadcast")

_ATTENTION = {
    "_scaled_dot_product_flash_attention": ("flash", False),
    "_scaled_dot_product_flash_attention_backward": ("flash", True),
    "_scaled_dot_product_cudnn_attention": ("cudnn", False),
    "_scaled_dot_product_cudnn_attention_backward": ("cudnn", True),
    "_scaled_dot_product_efficient_attention": ("efficient", False),
    "_scaled_dot_product_efficient_attention_backward": ("efficient", True),
    "_scaled_dot_product_flash_attention_for_cpu": ("cpu", False),
    "_scaled_dot_product_flash_attention_for_cpu_backward": ("cpu", True),
    "flash": ("tiles", False),
    "flash_backward": ("tiles", True),
    "attend_rows": ("own", False),
    "back_over_rows": ("own", True),
    "back_over_joined_rows": ("own", True),
}
# Operators of our own: products, by how their sides lie, and programs that pass once over all that they are given.
_PRODUCTS = {
    "mapped": "nt", "activated_map": "nt", "mapped_across": "nn", "map_times_slope": "nn", "weight_gradient": "tn",
}  # fmt: skip
PROGRAMS = frozenset(["sum_norm", "sum_norm_back", "side_by_side"])


def work_of(operator: Any, given: tuple[Any, ...], named: dict[str, Any], made: Any) -> Work:
    """What one call of an operator costs."""
    name = operator.overloadpacket.__name__
    if name in _ATTENTION:
        return _attention(operator, name, given, named)
    ins, outs = _tensors((given, named)), _tensors(made)
    if name in _NO_KERNEL or _only_looks(operator, ins, outs):
        return Work("nothing", name, 0, 0)
    if operator.overloadpacket in flop_registry:
        shapes = [value for value in given if not isinstance(value, torch.dtype)]  # which formulas take for one
        flops = int(flop_registry[operator.overloadpacket](*shapes, **named, out_val=made))
        return _product(name, given, made, flops, sum(map(_bytes, ins)) + sum(map(_bytes, outs)))
    if name in _PRODUCTS or name in PROGRAMS:
        moved = sum(map(_bytes, ins)) + sum(map(_bytes, outs))
        return _our_product(name, given[0], given[1], moved) if name in _PRODUCTS else Work("pointwise", name, 0, moved)
    if name in ("_grouped_mm", "grouped_mm"):
        return _grouped(name, given[0], given[1], made)
    if not outs:  # lists of tensors changed in place
        return Work(_KIND_OF.get(name, "pointwise"), name, 0, _traffic("", name, given, ins, outs, operator))
    kind = _kind_of_sum(given) if name == "sum" else _KIND_OF.get(name) or _kind_of_rest(name, given, ins, outs)
    return Work(kind, name, 0, _traffic(kind, name, given, ins, outs, operator))


def _only_looks(operator: Any, ins: list[Tensor], outs: list[Tensor]) -> bool:
    if operator._schema.is_mutable or not outs or not ins:
        return False
    seen = {tensor.untyped_storage()._cdata for tensor in ins}
    return all(tensor.untyped_storage()._cdata in seen for tensor in outs)


def _kind_of_rest(name: str, given: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> str:
    if name in ("cat", "stack"):
        return "copy"
    if name in ("copy_", "_to_copy", "clone", "constant_pad_nd"):
        source, target = ins[-1] if name == "copy_" else ins[0], outs[0]
        if not _alike(source, target):
            return "transpose"
        return "widen" if source.element_size() < target.element_size() else "copy"
    return "pointwise" if all(_alike(outs[0], each) for each in ins) else "broadcast"


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors lie in memory in one way, so that a kernel can take several numbers at once."""
    if one.shape != other.shape:
        return False
    return one.stride() == other.stride() or (one.is_contiguous() and other.is_contiguous())


def _kind_of_sum(given: tuple[Any, ...]) -> str:
    """Rows added up, as for the gradient of a bias, or the numbers of each row."""
    return "reduce_rows" if len(given) > 1 and list(given[1] or ()) == [0] and given[0].dim() == 2 else "reduce"


def _traffic(kind: str, name: str, given: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor], operator: Any) -> int:
    made = sum(map(_bytes, outs))
    if kind == "gather":
        return made + made + sum(_bytes(tensor) for tensor in ins if not tensor.is_floating_point())
    if name == "embedding_dense_backward":
        return made + 3 * _bytes(ins[0])
    if kind == "scatter":
        source = sum(_bytes(tensor) for tensor in ins[1:])
        return 2 * source if operator._schema.is_mutable else 2 * source + made + _bytes(ins[0])
    if name in _FILLS:
        return made
    read = sum(map(_bytes, ins[1:] if name == "copy_" else ins))
    if operator._schema.is_mutable and not outs:  # lists changed in place: all are read, some are written
        if name == "_foreach_copy_":  # of these one list is read, the other written
            return read
        return 2 * read if name.startswith("_foreach") else read * 7 // 4
    return read + made


def _product(name: str, given: tuple[Any, ...], made: Any, flops: int, bytes_: int) -> Work:
    if name.startswith(("convolution", "_convolution")):
        x = given[0]
        return Work("product", name, flops, bytes_, as_tuple(_of_convolution(x, flops)))
    a, b = (given[1], given[2]) if name in ("addmm", "baddbmm", "_addmm_activation") else (given[0], given[1])
    batch = a.shape[0] if a.dim() == 3 else 1
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    layout = ("t" if _transposed(a) else "n") + ("t" if _transposed(b) else "n")
    return Work("product", name, flops, bytes_, _plain_product(a, layout, batch, m, n, k))


def _our_product(name: str, a: Tensor, b: Tensor, bytes_: int) -> Work:
    """Taken to be as quick as torch's of the same sizes, whatever comes behind it."""
    layout = _PRODUCTS[name]
    m, k = a.shape if layout[0] == "n" else a.shape[::-1]
    n = b.shape[0] if layout[1] == "t" else b.shape[1]
    return Work("product", name, 2 * m * n * k, bytes_, _plain_product(a, layout, 1, m, n, k))


def _plain_product(a: Tensor, layout: str, batch: int, m: int, n: int, k: int) -> tuple[Any, ...]:
    leading = (m if layout[0] == "t" else k, k if layout[1] == "t" else n, n)
    aligned = all(side % ALIGNED == 0 for side in leading) or a.dtype == torch.float32
    return as_tuple(Product(TYPES.get(a.dtype, "float32"), layout, batch, m, n, k, aligned))


def _of_convolution(x: Tensor, flops: int) -> Product:
    """As the product it comes to: all that is known is how much it is."""
    side = max(1, round((flops / 2) ** (1 / 3)))
    return Product(TYPES.get(x.dtype, "float32"), "nt", 1, side, side, side, True)


def _grouped(name: str, a: Tensor, b: Tensor, made: Tensor) -> Work:
    """Sorted rows [n d] times matrices [e d f], or both flat for the gradient of the matrices [d n] [n f]."""
    if b.dim() == 3:
        m, k, n = a.shape[0], a.shape[1], b.shape[2]
    else:
        m, k, n = a.shape[0], a.shape[1], b.shape[1]
    layout = ("t" if _transposed(a) else "n") + ("t" if _transposed(b) else "n")
    shape = Product(TYPES.get(a.dtype, "float32"), layout, 1, m, n, k, True)
    return Work("product", name, 2 * m * n * k, _bytes(a) + _bytes(b) + _bytes(made), as_tuple(shape))


def _attention(operator: Any, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Work:
    kernel, back = _ATTENTION[name]
    values = {argument.name: value for argument, value in zip(operator._schema.arguments, given, strict=False)}
    values |= named
    if "joined" in values:  # which are as many and as wide as what was read, [b q h d]
        values["q"] = values["k"] = values["v"] = values["o"].transpose(1, 2)
    q, k, v = (values[long] if long in values else values[long[0]] for long in ("query", "key", "value"))
    (b, h, queries, width), keys = q.shape, k.shape[2]
    if kernel == "own":
        kernel = "long" if is_long(queries, keys) else "short"
    causal = bool(values.get("is_causal", values.get("causal", False)))
    mask = next((values[name] for name in ("attn_bias", "attn_mask", "documents") if name in values), None)
    dropped = bool(values.get("dropout_p", 0.0))
    if kernel == "tiles":
        pairs = _pairs_in_tiles(values, b, queries, keys)
        causal = True
        mask = values.get("bias")
    else:
        pairs = b * queries * keys // (2 if causal else 1)
    products = 2 * pairs * h * (width + v.shape[3])
    flops = products * 5 // 2 if back else products
    tensors = [tensor for tensor in tree_leaves(values) if isinstance(tensor, Tensor)]
    shape = AttentionShape(
        kernel, TYPES.get(q.dtype, "float32"), back, causal, mask is not None, dropped, b * h, queries, keys, width
    )
    moved = sum(map(_bytes, tensors)) + (2 if back else 1) * _bytes(q)
    return Work("attention", name, flops, moved, as_tuple(shape), b * h * queries * width if back else 0)


def _pairs_in_tiles(values: dict[str, Any], b: int, queries: int, keys: int) -> int:
    """Of one head: queries times keys in all tiles that are seen, as the lists of tiles tell, or the band."""
    tensors = values["tensors"]
    if len(tensors) > FOR_A_BAND:
        return tensors[2].numel() * TILE * TILE * (b if values["rows"] == 1 else 1)
    met = 0
    for first in range(0, queries, TILE):
        last = min(first + TILE, queries) - 1
        lowest, highest = max(0, first - values["most"]), min(keys - 1, last - values["least"])
        met += max(0, highest // TILE - lowest // TILE + 1)
    return met * TILE * TILE * b


def _transposed(x: Tensor) -> bool:
    return x.stride(-1) != 1 and x.stride(-2) == 1


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _bytes(tensor: Tensor) -> int:
    """What is read of a tensor: one that is shown again and again is read once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes() or math.inf)  # type: ignore


def as_tuple(shape: Product | AttentionShape) -> tuple[Any, ...]:
    return tuple(getattr(shape, name) for name in shape.__dataclass_fields__)
