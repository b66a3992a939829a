"""Llama, Mistral and Qwen2 against the reference library's, with noise on every parameter: outputs, gradients, files
both ways."""

import json
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, Qwen2Config

from qkv.errors import QkvError
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import family_of
from tests.parity.published import (
    Case,
    check_both_ways,
    check_cached,
    check_gradients,
    check_outputs,
    other_heads_slow,
    random_ids,
    reference_pair,
)

CONFIG = {
    "vocab_size": 41, "max_position_embeddings": 80, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 3, "pad_token_id": 5,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 20}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip


def llama(architecture: str = "LlamaForCausalLM", **changes) -> Case:
    return Case(architecture, LlamaConfig(**{**CONFIG, **changes}))


def stretched(**rope) -> Case:
    return llama(head_dim=16, rope_parameters={"rope_theta": 500.0, **rope})


CASES = {
    "language": llama(),
    "tied, one key/value head, gelu": llama(tie_word_embeddings=True, num_key_value_heads=1, hidden_act="gelu"),
    "as many keys as queries, another epsilon": llama(num_key_value_heads=6, rms_norm_eps=1e-3),
    "heads wider than the width, biases": llama(head_dim=10, attention_bias=True, mlp_bias=True, attention_dropout=0.1),
    "one layer, one head": llama(num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1),
    "another base": llama(rope_parameters={"rope_type": "default", "rope_theta": 100.0}),
    "linear": stretched(rope_type="linear", factor=2.5),
    "llama3": stretched(**LLAMA3),
    "yarn": stretched(**YARN),
    "yarn told more": stretched(**YARN, beta_fast=6.0, beta_slow=0.5, mscale=1.5, mscale_all_dim=0.5),
    "yarn with a factor": stretched(**YARN, attention_factor=1.7),
    "states": llama("LlamaModel"),
    "classification": llama("LlamaForSequenceClassification", num_labels=3),
    "tokens": llama("LlamaForTokenClassification", num_labels=4),
    "spans": llama("LlamaForQuestionAnswering"),
    "mistral": Case("MistralForCausalLM", MistralConfig(**CONFIG, sliding_window=5)),
    "mistral without a window": Case("MistralModel", MistralConfig(**CONFIG, sliding_window=None)),
    "mistral spans": Case("MistralForQuestionAnswering", MistralConfig(**CONFIG, sliding_window=7)),
    "qwen2": Case("Qwen2ForCausalLM", Qwen2Config(**CONFIG, tie_word_embeddings=True)),
    "qwen2 spans": Case("Qwen2ForQuestionAnswering", Qwen2Config(**CONFIG)),
    "qwen2 tokens": Case("Qwen2ForTokenClassification", Qwen2Config(**CONFIG, num_labels=3)),
}
READ = PUBLISHED["llama"].sizes_of


@pytest.fixture(scope="module", params=other_heads_slow(CASES))
def pair(request, tmp_path_factory):
    return reference_pair(CASES[request.param], tmp_path_factory.mktemp("reference"))


def test_outputs_agree_at_all_lengths_and_paddings(pair):
    check_outputs(pair, [1, 2, 9, 64, 80])


def test_gradients_agree(pair):
    check_gradients(pair)


def test_a_cache_changes_nothing(pair):
    check_cached(pair)


def test_what_is_exported_the_reference_opens(pair, tmp_path):
    written_as = family_of(pair.ours, PUBLISHED).model_type
    if pair.case.config.model_type != written_as:  # a Mistral without a window is written as the Llama that it is
        assert (written_as, pair.case.config.model_type, pair.ours.sizes.window) == ("llama", "mistral", None)
        pair = replace(pair, case=Case("LlamaModel", LlamaConfig(**CONFIG)))
    check_both_ways(pair, tmp_path)


@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn"])
def test_both_spellings_of_rotary_positions_are_read_alike(kind):
    rope = {"default": {"rope_type": "default"}, "linear": {"rope_type": "linear", "factor": 2.0}}
    said = {**rope, "llama3": LLAMA3, "yarn": YARN}[kind]
    config = json.loads(LlamaConfig(**CONFIG).to_json_string())
    del config["rope_parameters"]
    newer = READ({**config, "rope_parameters": {**said, "rope_theta": 77.0}})
    older = READ({**config, "rope_theta": 77.0, "rope_scaling": said})
    oldest = {**said, "type": said["rope_type"]}
    del oldest["rope_type"]
    assert newer == older == READ({**config, "rope_theta": 77.0, "rope_scaling": oldest})
    assert newer.stretch == ("none" if kind == "default" else kind)
    assert newer.rotary_base == 77.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "type 'dynamic'; read here are 'default', 'linear'"),
        ({"rope_scaling": {"type": "linear"}}, "factor None"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "cosines": 1}}, "do not have: cosines"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 3.0}, "rope_theta": 4.0}, "one number"),
        ({"rope_scaling": {**YARN, "truncate": False}}, "without truncate"),
        ({"partial_rotary_factor": 0.5}, "only a part of each head"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"attention_bias": "yes"}, "attention_bias .* must be true or false"),
        ({"sliding_window": 5}, "could change what Llama computes: sliding_window"),
    ],
)
def test_what_is_not_read_is_refused(changes, message):
    config = json.loads(LlamaConfig(**CONFIG).to_json_string())
    del config["rope_parameters"]
    with pytest.raises(QkvError, match=message):
        READ({**config, **changes})


def test_qwen2_layers_with_windows_are_refused():
    config = Qwen2Config(**CONFIG, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    config = json.loads(config.to_json_string())
    with pytest.raises(QkvError, match="use_sliding_window"):
        PUBLISHED["qwen2"].sizes_of(config)
    with pytest.raises(QkvError, match="layer_types"):
        PUBLISHED["qwen2"].sizes_of({**config, "use_sliding_window": False})


@torch.no_grad()
def test_more_tokens_than_the_model_reads_are_refused(tmp_path):
    pair = reference_pair(CASES["language"], tmp_path)
    with pytest.raises(QkvError, match="81 tokens and this model reads at most 80"):
        pair.ours(random_ids(pair, 1, 81))
