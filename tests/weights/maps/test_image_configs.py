"""Configurations of image models as they are published, key by key: read without complaint, at the known size."""

from typing import Any

import pytest

from qkv.errors import QkvError
from qkv.models import clip, deit, vit
from qkv.models.catalogue import count_parameters
from qkv.models.head_choice import HeadChoice
from qkv.weights.maps.catalogue import PUBLISHED

ENCODER = {
    "attention_probs_dropout_prob": 0.0, "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "hidden_size": 768,
    "image_size": 224, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
    "num_attention_heads": 12, "num_channels": 3, "num_hidden_layers": 12, "patch_size": 16, "qkv_bias": True,
    "transformers_version": "4.13.0.dev0", "torch_dtype": "float32", "encoder_stride": 16,
}  # fmt: skip
# What the first versions of the library wrote of everything, and still stands in the towers of CLIP.
EVERYTHING = {
    "_name_or_path": "", "add_cross_attention": False, "architectures": None, "bad_words_ids": None,
    "chunk_size_feed_forward": 0, "cross_attention_hidden_size": None, "decoder_start_token_id": None,
    "diversity_penalty": 0.0, "do_sample": False, "early_stopping": False, "encoder_no_repeat_ngram_size": 0,
    "finetuning_task": None, "forced_bos_token_id": None, "forced_eos_token_id": None,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "is_decoder": False, "is_encoder_decoder": False,
    "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "length_penalty": 1.0, "max_length": 20, "min_length": 0,
    "no_repeat_ngram_size": 0, "num_beam_groups": 1, "num_beams": 1, "num_return_sequences": 1,
    "output_attentions": False, "output_hidden_states": False, "output_scores": False, "prefix": None,
    "problem_type": None, "pruned_heads": {}, "remove_invalid_values": False, "repetition_penalty": 1.0,
    "return_dict": True, "return_dict_in_generate": False, "sep_token_id": None, "task_specific_params": None,
    "temperature": 1.0, "tie_encoder_decoder": False, "tie_word_embeddings": True, "tokenizer_class": None, "top_k": 50,
    "top_p": 1.0, "torch_dtype": None, "torchscript": False, "transformers_version": "4.16.0.dev0",
    "use_bfloat16": False, "dropout": 0.0, "attention_dropout": 0.0, "initializer_factor": 1.0,
    "initializer_range": 0.02, "layer_norm_eps": 1e-05, "hidden_act": "quick_gelu",
}  # fmt: skip
TEXT = {
    "model_type": "clip_text_model", "vocab_size": 49408, "max_position_embeddings": 77, "bos_token_id": 0,
    "eos_token_id": 2, "pad_token_id": 1, "num_hidden_layers": 12,
}  # fmt: skip
TOWERS = {
    "text_config": {
        **EVERYTHING, **TEXT, "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8,
        "projection_dim": 512,
    },
    "vision_config": {
        **EVERYTHING, "model_type": "clip_vision_model", "hidden_size": 768, "intermediate_size": 3072,
        "num_attention_heads": 12, "num_hidden_layers": 12, "image_size": 224, "patch_size": 32, "projection_dim": 512,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    },
}  # fmt: skip
CLIP = {
    "_name_or_path": "openai/clip-vit-base-patch32", "architectures": ["CLIPModel"], "initializer_factor": 1.0,
    "logit_scale_init_value": 2.6592, "model_type": "clip", "projection_dim": 512, "torch_dtype": "float32",
    "transformers_version": None, **TOWERS, "text_config_dict": None, "vision_config_dict": None,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "ViT B/16": {**ENCODER, "model_type": "vit", "architectures": ["ViTForImageClassification"]},
    "DeiT B": {**ENCODER, "model_type": "deit", "architectures": ["DeiTForImageClassificationWithTeacher"]},
    "CLIP B/32": CLIP,
    "the text model of Stable Diffusion": {
        **TEXT, "_name_or_path": "openai/clip-vit-large-patch14", "architectures": ["CLIPTextModel"],
        "attention_dropout": 0.0, "bos_token_id": 0, "dropout": 0.0, "hidden_act": "quick_gelu", "hidden_size": 768,
        "initializer_factor": 1.0, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05,
        "num_attention_heads": 12, "projection_dim": 768, "torch_dtype": "float32",
        "transformers_version": "4.22.0.dev0",
    },
}  # fmt: skip
COUNTS = {
    "ViT B/16": 85_798_656,
    "DeiT B": 85_800_192,
    "CLIP B/32": 151_277_313,
    "the text model of Stable Diffusion": 123_060_480,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_read_as_the_model_that_it_is(name: str) -> None:
    published = PUBLISHED[CONFIGS[name]["model_type"]]
    sizes = published.sizes_of(CONFIGS[name])
    head = None if published.family == "clip" else HeadChoice("states")
    assert count_parameters(published.family, sizes, head) == COUNTS[name]


def test_the_sizes_are_those_that_are_named() -> None:
    assert PUBLISHED["vit"].sizes_of(CONFIGS["ViT B/16"]) == vit.SIZES["base-16"]
    read = PUBLISHED["deit"].sizes_of(CONFIGS["DeiT B"])
    assert (read.image, read.patch, read.width) == (224, 16, deit.SIZES["base"].width)
    assert (
        PUBLISHED["clip"].sizes_of({**CLIP, "text_config": {**TOWERS["text_config"], "eos_token_id": 49407}})
        == (clip.SIZES["base-32"])
    )
    assert PUBLISHED["clip"].sizes_of(CLIP).end is None  # the largest token, by which the first files tell the end


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_written_is_read_again(name: str) -> None:
    published = PUBLISHED[CONFIGS[name]["model_type"]]
    sizes = published.sizes_of(CONFIGS[name])
    assert published.sizes_of(published.config.write(sizes)) == sizes


@pytest.mark.parametrize("name", CONFIGS)
def test_a_key_that_no_one_knows_is_refused(name: str) -> None:
    with pytest.raises(QkvError, match="computes: logit_cap"):
        PUBLISHED[CONFIGS[name]["model_type"]].sizes_of({**CONFIGS[name], "logit_cap": 30.0})


def test_towers_are_held_to_their_keys_too() -> None:
    strange = {**CLIP, "vision_config": {**TOWERS["vision_config"], "window_size": 7}}
    with pytest.raises(QkvError, match="CLIP's image model computes: window_size"):
        PUBLISHED["clip"].sizes_of(strange)


def test_a_tower_that_is_told_twice_goes_by_the_second() -> None:
    told = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24}
    sizes = PUBLISHED["clip"].sizes_of({**CLIP, "text_config_dict": {**told, "hidden_act": "gelu"}})
    assert (sizes.text_width, sizes.text_layers, sizes.text_activation) == (1024, 24, "gelu")
    assert sizes.end == 49407


@pytest.mark.parametrize("key", ["pooler_act", "pooler_output_size"])
def test_another_pooler_is_refused(key: str) -> None:
    with pytest.raises(QkvError, match=key):
        PUBLISHED["vit"].sizes_of({**CONFIGS["ViT B/16"], key: {"pooler_act": "relu", "pooler_output_size": 8}[key]})
