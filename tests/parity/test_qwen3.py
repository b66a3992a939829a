"""Qwen3 against the reference library's, with noise on every parameter: outputs, gradients, files both ways."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import Qwen3Config

from qkv.errors import QkvError
from qkv.models.catalogue import build
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from tests.parity.published import (
    Case,
    check_both_ways,
    check_cached,
    check_gradients,
    check_outputs,
    other_heads_slow,
    reference_pair,
)

CONFIG = {
    "vocab_size": 41, "max_position_embeddings": 80, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8, "pad_token_id": 5,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 20}


def qwen3(architecture: str = "Qwen3ForCausalLM", **changes) -> Case:
    return Case(architecture, Qwen3Config(**{**CONFIG, **changes}))


CASES = {
    "language": qwen3(),
    "tied, one key/value head, heads as wide as they are in a Llama": qwen3(
        tie_word_embeddings=True, num_key_value_heads=1, head_dim=4
    ),
    "as many keys as queries, another epsilon, gelu": qwen3(
        num_key_value_heads=6, rms_norm_eps=1e-2, hidden_act="gelu"
    ),
    "biases, another base": qwen3(
        attention_bias=True, attention_dropout=0.1, rope_parameters={"rope_type": "default", "rope_theta": 1e6}
    ),
    "yarn": qwen3(rope_parameters={"rope_theta": 500.0, **YARN}),
    "states": qwen3("Qwen3Model"),
    "classification": qwen3("Qwen3ForSequenceClassification", num_labels=3),
    "tokens": qwen3("Qwen3ForTokenClassification", num_labels=4),
    "spans": qwen3("Qwen3ForQuestionAnswering"),
}
READ = PUBLISHED["qwen3"].sizes_of


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
    check_both_ways(pair, tmp_path)


def test_tensors_are_written_by_the_names_that_the_reference_writes(tmp_path):
    pair = reference_pair(CASES["language"], tmp_path / "theirs")
    save_published(pair.ours, tmp_path / "ours", PUBLISHED)
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert ours.keys() == theirs.keys() >= {f"model.layers.1.self_attn.{name}_norm.weight" for name in "qk"}


def test_what_is_absent_is_what_the_reference_takes():
    config = {key: value for key, value in CONFIG.items() if key not in ("head_dim", "num_key_value_heads")}
    sizes = READ({**config, "model_type": "qwen3"})
    theirs = Qwen3Config(**config)
    assert (sizes.head_width, sizes.key_value_heads) == (theirs.head_dim, theirs.num_key_value_heads)
    assert (sizes.epsilon, sizes.rotary_base) == (theirs.rms_norm_eps, theirs.rope_parameters["rope_theta"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_sliding_window": True}, "use_sliding_window False"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "type 'dynamic'"),
        ({"head_dim": None}, "head_width .* above 0, but is None"),
        ({"mlp_bias": True}, "could change what Qwen3 computes: mlp_bias"),
        ({"num_experts": 8}, "could change what Qwen3 computes: num_experts"),
        ({"quantization_config": {"bits": 4}}, "could change what Qwen3 computes: quantization_config"),
    ],
)
def test_what_is_not_read_is_refused(changes, message):
    config = json.loads(Qwen3Config(**CONFIG).to_json_string())
    del config["rope_parameters"]
    with pytest.raises(QkvError, match=message):
        READ({**config, **changes})


@pytest.mark.parametrize(
    "changes", [{"window": 4}, {"feed_forward_bias": True}, {"attention_bias": True}, {"output_bias": True}], ids=str
)
def test_what_a_published_qwen3_has_no_word_for_is_not_written(changes):
    sizes = replace(READ(json.loads(Qwen3Config(**CONFIG).to_json_string())), **changes)
    with pytest.raises(QkvError, match="None of the published forms of the family qwen3"):
        save_published(build("qwen3", sizes), Path("nowhere"), PUBLISHED)
