"""Reformer as Hugging Face's transformers saves it: the decoder.

Its encoders are refused: there, the first chunk of a local layer reads the last one of the row, as if the row were a
ring.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.errors import QkvError
from qkv.models.head_choice import HeadChoice
from qkv.models.reformer import ReformerSizes, sights_of_layers
from qkv.weights.config_map import ConfigMap, Size, Together, activation
from qkv.weights.maps.layer_words import fewest
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Drop, Map, Rename, rename_modules

BASE = "reformer."
LAYERS, BLOCKS, POSITIONS = f"{BASE}encoder.layers", "stack.blocks", f"{BASE}embeddings.position_embeddings"
PROJECTIONS = {
    "local": {"query": "query", "key": "key", "value": "value"},
    "lsh": {"query_key": "query", "value": "value"},
}
# fmt: off
MODULES = [
    (f"{LAYERS}.{{}}.attention.layer_norm",       f"{BLOCKS}.{{}}.attention.norm"),
    (f"{LAYERS}.{{}}.feed_forward.layer_norm",    f"{BLOCKS}.{{}}.feed_forward.norm"),
    (f"{LAYERS}.{{}}.feed_forward.dense.dense",   f"{BLOCKS}.{{}}.feed_forward.mixer.inner"),
    (f"{LAYERS}.{{}}.feed_forward.output.dense",  f"{BLOCKS}.{{}}.feed_forward.mixer.outer"),
    (f"{BASE}encoder.layer_norm",                 "stack.norm"),
]
# fmt: on


def rules(sizes: ReformerSizes, head: HeadChoice | None) -> Map:
    assert head is not None
    positions = [Rename(f"{POSITIONS}.embedding.weight", "embed.position.weight")]
    if sizes.lines is not None:
        positions = [Rename(f"{POSITIONS}.weights.{axis}", f"embed.position.weights.{axis}") for axis in range(2)]
    return [
        Rename(f"{BASE}embeddings.word_embeddings.weight", "embed.tokens.weight"),
        *positions,
        *rename_modules(MODULES),
        Rename(f"{LAYERS}.{{}}.attention.output.dense.weight", f"{BLOCKS}.{{}}.attention.mixer.out.weight"),
        *(
            Rename(
                f"{LAYERS}.{layer}.attention.self_attention.{theirs}.weight",
                f"{BLOCKS}.{layer}.attention.mixer.project.{ours}.weight",
            )
            for layer, sight in enumerate(sights_of_layers(sizes))
            for theirs, ours in PROJECTIONS[sight].items()
        ),
        *(
            Drop(
                f"{LAYERS}.{{}}.attention.self_attention.{of}mask_value_{kind}", "the value of hidden scores, computed"
            )
            for of in ("", "self_")
            for kind in ("float16", "float32")
        ),
        *_head_rules(sizes, head),
    ]


def _head_rules(sizes: ReformerSizes, head: HeadChoice) -> Map:
    if head.kind == "language":
        return [
            Rename("lm_head.decoder.weight", "head.weight"),
            Drop("lm_head.bias", "kept by the other library but never added", zeros=(sizes.vocabulary,)),
            Drop("lm_head.decoder.bias", "the same by another name, in old files"),
        ]
    return list(rename_modules([("qa_outputs", "head.out")])) if head.kind == "spans" else []


def _read_sights(config: Mapping[str, Any]) -> dict[str, Any]:
    said = config.get("attn_layers")
    if not isinstance(said, list) or not said or not set(map(str, said)) <= {"local", "lsh"}:
        raise QkvError(f'"attn_layers" in config.json must be a list of "local" and "lsh", not {said!r:.80}.')
    if config.get("num_hidden_layers", len(said)) != len(said):
        raise QkvError(
            f'"attn_layers" in config.json tells of {len(said)} layers, "num_hidden_layers" of '
            f"{config['num_hidden_layers']!r}."
        )
    return {"sights": fewest(said), "layers": len(said)}


def _write_sights(sizes: ReformerSizes) -> dict[str, Any]:
    return {"attn_layers": sights_of_layers(sizes), "num_hidden_layers": sizes.layers}


def _read_positions(config: Mapping[str, Any]) -> dict[str, Any]:
    if not config.get("axial_pos_embds", True):
        return {}
    grid, widths = config.get("axial_pos_shape", [64, 64]), config.get("axial_pos_embds_dim", [64, 192])
    for name, said in (("axial_pos_shape", grid), ("axial_pos_embds_dim", widths)):
        if not isinstance(said, list) or len(said) != 2 or not all(type(each) is int for each in said):
            raise QkvError(f'"{name}" in config.json must be two whole numbers, not {said!r:.80}.')
    if sum(widths) != (width := config.get("hidden_size")):
        raise QkvError(f'"axial_pos_embds_dim" in config.json must sum to "hidden_size" {width!r}, but is {widths!r}.')
    return {"lines": grid[0], "columns": grid[1], "line_width": widths[0]}


def _write_positions(sizes: ReformerSizes) -> dict[str, Any]:
    if sizes.lines is None or sizes.line_width is None:
        return {"axial_pos_embds": False}
    return {
        "axial_pos_embds": True,
        "axial_pos_shape": [sizes.lines, sizes.columns],
        "axial_pos_embds_dim": [sizes.line_width, sizes.width - sizes.line_width],
    }


def _factors(said: Any) -> Any:
    return (said,) if type(said) is int else said


def _number(factors: tuple[int, ...] | None) -> Any:
    if factors is None:
        return None
    return factors[0] if len(factors) == 1 else list(factors)


CONFIG = ConfigMap(
    name="Reformer",
    sizes=(
        Size("vocab_size", "vocabulary"),
        Size("max_position_embeddings", "positions"),
        Size("hidden_size", "width"),
        Size("feed_forward_size", "hidden"),
        Size("num_attention_heads", "heads"),
        Size("attention_head_size", "head_width"),
        Size("local_attn_chunk_length", "local_chunk", absent=64),
        Size("local_num_chunks_before", "local_before", absent=1),
        Size("lsh_attn_chunk_length", "lsh_chunk", absent=64),
        Size("lsh_num_chunks_before", "lsh_before", absent=1),
        Size("num_hashes", "rounds", absent=1),
        Size("num_buckets", "buckets", absent=None, to_ours=_factors, to_theirs=_number),
        Size("hash_seed", "seed", absent=None),
        Size(
            "chunk_size_feed_forward",
            "feed_forward_chunk",
            absent=0,
            to_ours=lambda chunk: None if chunk == 0 else chunk,
            to_theirs=lambda chunk: chunk or 0,
        ),
        activation("hidden_act", absent="relu"),
        Size("layer_norm_eps", "epsilon", absent=1e-12),
        Size("hidden_dropout_prob", "dropout", absent=0.05),
        Size("local_attention_probs_dropout_prob", "local_dropout", absent=0.05),
        Size("lsh_attention_probs_dropout_prob", "lsh_dropout", absent=0.0),
    ),
    fixed={"model_type": ("reformer",), "is_decoder": (True,)},
    fixed_by_default={
        "tie_word_embeddings": (False,),
        "local_num_chunks_after": (0,),
        "lsh_num_chunks_after": (0,),
    },
    never={"sinusoidal_pos_embds": (False,)},
    together=(
        Together(frozenset({"attn_layers", "num_hidden_layers"}), _read_sights, _write_sights),
        Together(
            frozenset({"axial_pos_embds", "axial_pos_shape", "axial_pos_embds_dim"}), _read_positions, _write_positions
        ),
    ),
    other=frozenset(
        {
            "axial_norm_std",  # initial values
            "chunk_size_lm_head",  # memory only
            "classifier_dropout",  # of a head that no decoder has
            # of the first published files, and read by nobody
            "attention_probs_dropout_prob",
            "intermediate_size",
            "num_chunks_before",
            "num_chunks_after",
            "type_vocab_size",
        }
    ),
)

REFORMER = PublishedFamily(
    model_type="reformer",
    family="reformer",
    config=CONFIG,
    architectures={
        "language": "ReformerModelWithLMHead",
        "states": "ReformerModel",
        "spans": "ReformerForQuestionAnswering",
    },
    rules=rules,
    base=BASE,
)
