"""The names that BERT's checkpoints share with those of its kin: layers, and heads."""

from __future__ import annotations

from collections.abc import Iterator

from qkv.models.head_choice import HeadChoice
from qkv.weights.rules import Copy, Drop, Map, Rename, rename_modules

BLOCK = "stack.blocks.{}"
OLDER_NORMS = {".gamma": ".weight", ".beta": ".bias"}  # as the first published files call a norm's scale and shift

# fmt: off
LAYER = [
    ("attention.self.query",        f"{BLOCK}.attention.mixer.project.query"),
    ("attention.self.key",          f"{BLOCK}.attention.mixer.project.key"),
    ("attention.self.value",        f"{BLOCK}.attention.mixer.project.value"),
    ("attention.output.dense",      f"{BLOCK}.attention.mixer.out"),
    ("attention.output.LayerNorm",  f"{BLOCK}.attention.norm"),
    ("intermediate.dense",          f"{BLOCK}.feed_forward.mixer.inner"),
    ("output.dense",                f"{BLOCK}.feed_forward.mixer.outer"),
    ("output.LayerNorm",            f"{BLOCK}.feed_forward.norm"),
]
# fmt: on


def bert_layers(base: str) -> Iterator[Rename]:
    return rename_modules((f"{base}encoder.layer.{{}}.{theirs}", ours) for theirs, ours in LAYER)


def embedding_rules(base: str) -> Map:
    """Token, segment and position tables under the norm that all of them share."""
    return [
        Rename(f"{base}embeddings.word_embeddings.weight", "embed.tokens.weight"),
        Rename(f"{base}embeddings.token_type_embeddings.weight", "embed.segments.weight"),
        Rename(f"{base}embeddings.position_embeddings.weight", "embed.position.weight"),
        *rename_modules([(f"{base}embeddings.LayerNorm", "embed.norm")]),
        Drop(f"{base}embeddings.position_ids", "the numbers 0, 1, 2, …, counted"),
    ]


def masked_rules(predictions: str, transform: str, base: str, head: HeadChoice, tied: bool) -> Map:
    """The head for masked tokens: `predictions` begins its names and `transform` those of the layer before its logits.

    The bias of the logits has two names. Tied, both are one tensor; untied, the other library adds the decoder's only.
    """
    ours = "head.masked" if head.kind == "pretraining" else "head"
    layer = rename_modules([(f"{transform}dense", f"{ours}.dense"), (f"{transform}LayerNorm", f"{ours}.norm")])
    bias, decoder = f"{predictions}.bias", f"{predictions}.decoder"
    if tied:
        return [
            *layer,
            Copy(f"{decoder}.weight", of=f"{base}embeddings.word_embeddings.weight"),
            Copy(f"{decoder}.bias", of=bias),
            Rename(bias, f"{ours}.logits.bias"),
        ]
    return [
        *layer,
        *rename_modules([(decoder, f"{ours}.logits")]),
        Drop(bias, "never added where the logits are not tied", written_as=f"{decoder}.bias"),
    ]


def pooler_rules(pooler: str, head: HeadChoice, width: int) -> Map:
    """The layer over the first token, where a head reads it; files often hold it beside a head that does not.

    The other library's bare encoder always has one: for a model of ours that has none, it is written as zeros.
    """
    if head.kind in ("pretraining", "pooled", "classification"):
        return list(rename_modules([(pooler, "head.pool.dense")]))
    reason = "no answer of this head depends on the pooled vector"
    if head.kind not in ("states", "embedding"):
        return unread([pooler], reason)
    shapes = {"weight": (width, width), "bias": (width,)}
    return [Drop(f"{pooler}.{kind}", reason, zeros=shape) for kind, shape in shapes.items()]


def unread(modules: list[str], reason: str) -> list[Drop]:
    return [Drop(f"{module}.{kind}", reason) for module in modules for kind in ("weight", "bias")]


def task_rules(head: HeadChoice) -> Map:
    """The last layer of the heads that decide about texts, tokens and spans."""
    if head.kind in ("classification", "tokens"):
        return list(rename_modules([("classifier", "head.out")]))
    return list(rename_modules([("qa_outputs", "head.out")])) if head.kind == "spans" else []
