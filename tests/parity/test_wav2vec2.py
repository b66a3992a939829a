"""wav2vec 2.0 against the reference library's, with noise on every parameter: outputs, gradients, files both ways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import Wav2Vec2Config

from qkv.errors import QkvError
from qkv.files import read_json, read_tensors, write_json, write_tensors
from qkv.models.catalogue import FAMILIES, count_parameters
from qkv.models.head_choice import HeadChoice
from qkv.parts.quantise import perplexity
from qkv.weights.certify import open_reference
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from tests.parity.pictures import check_gradients_by_file
from tests.parity.published import Case, Pair, close, reference_pair

SMALL = {
    "vocab_size": 11,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "conv_dim": [16, 12, 20],
    "conv_kernel": [10, 3, 2],
    "conv_stride": [5, 2, 2],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "codevector_dim": 16,
    "proj_codevector_dim": 10,
    "num_codevectors_per_group": 6,
    "classifier_proj_size": 14,
}
STABLE = {**SMALL, "feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
HEADS: list[tuple[str, dict[str, Any]]] = [
    ("Wav2Vec2Model", {}),
    ("Wav2Vec2ForCTC", {}),
    ("Wav2Vec2ForSequenceClassification", {"num_labels": 3}),
    ("Wav2Vec2ForSequenceClassification", {"num_labels": 3, "use_weighted_layer_sum": True}),
    ("Wav2Vec2ForAudioFrameClassification", {"num_labels": 4}),
    ("Wav2Vec2ForAudioFrameClassification", {"num_labels": 4, "use_weighted_layer_sum": True}),
    ("Wav2Vec2ForPreTraining", {}),
]
CASES = {
    f"{name} {architecture}{' of all layers' if len(more) > 1 else ''}": Case(
        architecture, Wav2Vec2Config(**sizes, **more)
    )
    for name, sizes in (("base", SMALL), ("stable", STABLE))
    for architecture, more in HEADS
} | {
    "nothing hidden, odd kernel, relu": Case(
        "Wav2Vec2Model",
        Wav2Vec2Config(
            **{**SMALL, "num_conv_pos_embeddings": 7},
            mask_time_prob=0.0,
            feat_extract_activation="relu",
            hidden_act="relu",
            layer_norm_eps=1e-3,
        ),
    ),
    "one layer, one head, frame norms without bias, post-norm": Case(
        "Wav2Vec2ForCTC",
        Wav2Vec2Config(
            **{**SMALL, "num_hidden_layers": 1, "num_attention_heads": 1, "feat_extract_norm": "layer"},
            feat_extract_activation="gelu_new",
            mask_time_min_masks=0,
            mask_feature_prob=0.1,
        ),
    ),
}  # fmt: skip
SAMPLES = [30, 31, 49, 50, 400, 1003]  # one frame and on: odd numbers leave something over at the end


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return reference_pair(CASES[request.param], tmp_path_factory.mktemp("reference"))


def answers(output: Any) -> tuple[Tensor, ...]:
    """Ours or the reference's, as the tensors that both have."""
    if isinstance(output, Tensor):
        return (output,)
    if hasattr(output, "predicted"):
        return output.predicted, output.wanted
    if hasattr(output, "projected_states"):
        return output.projected_states, output.projected_quantized_states
    return (output.logits if hasattr(output, "logits") else output.last_hidden_state,)


def agree(found: Any, expected: Any) -> None:
    for one, other in zip(answers(found), answers(expected), strict=True):
        close(one, other)


@torch.no_grad()
def test_outputs_agree_at_all_lengths(pair: Pair) -> None:
    for samples in SAMPLES:
        for rows in (1, 3):
            waves = torch.randn(rows, samples)
            agree(pair.ours(waves), pair.reference(waves))


@torch.no_grad()
def test_a_padded_row_is_answered_as_the_reference_answers_it_alone(pair: Pair) -> None:
    """And, where no norm runs over time, as it answers the whole batch with a mask."""
    lengths = torch.tensor([1003, 400, 30, 517])
    waves = torch.randn(4, 1003)
    found = answers(pair.ours(waves, lengths=lengths))
    counts = pair.ours.frames.frames_of(lengths).tolist()
    for row, (length, count) in enumerate(zip(lengths.tolist(), counts, strict=True)):
        alone = answers(pair.reference(waves[row : row + 1, :length]))
        for one, other in zip(found, alone, strict=True):
            close(one[row, :count] if one.ndim == 3 else one[row], other[0])
    if pair.case.config.feat_extract_norm == "layer":
        mask = (torch.arange(1003) < lengths[:, None]).long()
        for one, other in zip(found, answers(pair.reference(waves, attention_mask=mask)), strict=True):
            for row, count in enumerate(counts):
                close(
                    one[row, :count] if one.ndim == 3 else one[row],
                    other[row, :count] if other.ndim == 3 else other[row],
                )


@torch.no_grad()
def test_hidden_frames_are_hidden_alike(pair: Pair) -> None:
    if pair.ours.embed.hidden is None or not hasattr(pair.reference, "quantizer"):
        return
    waves = torch.randn(2, 400)
    hidden = torch.rand(2, pair.ours.frames.count(400)) < 0.3
    found, expected = pair.ours(waves, hidden_frames=hidden), pair.reference(waves, mask_time_indices=hidden)
    agree(found, expected)
    close(perplexity(found.shares, hidden), expected.codevector_perplexity)


def test_gradients_agree(pair: Pair, tmp_path: Path) -> None:
    waves = torch.randn(2, 517)
    check_gradients_by_file(pair, tmp_path, lambda: answers(pair.ours(waves)), lambda: answers(pair.reference(waves)))


@torch.no_grad()
def test_what_is_exported_the_reference_opens(pair: Pair, tmp_path: Path) -> None:
    save_published(pair.ours, tmp_path, PUBLISHED)
    opened, keys = open_reference(transformers, pair.case.architecture, tmp_path)
    assert keys == {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}
    waves = torch.randn(2, 400)
    for one, other in zip(answers(opened(waves)), answers(pair.reference(waves)), strict=True):
        close(one, other)


def test_bfloat16_answers_alike(pair: Pair) -> None:
    waves = torch.randn(2, 400)
    with torch.no_grad():
        exact = answers(pair.reference(waves))[0]
        half = answers(pair.reference.to(torch.bfloat16)(waves.bfloat16()))[0].float()
        ours = answers(pair.ours.to(torch.bfloat16)(waves))[0].float()
    pair.reference.float(), pair.ours.float()
    assert (ours - exact).square().mean() <= 4 * (half - exact).square().mean() + 1e-4


def test_the_older_names_of_the_positions_are_read(tmp_path: Path) -> None:
    pair = reference_pair(Case("Wav2Vec2ForCTC", Wav2Vec2Config(**SMALL)), tmp_path)
    tensors = read_tensors(tmp_path / "model.safetensors")
    older = {
        name.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): tensor
        for name, tensor in tensors.items()
    }
    assert older.keys() != tensors.keys()
    write_tensors(tmp_path / "model.safetensors", older)
    waves = torch.randn(1, 400)
    with torch.no_grad():
        close(load_model(tmp_path)(waves), pair.reference(waves).logits)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"add_adapter": True}, "add_adapter"),
        ({"adapter_attn_dim": 16}, "adapter_attn_dim"),
        ({"conv_dim": [16, 12]}, "same convolutions"),
        ({"conv_dim": 5}, "whole numbers"),
        ({"feat_extract_norm": "batch"}, "frame_norm"),
        ({"output_hidden_size": 7}, "output_hidden_size"),
        ({"something_new": 1}, "something_new"),
    ],
)
def test_what_is_not_known_is_refused(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    reference_pair(Case("Wav2Vec2ForCTC", Wav2Vec2Config(**SMALL)), tmp_path)
    write_json(tmp_path / "config.json", {**read_json(tmp_path / "config.json"), **change})
    with pytest.raises(QkvError, match=match):
        load_model(tmp_path)


def test_a_pretrained_model_gets_a_head_for_letters(tmp_path: Path) -> None:
    pair = reference_pair(Case("Wav2Vec2ForPreTraining", Wav2Vec2Config(**SMALL)), tmp_path)
    model = load_model(tmp_path, head=HeadChoice("ctc"))
    waves = torch.randn(1, 400)
    with torch.no_grad():
        expected = pair.reference.wav2vec2(waves).last_hidden_state
        close(model.hear(waves).states, expected)
        assert model(waves).shape == (1, expected.shape[1], 11)


def test_a_published_configuration_is_understood() -> None:
    """The keys of wav2vec2-base-960h, as its folder has them."""
    config = {
        "_name_or_path": "facebook/wav2vec2-base-960h", "activation_dropout": 0.1, "apply_spec_augment": True,
        "architectures": ["Wav2Vec2ForCTC"], "attention_dropout": 0.1, "bos_token_id": 1, "codevector_dim": 256,
        "contrastive_logits_temperature": 0.1, "conv_bias": False, "conv_dim": [512] * 7,
        "conv_kernel": [10, 3, 3, 3, 3, 2, 2], "conv_stride": [5, 2, 2, 2, 2, 2, 2], "ctc_loss_reduction": "sum",
        "ctc_zero_infinity": False, "diversity_loss_weight": 0.1, "do_stable_layer_norm": False, "eos_token_id": 2,
        "feat_extract_activation": "gelu", "feat_extract_dropout": 0.0, "feat_extract_norm": "group",
        "feat_proj_dropout": 0.1, "feat_quantizer_dropout": 0.0, "final_dropout": 0.1, "gradient_checkpointing": False,
        "hidden_act": "gelu", "hidden_dropout": 0.1, "hidden_dropout_prob": 0.1, "hidden_size": 768,
        "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05, "layerdrop": 0.1,
        "mask_feature_length": 10, "mask_feature_prob": 0.0, "mask_time_length": 10, "mask_time_prob": 0.05,
        "model_type": "wav2vec2", "num_attention_heads": 12, "num_codevector_groups": 2,
        "num_codevectors_per_group": 320, "num_conv_pos_embedding_groups": 16, "num_conv_pos_embeddings": 128,
        "num_feat_extract_layers": 7, "num_hidden_layers": 12, "num_negatives": 100, "pad_token_id": 0,
        "proj_codevector_dim": 256, "transformers_version": "4.7.0.dev0", "vocab_size": 32,
    }  # fmt: skip
    sizes = PUBLISHED["wav2vec2"].sizes_of(config)
    assert sizes == replace(FAMILIES["wav2vec2"].published["base"], frame_dropout=0.1)


@pytest.mark.parametrize("size", ["base", "large", "large-prenorm"])
def test_as_many_parameters_as_published(size: str) -> None:
    large = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24}
    large |= {"codevector_dim": 768, "proj_codevector_dim": 768}
    stable = {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True}
    config = Wav2Vec2Config(**{"base": {}, "large": large, "large-prenorm": large | stable}[size])
    sizes = FAMILIES["wav2vec2"].published[size]
    for kind, architecture in (("ctc", "Wav2Vec2ForCTC"), ("pretraining", "Wav2Vec2ForPreTraining")):
        with torch.device("meta"):
            reference = getattr(transformers, architecture)(config)
        expected = sum(parameter.numel() for parameter in reference.parameters())
        assert count_parameters("wav2vec2", sizes, HeadChoice(kind)) == expected
    millions = {"base": 95, "large": 317, "large-prenorm": 317}[size]  # [baevski2020 §4.2]
    assert round(expected / 1e6) == pytest.approx(millions, abs=1)
