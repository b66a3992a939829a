"""GPT-Neo against the reference library's, with noise on every parameter: outputs, gradients, files both ways."""

import json
from dataclasses import replace

import pytest
import torch
from transformers import GPTNeoConfig

from qkv.errors import QkvError
from qkv.weights.maps.catalogue import PUBLISHED
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
    "vocab_size": 41, "max_position_embeddings": 80, "hidden_size": 24, "num_layers": 4, "num_heads": 3,
    "attention_types": [[["global", "local"], 2]], "window_size": 5, "pad_token_id": 5,
}  # fmt: skip
CASES = {
    "language": Case("GPTNeoForCausalLM", GPTNeoConfig(**CONFIG)),
    "untied, relu, other hidden and sights": Case(
        "GPTNeoForCausalLM",
        GPTNeoConfig(
            **{**CONFIG, "num_layers": 3, "attention_types": [[["local"], 2], [["global"], 1]]},
            tie_word_embeddings=False,
            activation_function="relu",
            intermediate_size=40,
            layer_norm_epsilon=1e-3,
        ),
    ),
    "one local layer, one head": Case(
        "GPTNeoForCausalLM",
        GPTNeoConfig(**{**CONFIG, "num_layers": 1, "attention_types": [[["local"], 1]], "num_heads": 1}),
    ),
    "states": Case("GPTNeoModel", GPTNeoConfig(**CONFIG)),
    "classification": Case("GPTNeoForSequenceClassification", GPTNeoConfig(**CONFIG, num_labels=3)),
    "tokens": Case("GPTNeoForTokenClassification", GPTNeoConfig(**CONFIG, num_labels=4)),
    "spans": Case("GPTNeoForQuestionAnswering", GPTNeoConfig(**CONFIG)),
}
READ = PUBLISHED["gpt_neo"].config.read


@pytest.fixture(scope="module", params=other_heads_slow(CASES))
def pair(request, tmp_path_factory):
    return reference_pair(CASES[request.param], tmp_path_factory.mktemp("reference"))


def test_outputs_agree_at_all_lengths_and_paddings(pair):
    """The window of 5 tokens is crossed from length 6 on."""
    check_outputs(pair, [1, 2, 5, 6, 9, 64, 80])


def test_gradients_agree(pair):
    check_gradients(pair)


def test_a_cache_changes_nothing(pair):
    check_cached(pair)


def test_what_is_exported_the_reference_opens(pair, tmp_path):
    check_both_ways(pair, tmp_path)


@torch.no_grad()
def test_the_published_window_is_crossed(tmp_path):
    config = {**CONFIG, "max_position_embeddings": 300, "window_size": 256}
    pair = reference_pair(Case("GPTNeoForCausalLM", GPTNeoConfig(**config)), tmp_path)
    ids = random_ids(pair, 1, 300)
    torch.testing.assert_close(pair.ours(ids), pair.reference(ids).logits, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("said", "layers", "sights"),
    [
        ([[["global", "local"], 12]], 24, "global local"),
        ([[["global"], 3]], 3, "global"),
        ([[["global", "local"], 1], [["global"], 1]], 3, "global local"),
        ([[["local"], 2], [["global"], 1]], 3, "local local global"),
    ],
)
def test_sights_are_told_in_as_few_words_as_can_be(said, layers, sights):
    config = {**json.loads(GPTNeoConfig().to_json_string()), "num_layers": layers, "attention_types": said}
    del config["attention_layers"]
    sizes = PUBLISHED["gpt_neo"].sizes_of(config)
    assert sizes.sights == sights
    written = PUBLISHED["gpt_neo"].config.write(sizes)
    assert GPTNeoConfig(**written).attention_layers == [word for words, times in said for word in words * times]
    assert READ(written)["sights"] == sights


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_types": [[["global"], 3]]}, "tells of 3 layers, .num_layers. of 4"),
        ({"attention_types": "global"}, "must look like"),
        ({"attention_types": [[["global"], 2**60]]}, "tells of 10000 layers"),
        ({"attention_layers": ["global"] * 4}, "attention_layers.*another thing"),
        ({"attention_kernel": "new"}, "could change what GPT-Neo computes: attention_kernel"),
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(changes, message):
    config = {**json.loads(GPTNeoConfig(**CONFIG).to_json_string()), **changes}
    if "attention_types" in changes:
        del config["attention_layers"]
    with pytest.raises(QkvError, match=message):
        READ(config)


def test_sights_that_do_not_exist_are_refused():
    from qkv.models.catalogue import FAMILIES, build

    with pytest.raises(QkvError, match="words global and local, not 'global sideways'"):
        build("gpt-neo", replace(FAMILIES["gpt-neo"].published["125m"], sights="global sideways"))
