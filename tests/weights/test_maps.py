"""The maps' tables against the models' own names; whether they mean the same is for tests/parity/ to say."""

import pytest
import torch

from qkv.errors import QkvError
from qkv.models.catalogue import build
from qkv.models.marian import SIZES as PUBLISHED_SIZES
from qkv.models.marian import MarianSizes
from qkv.models.transformer import TransformerSizes
from qkv.weights.maps import marian, torch_transformer
from qkv.weights.rules import to_ours, to_theirs
from qkv.weights.save import tensors_of

SIZES = MarianSizes(
    vocabulary=20,
    width=16,
    encoder_hidden=24,
    decoder_hidden=32,
    encoder_heads=2,
    decoder_heads=4,
    encoder_layers=2,
    decoder_layers=3,
    dropout=0.1,
)

# config.json of a published English–German model
PUBLISHED = {
    "_num_labels": 3,
    "activation_dropout": 0.0,
    "activation_function": "swish",
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "architectures": ["MarianMTModel"],
    "attention_dropout": 0.0,
    "bad_words_ids": [[58100]],
    "bos_token_id": 0,
    "classif_dropout": 0.0,
    "classifier_dropout": 0.0,
    "d_model": 512,
    "decoder_attention_heads": 8,
    "decoder_ffn_dim": 2048,
    "decoder_layerdrop": 0.0,
    "decoder_layers": 6,
    "decoder_start_token_id": 58100,
    "decoder_vocab_size": 58101,
    "dropout": 0.1,
    "encoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "encoder_layerdrop": 0.0,
    "encoder_layers": 6,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
    "id2label": {"0": "LABEL_0"},
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "label2id": {"LABEL_0": 0},
    "max_length": 512,
    "max_position_embeddings": 512,
    "model_type": "marian",
    "normalize_before": False,
    "normalize_embedding": False,
    "num_beams": 6,
    "num_hidden_layers": 6,
    "pad_token_id": 58100,
    "scale_embedding": True,
    "share_encoder_decoder_embeddings": True,
    "static_position_embeddings": True,
    "torch_dtype": "float16",
    "transformers_version": "4.22.0.dev0",
    "use_cache": True,
    "vocab_size": 58101,
}


def test_marian_there_and_back():
    ours = tensors_of(build("marian", SIZES))
    theirs = to_theirs(marian.RULES, ours)
    assert theirs["final_logits_bias"].shape == (1, 20)
    assert "model.decoder.layers.2.encoder_attn.out_proj.bias" in theirs
    again = to_ours(marian.RULES, theirs, ours)
    assert set(again) == set(ours)
    assert all(torch.equal(again[name], ours[name]) for name in ours)


def test_torch_transformer_there_and_back():
    sizes = TransformerSizes(
        vocabulary=9, width=16, hidden=32, heads=2, encoder_layers=2, decoder_layers=1, dropout=0.0
    )
    model = build("transformer-prenorm", sizes)
    ours = {name: tensor for name, tensor in tensors_of(model).items() if name.startswith(("encoder.", "decoder."))}
    theirs = to_theirs(torch_transformer.RULES, ours)
    peer = torch.nn.Transformer(16, 2, 2, 1, 32, batch_first=True)
    assert {name: tensor.shape for name, tensor in theirs.items()} == {
        name: tensor.shape for name, tensor in peer.state_dict().items()
    }
    again = to_ours(torch_transformer.RULES, theirs, ours)
    assert all(torch.equal(again[name], ours[name]) for name in ours)


def test_the_config_of_a_published_marian_gives_the_published_sizes():
    assert marian.MARIAN.sizes_of(PUBLISHED) == PUBLISHED_SIZES["base"]


def test_marian_sizes_there_and_back():
    assert marian.MARIAN.sizes_of(marian.CONFIG.write(SIZES)) == SIZES


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"activation_function": "relu"}, "asks for 'relu'"),
        ({"normalize_before": True}, "normalize_before False; the config.json asks for True"),
        ({"scale_embedding": False}, "scale_embedding"),
        ({"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings"),
        ({"attention_dropout": 0.1}, "attention_dropout"),
        ({"decoder_vocab_size": 9}, "vocab_size 58101 but decoder_vocab_size 9"),
        ({"num_hidden_layers": 12}, "encoder_layers 6 but num_hidden_layers 12"),
        ({"rotary": True}, "could change what Marian computes: rotary"),
        ({"model_type": "bart"}, "asks for 'bart'"),
    ],
)
def test_a_config_that_asks_for_something_else_is_refused(change, said):
    with pytest.raises(QkvError, match=said):
        marian.MARIAN.sizes_of(PUBLISHED | change)


@pytest.mark.parametrize(("key", "said"), [("d_model", "lacks d_model"), ("activation_function", "no Marian config")])
def test_a_config_without_what_matters_is_refused(key, said):
    with pytest.raises(QkvError, match=said):
        marian.MARIAN.sizes_of({name: value for name, value in PUBLISHED.items() if name != key})
