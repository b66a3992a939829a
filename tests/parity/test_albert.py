"""ALBERT against the reference library's, with noise on every parameter: outputs, gradients, files both ways."""

import json

import pytest
from transformers import AlbertConfig, AlbertModel

from qkv.errors import QkvError
from qkv.weights.load import load_model
from tests.parity.published import Case, check_both_ways, check_gradients, check_outputs, reference_pair

CONFIG = {
    "vocab_size": 41,
    "max_position_embeddings": 80,
    "embedding_size": 10,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "pad_token_id": 5,
}
CASES = {
    "pretraining": Case("AlbertForPreTraining", AlbertConfig(**CONFIG)),
    "pretraining, untied": Case("AlbertForPreTraining", AlbertConfig(**CONFIG, tie_word_embeddings=False)),
    "masked": Case("AlbertForMaskedLM", AlbertConfig(**CONFIG)),
    "masked, untied, relu": Case(
        "AlbertForMaskedLM", AlbertConfig(**CONFIG, tie_word_embeddings=False, hidden_act="relu", layer_norm_eps=1e-3)
    ),
    "tables as wide as the stream, one layer": Case(
        "AlbertForMaskedLM", AlbertConfig(**{**CONFIG, "embedding_size": 24, "num_hidden_layers": 1}, hidden_act="gelu")
    ),
    "two groups of two layers, run three and two times": Case(
        "AlbertForMaskedLM", AlbertConfig(**{**CONFIG, "num_hidden_layers": 5}, num_hidden_groups=2, inner_group_num=2)
    ),
    "three groups, for a label": Case(
        "AlbertForSequenceClassification", AlbertConfig(**CONFIG, num_hidden_groups=3, num_labels=2)
    ),
    "pooled": Case("AlbertModel", AlbertConfig(**CONFIG)),
    "classification": Case("AlbertForSequenceClassification", AlbertConfig(**CONFIG, num_labels=3)),
    "tokens": Case("AlbertForTokenClassification", AlbertConfig(**CONFIG, num_labels=4)),
    "spans": Case("AlbertForQuestionAnswering", AlbertConfig(**CONFIG)),
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


def test_groups_that_the_files_or_the_layers_do_not_have_are_refused(tmp_path):
    folder = tmp_path / "reference"
    AlbertModel(AlbertConfig(**CONFIG)).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    for change, said in [
        ({"num_hidden_groups": 2}, r"lack tensors: encoder\.albert_layer_groups\.1\.albert_layers\.0\."),
        ({"inner_group_num": 2}, r"lack tensors: encoder\.albert_layer_groups\.0\.albert_layers\.1\."),
        ({"num_hidden_groups": 9}, "9 groups cannot share 3 layers"),
    ]:
        (folder / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(QkvError, match=said):
            load_model(folder)
