"""GPT-1 against the reference library's, with noise on every parameter: outputs, gradients, files both ways."""

import pytest
import torch
import transformers
from transformers import OpenAIGPTConfig

from qkv.errors import QkvError
from qkv.models.catalogue import build
from qkv.models.gpt1 import GPT1Sizes
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import published_config
from tests.parity.published import Case, check_both_ways, check_cached, check_gradients, check_outputs, reference_pair

CONFIG = {"vocab_size": 41, "n_positions": 80, "n_embd": 24, "n_layer": 2, "n_head": 3, "pad_token_id": 5}
CASES = {
    "language": Case("OpenAIGPTLMHeadModel", OpenAIGPTConfig(**CONFIG)),
    "relu, other epsilon": Case("OpenAIGPTLMHeadModel", OpenAIGPTConfig(**CONFIG, afn="relu", layer_norm_epsilon=1e-3)),
    "untied, one layer, one head, silu": Case(
        "OpenAIGPTLMHeadModel",
        OpenAIGPTConfig(**{**CONFIG, "n_layer": 1, "n_head": 1}, afn="silu", tie_word_embeddings=False),
    ),
    "states": Case("OpenAIGPTModel", OpenAIGPTConfig(**CONFIG)),
    "classification": Case("OpenAIGPTForSequenceClassification", OpenAIGPTConfig(**CONFIG, num_labels=3)),
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
    """The published files name the tensors of the model with a head as those of the model without one."""
    model = transformers.OpenAIGPTLMHeadModel(OpenAIGPTConfig(**CONFIG)).eval()
    model.transformer.save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text().replace('"OpenAIGPTModel"', '"OpenAIGPTLMHeadModel"')
    (tmp_path / "config.json").write_text(config)
    ids = torch.randint(0, 41, (2, 7))
    torch.testing.assert_close(load_model(tmp_path)(ids), model(ids).logits, atol=1e-5, rtol=1e-4)


def test_an_activation_that_the_reference_lacks_is_not_exported():
    sizes = GPT1Sizes(vocabulary=11, positions=8, width=8, heads=2, layers=1, activation="gelu")
    with pytest.raises(QkvError, match="has no activation gelu; it has gelu, relu"):
        published_config(build("gpt1", sizes), PUBLISHED)
