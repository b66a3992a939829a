"""BERT against the reference library's, with noise on every parameter: outputs, gradients, files both ways."""

import pytest
from transformers import BertConfig

from tests.parity.published import Case, check_both_ways, check_gradients, check_outputs, reference_pair

CONFIG = {
    "vocab_size": 41,
    "max_position_embeddings": 80,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "pad_token_id": 5,
}
CASES = {
    "pretraining": Case("BertForPreTraining", BertConfig(**CONFIG)),
    "pretraining, untied": Case("BertForPreTraining", BertConfig(**CONFIG, tie_word_embeddings=False)),
    "masked": Case("BertForMaskedLM", BertConfig(**CONFIG)),
    "masked, untied, relu": Case(
        "BertForMaskedLM", BertConfig(**CONFIG, tie_word_embeddings=False, hidden_act="relu", layer_norm_eps=1e-3)
    ),
    "one layer, one head, four segments, gelu_new": Case(
        "BertForMaskedLM",
        BertConfig(
            **{**CONFIG, "num_hidden_layers": 1, "num_attention_heads": 1, "pad_token_id": 0},
            hidden_act="gelu_new",
            type_vocab_size=4,
        ),
    ),
    "pooled": Case("BertModel", BertConfig(**CONFIG)),
    "classification": Case("BertForSequenceClassification", BertConfig(**CONFIG, num_labels=3)),
    "a number": Case("BertForSequenceClassification", BertConfig(**CONFIG, num_labels=1, problem_type="regression")),
    "tokens": Case("BertForTokenClassification", BertConfig(**CONFIG, num_labels=4)),
    "spans": Case("BertForQuestionAnswering", BertConfig(**CONFIG)),
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
