"""Configurations as they are published, key by key: read without complaint, at the size that everyone knows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qkv.errors import QkvError
from qkv.models import big_bird, gpt1, gpt_neo, llama, longformer, qwen3, reformer
from qkv.models.catalogue import build, count_parameters
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published

BOOKKEEPING = {
    "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02, "torch_dtype": "bfloat16", "use_cache": True,
    "transformers_version": "4.40.1",
}  # fmt: skip
SUMMARY = {
    "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
    "summary_type": "cls_index", "summary_use_proj": True,
}  # fmt: skip


def of_llama_kind(
    model_type: str, width: int, hidden: int, layers: int, heads: int, vocabulary: int, positions: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": model_type, "hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "vocab_size": vocabulary, "max_position_embeddings": positions,
        "hidden_act": "silu", **BOOKKEEPING, **more,
    }  # fmt: skip


CONFIGS = {
    "GPT-1": {
        "model_type": "openai-gpt", "architectures": ["OpenAIGPTLMHeadModel"], "afn": "gelu", "attn_pdrop": 0.1,
        "embd_pdrop": 0.1, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "n_ctx": 512, "n_embd": 768,
        "n_head": 12, "n_layer": 12, "n_positions": 512, "n_special": 0, "predict_special_tokens": True,
        "resid_pdrop": 0.1, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": 40478, **SUMMARY,
    },
    "GPT-Neo 125M": {
        "model_type": "gpt_neo", "architectures": ["GPTNeoForCausalLM"], "activation_function": "gelu_new",
        "attention_dropout": 0, "attention_layers": ["global", "local"] * 6,
        "attention_types": [[["global", "local"], 6]], "embed_dropout": 0, "gradient_checkpointing": False,
        "hidden_size": 768, "intermediate_size": None, "layer_norm_epsilon": 1e-05, "max_position_embeddings": 2048,
        "num_heads": 12, "num_layers": 12, "resid_dropout": 0, "vocab_size": 50257, "window_size": 256, **BOOKKEEPING,
        **SUMMARY,
    },
    "Reformer, Crime and Punishment": {
        "model_type": "reformer", "architectures": ["ReformerModelWithLMHead"], "attention_head_size": 64,
        "attention_probs_dropout_prob": 0.1, "attn_layers": ["local", "lsh"] * 3, "axial_norm_std": 1.0,
        "axial_pos_embds": True, "axial_pos_embds_dim": [64, 192], "axial_pos_shape": [512, 1024],
        "chunk_size_feed_forward": 0, "chunk_size_lm_head": 0, "eos_token_id": 2, "feed_forward_size": 512,
        "hash_seed": None, "hidden_act": "relu", "hidden_dropout_prob": 0.05, "hidden_size": 256,
        "initializer_range": 0.02, "intermediate_size": 3072, "is_decoder": True, "layer_norm_eps": 1e-12,
        "local_attention_probs_dropout_prob": 0.05, "local_attn_chunk_length": 64, "local_num_chunks_after": 0,
        "local_num_chunks_before": 1, "lsh_attention_probs_dropout_prob": 0.0, "lsh_attn_chunk_length": 64,
        "lsh_num_chunks_after": 0, "lsh_num_chunks_before": 1, "max_position_embeddings": 524288,
        "num_attention_heads": 2, "num_buckets": [64, 128], "num_chunks_after": 0, "num_chunks_before": 1,
        "num_hashes": 1, "num_hidden_layers": 6, "output_past": True, "pad_token_id": 0, "vocab_size": 320,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 100}},
    },
    "Longformer base": {
        "model_type": "longformer", "architectures": ["LongformerForMaskedLM"], "attention_mode": "longformer",
        "attention_probs_dropout_prob": 0.1, "attention_window": [512] * 12, "bos_token_id": 0, "eos_token_id": 2,
        "gradient_checkpointing": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
        "ignore_attention_mask": False, "initializer_range": 0.02, "intermediate_size": 3072,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 4098, "num_attention_heads": 12, "num_hidden_layers": 12,
        "pad_token_id": 1, "sep_token_id": 2, "type_vocab_size": 1, "vocab_size": 50265,
    },
    "BigBird base": {
        "model_type": "big_bird", "architectures": ["BigBirdForPreTraining"], "attention_probs_dropout_prob": 0.1,
        "attention_type": "block_sparse", "block_size": 64, "bos_token_id": 1, "eos_token_id": 2,
        "gradient_checkpointing": False, "hidden_act": "gelu_new", "hidden_dropout_prob": 0.1, "hidden_size": 768,
        "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 4096, "num_attention_heads": 12, "num_hidden_layers": 12, "num_random_blocks": 3,
        "pad_token_id": 0, "position_embedding_type": "absolute", "rescale_embeddings": False, "sep_token_id": 66,
        "type_vocab_size": 2, "use_bias": True, "use_cache": True, "vocab_size": 50358,
    },
    "Llama 1 7B": of_llama_kind(
        "llama", 4096, 11008, 32, 32, 32000, 2048, rms_norm_eps=1e-6, max_sequence_length=2048, pad_token_id=0,
        tie_word_embeddings=False,
    ),
    "Llama 2 70B": of_llama_kind(
        "llama", 8192, 28672, 80, 64, 32000, 4096, num_key_value_heads=8, pretraining_tp=1, rms_norm_eps=1e-5,
        rope_scaling=None, tie_word_embeddings=False,
    ),
    "Llama 3.1 8B": of_llama_kind(
        "llama", 4096, 14336, 32, 32, 128256, 131072, num_key_value_heads=8, attention_bias=False,
        attention_dropout=0.0, mlp_bias=False, pretraining_tp=1, rms_norm_eps=1e-5, rope_theta=500000.0,
        tie_word_embeddings=False, rope_scaling={
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    ),
    "SmolLM2 135M": of_llama_kind(
        "llama", 576, 1536, 30, 9, 49152, 8192, num_key_value_heads=3, attention_bias=False, attention_dropout=0.0,
        is_llama_config=True, mlp_bias=False, pretraining_tp=1, rms_norm_eps=1e-5, rope_interleaved=False,
        rope_scaling=None, rope_theta=100000, tie_word_embeddings=True, pad_token_id=2,
        **{"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}}},
    ),
    "Mistral 7B": of_llama_kind(
        "mistral", 4096, 14336, 32, 32, 32000, 32768, num_key_value_heads=8, rms_norm_eps=1e-5, rope_theta=10000.0,
        sliding_window=4096, tie_word_embeddings=False,
    ),
    "Qwen2.5 0.5B": of_llama_kind(
        "qwen2", 896, 4864, 24, 14, 151936, 32768, num_key_value_heads=2, attention_dropout=0.0, max_window_layers=24,
        rms_norm_eps=1e-6, rope_theta=1000000.0, sliding_window=32768, tie_word_embeddings=True, use_mrope=False,
        use_sliding_window=False,
    ),
    "Qwen3 0.6B": of_llama_kind(
        "qwen3", 1024, 3072, 28, 16, 151936, 40960, architectures=["Qwen3ForCausalLM"], attention_bias=False,
        attention_dropout=0.0, head_dim=128, max_window_layers=28, num_key_value_heads=8, rms_norm_eps=1e-6,
        rope_scaling=None, rope_theta=1000000, sliding_window=None, tie_word_embeddings=True, use_sliding_window=False,
    ),
    "Qwen3 32B, by a newer version": of_llama_kind(
        "qwen3", 5120, 25600, 64, 64, 151936, 40960, architectures=["Qwen3ForCausalLM"], attention_bias=False,
        attention_dropout=0.0, head_dim=128, layer_types=["full_attention"] * 64, max_window_layers=64,
        num_key_value_heads=8, rms_norm_eps=1e-6, rope_parameters={"rope_theta": 1000000, "rope_type": "default"},
        sliding_window=None, tie_word_embeddings=False, use_sliding_window=False, dtype="bfloat16", pad_token_id=None,
    ),
}  # fmt: skip
COUNTS = {
    "Llama 3.1 8B": 8_030_261_248,
    "Mistral 7B": 7_241_732_096,
    "Qwen2.5 0.5B": 494_032_768,
}
SAME_AS = {
    "GPT-1": gpt1.SIZES["base"],
    "GPT-Neo 125M": gpt_neo.SIZES["125m"],
    "Reformer, Crime and Punishment": reformer.SIZES["crime-and-punishment"],
    "Longformer base": longformer.SIZES["base"],
    "BigBird base": big_bird.SIZES["base"],
    "Llama 1 7B": llama.SIZES["1-7b"],
    "Llama 2 70B": llama.SIZES["2-70b"],
    "SmolLM2 135M": llama.SIZES["smollm2-135m"],
    "Qwen3 0.6B": qwen3.SIZES["0.6b"],
    "Qwen3 32B, by a newer version": qwen3.SIZES["32b"],
}


@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_read_as_the_model_that_it_is(name: str) -> None:
    published = PUBLISHED[CONFIGS[name]["model_type"]]
    sizes = published.sizes_of(CONFIGS[name])
    if name in SAME_AS:
        assert sizes == SAME_AS[name]
    else:
        assert count_parameters(published.family, sizes) == COUNTS[name]


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_written_is_read_again(name: str) -> None:
    published = PUBLISHED[CONFIGS[name]["model_type"]]
    sizes = published.sizes_of(CONFIGS[name])
    assert published.fits(sizes)
    assert published.sizes_of(published.config.write(sizes)) == sizes


@pytest.mark.parametrize("name", CONFIGS)
def test_a_key_that_no_one_knows_is_refused(name: str) -> None:
    with pytest.raises(QkvError, match="computes: logit_cap"):
        PUBLISHED[CONFIGS[name]["model_type"]].sizes_of({**CONFIGS[name], "logit_cap": 30.0})


def test_a_model_that_no_published_form_can_hold_is_not_written() -> None:
    sizes = llama.LlamaSizes(
        vocabulary=9, positions=8, width=8, hidden=8, heads=2, key_value_heads=1, layers=1, window=2
    )
    model = build("llama", replace(sizes, output_bias=True))
    with pytest.raises(
        QkvError, match="None of the published forms of the family llama has such sizes: llama, mistral"
    ):
        save_published(model, Path("nowhere"), PUBLISHED)
