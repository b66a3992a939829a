"""Encoder folders as they are found: old names, leftovers of other heads, and what must not be taken."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import BertConfig, RoFormerConfig

from qkv.errors import QkvError
from qkv.models.head_choice import HeadChoice
from qkv.weights.load import load_model
from qkv.weights.maps.albert import ALBERT
from qkv.weights.maps.bert import BERT
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.maps.distilbert import DISTILBERT
from qkv.weights.maps.roformer import ROFORMER
from qkv.weights.published import save_published
from tests.parity.published import perturb
from tests.parity.test_bert import CONFIG
from tests.parity.test_roformer import CONFIG as ROFORMER_CONFIG


def saved(architecture, folder, config=None):
    torch.manual_seed(1)
    model = getattr(transformers, architecture)(config or BertConfig(**CONFIG)).eval()
    perturb(model)
    model.save_pretrained(folder)
    return model


def edit_tensors(folder, change):
    file = folder / "model.safetensors"
    save_file({name: tensor.clone() for name, tensor in change(load_file(file)).items()}, file)


def edit_config(folder, **changes):
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


IDS = torch.tensor([[1, 2, 3, 4, 6, 7], [8, 9, 10, 11, 12, 13]])


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def test_the_names_of_the_first_files_are_read(tmp_path):
    model = saved("BertForPreTraining", tmp_path)

    def older(tensors):
        old = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in tensors.items()
        }
        old["bert.embeddings.position_ids"] = torch.arange(80)[None]
        old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"]
        old["cls.predictions.decoder.bias"] = old["cls.predictions.bias"]
        return old

    edit_tensors(tmp_path, older)
    close(load_model(tmp_path)(IDS).masked, model(IDS).prediction_logits)


def test_a_name_old_and_new_is_refused(tmp_path):
    saved("BertModel", tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors | {"embeddings.LayerNorm.gamma": torch.ones(24)})
    with pytest.raises(QkvError, match=r"hold embeddings\.LayerNorm\.weight twice"):
        load_model(tmp_path)


def test_a_model_for_masked_tokens_may_hold_what_it_learned_of_sentences(tmp_path):
    """As the best known files do; the answer about masked tokens depends on none of it."""
    model = saved("BertForPreTraining", tmp_path)
    edit_config(tmp_path, architectures=["BertForMaskedLM"])
    found = load_model(tmp_path)
    assert found.head_choice.kind == "masked"
    close(found(IDS), model(IDS).prediction_logits)


def test_another_head_takes_up_all_that_the_folder_holds(tmp_path):
    """The pooler of such a file is where a classifier starts; without it, it would start from chance."""
    model = saved("BertForPreTraining", tmp_path)
    edit_config(tmp_path, architectures=["BertForMaskedLM"])
    classifier = load_model(tmp_path, head=HeadChoice("classification", ("no", "yes")))
    assert torch.equal(classifier.head.pool.dense.weight, model.bert.pooler.dense.weight)
    pooled = load_model(tmp_path, head=HeadChoice("pooled"))(IDS)
    close(pooled.pooled, model.bert(IDS).pooler_output)
    both = load_model(tmp_path, head=HeadChoice("pretraining"))(IDS)
    close(both.next_sentence, model(IDS).seq_relationship_logits)
    close(load_model(tmp_path, head=HeadChoice("masked"))(IDS), both.masked)


def test_a_head_inside_another_is_kept_both_ways(tmp_path):
    model = saved("BertForMaskedLM", tmp_path)
    found = load_model(tmp_path, head=HeadChoice("pretraining"))(IDS)
    close(found.masked, model(IDS).logits)


def test_a_model_without_its_pooler_gives_the_stream(tmp_path):
    torch.manual_seed(1)
    model = transformers.BertModel(BertConfig(**CONFIG), add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path)
    found = load_model(tmp_path)
    assert found.head_choice.kind == "states"
    close(found(IDS), model(IDS).last_hidden_state)
    save_published(found, tmp_path / "again", PUBLISHED)
    opened, report = transformers.BertModel.from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    close(opened(IDS).last_hidden_state, model(IDS).last_hidden_state)
    assert not opened.pooler.dense.weight.any()  # which the reference always has and this model has not


def test_a_folder_that_does_not_say_its_class_is_told_by_its_tensors(tmp_path):
    model = saved("BertForPreTraining", tmp_path)
    edit_config(tmp_path, architectures=None)
    close(load_model(tmp_path)(IDS).next_sentence, model(IDS).seq_relationship_logits)


def test_the_number_of_classes_replaces_two_nameless_ones(tmp_path):
    model = saved("BertForSequenceClassification", tmp_path, BertConfig(**CONFIG, num_labels=4))
    edit_config(tmp_path, id2label={"0": "LABEL_0", "1": "LABEL_1"}, num_labels=4)
    found = load_model(tmp_path)
    assert found.head_choice.labels == ("LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3")
    close(found(IDS), model(IDS).logits)


def test_a_model_of_several_labels_a_text_is_not_taken_for_one_of_one(tmp_path):
    saved("BertForSequenceClassification", tmp_path, BertConfig(**CONFIG, problem_type="multi_label_classification"))
    with pytest.raises(QkvError, match="may give a text several labels"):
        load_model(tmp_path)
    assert load_model(tmp_path, head=HeadChoice("states")).head_choice.kind == "states"


def old(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


@pytest.mark.parametrize(
    ("architecture", "change", "said"),
    [
        ("BertForMaskedLM", lambda t: t | {"bert.surplus": torch.zeros(3)}, r"no place for: bert\.surplus"),
        ("BertForMaskedLM", lambda t: t | {"classifier.weight": torch.zeros(3)}, r"no place for: classifier\.weight"),
        (
            "BertForMaskedLM",
            lambda t: t | {"cls.predictions.decoder.weight": torch.zeros(41, 24)},
            "differs from bert.embeddings.word_embeddings.weight",
        ),
        (
            "BertForMaskedLM",
            lambda t: {name: tensor for name, tensor in t.items() if name != "cls.predictions.bias"},
            r"lack tensors: cls\.predictions\.bias\.",
        ),
        (
            "BertForPreTraining",
            lambda t: {name: tensor for name, tensor in t.items() if "pooler" not in name},
            r"lack tensors: bert\.pooler\.dense\.bias, bert\.pooler\.dense\.weight\.",
        ),
        (
            "BertForMaskedLM",
            lambda t: t | {"bert.embeddings.word_embeddings.weight": torch.zeros(40, 24)},
            r"word_embeddings\.weight the shape \[40, 24\]; by its config\.json it has \[41, 24\]",
        ),
        (
            "BertModel",
            lambda t: {name: tensor for name, tensor in t.items() if name != "embeddings.LayerNorm.bias"},
            r"lack tensors: embeddings\.LayerNorm\.bias\.",
        ),
        (
            "BertForMaskedLM",
            lambda t: {old(name): tensor for name, tensor in t.items() if name != "bert.embeddings.LayerNorm.bias"},
            r"lack tensors: bert\.embeddings\.LayerNorm\.beta\.",
        ),
        (
            "BertForMaskedLM",
            lambda t: {
                old(name): tensor.repeat(2) if "dings.LayerNorm" in name else tensor for name, tensor in t.items()
            },
            r"gives bert\.embeddings\.LayerNorm\.gamma the shape \[48\]",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, architecture, change, said):
    saved(architecture, tmp_path)
    edit_tensors(tmp_path, change)
    with pytest.raises(QkvError, match=said):
        load_model(tmp_path)


def test_a_table_of_angles_that_is_another_is_refused(tmp_path):
    saved("RoFormerModel", tmp_path, RoFormerConfig(**ROFORMER_CONFIG))
    name = "encoder.embed_positions.weight"
    edit_tensors(tmp_path, lambda tensors: tensors | {name: tensors[name].half()})
    load_model(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors | {name: tensors[name].float() + 0.01})
    with pytest.raises(QkvError, match="is not what every model of this family and size has"):
        load_model(tmp_path)


MINIMAL = {"vocab_size": 9, "max_position_embeddings": 8, "hidden_size": 4, "intermediate_size": 8}
LAYERS = {"num_attention_heads": 2, "num_hidden_layers": 1}
CONFIGS = {
    "bert": (BERT, MINIMAL | LAYERS),
    "albert": (ALBERT, MINIMAL | LAYERS | {"embedding_size": 4}),
    "roformer": (ROFORMER, MINIMAL | LAYERS),
    "distilbert": (
        DISTILBERT,
        {"vocab_size": 9, "max_position_embeddings": 8, "dim": 4, "hidden_dim": 8, "n_heads": 2, "n_layers": 1},
    ),
}


@pytest.mark.parametrize(
    ("family", "change", "said"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "asks for 'relative_key'"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("bert", {"add_cross_attention": True}, "add_cross_attention"),
        ("bert", {"hidden_act": "mish"}, "activation 'mish'"),
        ("bert", {"classifier_dropout": 2.0}, "classifier_dropout"),
        ("bert", {"rotary": True}, "could change what BERT computes: rotary"),
        ("bert", {"type_vocab_size": 0}, "segments"),
        ("albert", {"num_memory_blocks": 1}, "num_memory_blocks"),
        ("roformer", {"rotary_value": True}, "rotary_value"),
        ("distilbert", {"sinusoidal_pos_embds": True}, "sinusoidal_pos_embds"),
    ],
)
def test_a_config_that_asks_for_something_else_is_refused(family, change, said):
    published, config = CONFIGS[family]
    published.sizes_of({"model_type": family, **config})
    with pytest.raises(QkvError, match=said):
        published.sizes_of({"model_type": family, **config, **change})
