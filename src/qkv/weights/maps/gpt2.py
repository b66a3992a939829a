"""GPT-2 as Hugging Face's transformers saves it."""

from __future__ import annotations

from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.weights.config_map import ConfigMap, Size, activation
from qkv.weights.maps.decoder_heads import decoder_head_rules
from qkv.weights.maps.gpt_layers import GPT_LAYERS
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Copy, Drop, Map, Rename, rename_modules


def rules(sizes: GPT2Sizes, head: HeadChoice | None) -> Map:
    assert head is not None
    own: list[Copy | Rename] = [Copy("lm_head.weight", of="transformer.wte.weight")]
    if not sizes.tied:
        own = [Rename("lm_head.weight", "head.weight")]
    return [
        Rename("transformer.wte.weight", "embed.tokens.weight"),
        Rename("transformer.wpe.weight", "embed.position.weight"),
        *GPT_LAYERS,
        *rename_modules([("transformer.ln_f", "stack.norm")]),
        Drop("transformer.h.{}.attn.masked_bias", "the value of hidden scores, computed"),
        *decoder_head_rules(head, own),
    ]


CONFIG = ConfigMap(
    name="GPT-2",
    sizes=(
        Size("vocab_size", "vocabulary"),
        Size("n_positions", "positions"),
        Size("n_embd", "width"),
        Size("n_head", "heads"),
        Size("n_layer", "layers"),
        Size("n_inner", "hidden", absent=None),
        activation("activation_function", absent="gelu_new"),
        Size("layer_norm_epsilon", "epsilon", absent=1e-5),
        Size("resid_pdrop", "dropout", absent=0.1),
        Size("embd_pdrop", "embedding_dropout", absent=0.1),
        Size("attn_pdrop", "attention_dropout", absent=0.1),
        Size("tie_word_embeddings", "tied", absent=True),
    ),
    fixed={"model_type": ("gpt2",)},
    fixed_by_default={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
    },
    other=frozenset(
        {
            "reorder_and_upcast_attn",  # the order of the arithmetic only
            "summary_type",
            "summary_use_proj",
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "classifier_dropout",
        }
    ),
    same=(("n_ctx", "n_positions"),),
    complete=lambda sizes: {**sizes, "hidden": sizes["hidden"] or 4 * sizes["width"]},
)

GPT2 = PublishedFamily(
    model_type="gpt2",
    family="gpt2",
    config=CONFIG,
    architectures={
        "language": "GPT2LMHeadModel",
        "states": "GPT2Model",
        "classification": "GPT2ForSequenceClassification",
        "tokens": "GPT2ForTokenClassification",
        "spans": "GPT2ForQuestionAnswering",
    },
    rules=rules,
    base="transformer.",
    fits=lambda sizes: sizes.experts is None,
)
