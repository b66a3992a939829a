"""GPT-2 against the reference library's, with noise on every parameter: outputs, gradients, files both ways."""

import pytest
import torch
import transformers
from transformers import GPT2Config

from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from tests.parity.published import Case, check_both_ways, check_cached, check_gradients, check_outputs, reference_pair

CONFIG = {"vocab_size": 41, "n_positions": 80, "n_embd": 24, "n_layer": 2, "n_head": 3, "pad_token_id": 5}
CASES = {
    "language": Case("GPT2LMHeadModel", GPT2Config(**CONFIG)),
    "untied, relu, other hidden": Case(
        "GPT2LMHeadModel",
        GPT2Config(
            **CONFIG, tie_word_embeddings=False, activation_function="relu", n_inner=40, layer_norm_epsilon=1e-3
        ),
    ),
    "one layer, one head, gelu": Case(
        "GPT2LMHeadModel", GPT2Config(**{**CONFIG, "n_layer": 1, "n_head": 1}, activation_function="gelu")
    ),
    "states": Case("GPT2Model", GPT2Config(**CONFIG)),
    "classification": Case("GPT2ForSequenceClassification", GPT2Config(**CONFIG, num_labels=3)),
    "tokens": Case("GPT2ForTokenClassification", GPT2Config(**CONFIG, num_labels=4)),
    "spans": Case("GPT2ForQuestionAnswering", GPT2Config(**CONFIG)),
}


@pytest.fixture(scope="module", params=CASES)
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


def test_the_names_without_a_prefix_are_read_too(tmp_path):
    """Published GPT-2 files name the tensors of the model with a head as those of the model without one."""
    model = transformers.GPT2LMHeadModel(GPT2Config(**CONFIG)).eval()
    model.transformer.save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text().replace("GPT2Model", "GPT2LMHeadModel")
    (tmp_path / "config.json").write_text(config)
    ids = torch.randint(0, 41, (2, 7))
    torch.testing.assert_close(load_model(tmp_path)(ids), model(ids).logits, atol=1e-5, rtol=1e-4)


def test_a_large_model_is_written_in_shards(pair, tmp_path):
    save_published(pair.ours, tmp_path, PUBLISHED, shard_bytes=20_000)
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 1
    again = load_model(tmp_path)
    for name, tensor in pair.ours.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
