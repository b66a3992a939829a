"""GPT-1 as Hugging Face's transformers saves it."""

from __future__ import annotations

from typing import Any

from qkv.errors import QkvError
from qkv.models.gpt1 import GPT1Sizes
from qkv.models.head_choice import HeadChoice
from qkv.weights.config_map import ConfigMap, Size
from qkv.weights.maps.decoder_heads import decoder_head_rules
from qkv.weights.maps.gpt_layers import GPT_LAYERS
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Copy, Drop, Map, Rename


def rules(sizes: GPT1Sizes, head: HeadChoice | None) -> Map:
    assert head is not None
    own: list[Copy | Rename] = [Copy("lm_head.weight", of="transformer.tokens_embed.weight")]
    if not sizes.tied:
        own = [Rename("lm_head.weight", "head.weight")]
    return [
        Rename("transformer.tokens_embed.weight", "embed.tokens.weight"),
        Rename("transformer.positions_embed.weight", "embed.position.weight"),
        *GPT_LAYERS,
        Drop("transformer.position_ids", "0, 1, 2, …"),
        *decoder_head_rules(head, own),
    ]


# Their "gelu" is the one with the tanh in this model alone.
ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


def _activation_of(theirs: Any) -> str:
    if theirs not in ACTIVATIONS:
        raise QkvError(f"The config.json asks for the activation {theirs!r}; GPT-1 has {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[theirs]


def _their_activation(ours: str) -> str:
    for theirs, name in ACTIVATIONS.items():
        if name == ours:
            return theirs
    raise QkvError(f"The other library's GPT-1 has no activation {ours}; it has {', '.join(ACTIVATIONS)}.")


CONFIG = ConfigMap(
    name="GPT-1",
    sizes=(
        Size("vocab_size", "vocabulary"),
        Size("n_positions", "positions"),
        Size("n_embd", "width"),
        Size("n_head", "heads"),
        Size("n_layer", "layers"),
        Size("afn", "activation", "gelu", _activation_of, _their_activation),
        Size("layer_norm_epsilon", "epsilon", absent=1e-5),
        Size("resid_pdrop", "dropout", absent=0.1),
        Size("embd_pdrop", "embedding_dropout", absent=0.1),
        Size("attn_pdrop", "attention_dropout", absent=0.1),
        Size("tie_word_embeddings", "tied", absent=True),
    ),
    fixed={"model_type": ("openai-gpt",)},
    fixed_by_default={"n_special": (0,)},  # tokens added to the vocabulary
    other=frozenset(
        {
            "predict_special_tokens",  # whether those are predicted too
            # of a head for multiple choice
            "summary_type",
            "summary_use_proj",
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
        }
    ),
    same=(("n_ctx", "n_positions"),),
)

GPT1 = PublishedFamily(
    model_type="openai-gpt",
    family="gpt1",
    config=CONFIG,
    architectures={
        "language": "OpenAIGPTLMHeadModel",
        "states": "OpenAIGPTModel",
        "classification": "OpenAIGPTForSequenceClassification",
    },
    rules=rules,
    base="transformer.",
)
