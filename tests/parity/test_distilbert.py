"""DistilBERT against the reference library's, with noise on every parameter: outputs, gradients, files both ways."""

import pytest
from transformers import DistilBertConfig

from tests.parity.published import Case, check_both_ways, check_gradients, check_outputs, reference_pair

CONFIG = {
    "vocab_size": 41,
    "max_position_embeddings": 80,
    "dim": 24,
    "n_layers": 2,
    "n_heads": 3,
    "hidden_dim": 40,
    "pad_token_id": 5,
}
CASES = {
    "masked": Case("DistilBertForMaskedLM", DistilBertConfig(**CONFIG)),
    "masked, untied, relu": Case(
        "DistilBertForMaskedLM", DistilBertConfig(**CONFIG, tie_word_embeddings=False, activation="relu")
    ),
    "one layer, one head, padding 0": Case(
        "DistilBertForMaskedLM", DistilBertConfig(**{**CONFIG, "n_layers": 1, "n_heads": 1, "pad_token_id": 0})
    ),
    "states": Case("DistilBertModel", DistilBertConfig(**CONFIG)),
    "classification": Case("DistilBertForSequenceClassification", DistilBertConfig(**CONFIG, num_labels=3)),
    "tokens": Case("DistilBertForTokenClassification", DistilBertConfig(**CONFIG, num_labels=4)),
    "spans": Case("DistilBertForQuestionAnswering", DistilBertConfig(**CONFIG)),
}


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    return reference_pair(CASES[request.param], tmp_path_factory.mktemp("reference"))


def test_outputs_agree_at_all_lengths_and_paddings(pair):
    check_outputs(pair, [1, 2, 9, 64, 80])


def test_gradients_agree(pair):
    check_gradients(pair)


def test_what_is_exported_the_reference_opens(pair, tmp_path):
    check_both_ways(pair, tmp_path)
