"""Whisper against the reference library's, with noise on every parameter: outputs, gradients, files, sizes."""

import json

import pytest
import torch
from transformers import GenerationConfig, GenerationMixin, WhisperConfig, WhisperForConditionalGeneration
from transformers.models.whisper.modeling_whisper import sinusoids

from qkv.errors import QkvError
from qkv.generate.beam import beam_search
from qkv.generate.decode import LengthLimit, greedy, sample
from qkv.models.catalogue import count_parameters
from qkv.models.whisper import SIZES
from qkv.parts.frames import timescales
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.maps.whisper import WHISPER
from qkv.weights.published import save_published
from qkv.weights.rules import to_theirs
from qkv.weights.save import tensors_of
from tests.parity.published import agree

VOCABULARY, START, END = 41, 38, 37
CONFIG = {
    "vocab_size": VOCABULARY,
    "num_mel_bins": 10,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 36,
    "max_source_positions": 30,
    "max_target_positions": 70,
    "pad_token_id": END,
    "bos_token_id": END,
    "eos_token_id": END,
    "decoder_start_token_id": START,
    "begin_suppress_tokens": None,
}
CASES = {
    "usual": CONFIG,
    "short windows": {**CONFIG, "max_source_positions": 7, "decoder_layers": 1},
    "relu, other heads": {**CONFIG, "activation_function": "relu", "encoder_attention_heads": 1, "num_mel_bins": 17},
}


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    torch.manual_seed(1)
    reference = WhisperForConditionalGeneration(WhisperConfig(**CASES[request.param])).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # positions too: files may hold others than the usual ones
            parameter += 0.1 * torch.randn_like(parameter)
        reference.model.decoder.embed_tokens.weight *= 2  # so that outputs are more than one token again and again
    folder = tmp_path_factory.mktemp("whisper")
    reference.save_pretrained(folder)
    return reference, load_model(folder)


def frames_for(reference, rows):
    config = reference.config
    return torch.randn(rows, config.num_mel_bins, 2 * config.max_source_positions)


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=1e-4)


def test_logits_agree_alone_batched_and_cached(pair):
    reference, ours = pair
    assert agree(ours, reference, [1, 2, 9, 70]) == []


@torch.no_grad()
def test_the_states_of_the_encoder_agree(pair):
    reference, ours = pair
    frames = frames_for(reference, 2)
    close(ours.encode(frames).states, reference.model.encoder(frames).last_hidden_state)


def test_gradients_agree(pair):
    reference, ours = pair
    for model in pair:
        model.zero_grad()
    frames, target = frames_for(reference, 2), torch.randint(0, END, (2, 7))  # theirs never learns from padding
    theirs = reference(input_features=frames, decoder_input_ids=target).logits
    weight = torch.randn_like(theirs)
    (theirs * weight).sum().backward()
    (ours(frames, None, target) * weight).sum().backward()
    values = {parameter: parameter.detach().clone() for parameter in ours.parameters()}
    with torch.no_grad():
        for parameter in values:
            parameter.copy_(parameter.grad)
        named = to_theirs(WHISPER.rules(ours.sizes, None), tensors_of(ours))
        named = {name: tensor.clone() for name, tensor in named.items()}
        for parameter, value in values.items():
            parameter.copy_(value)
    learned = {name: each for name, each in reference.named_parameters() if each.requires_grad}
    assert named.keys() - learned.keys() == {"model.encoder.embed_positions.weight"}
    for name, parameter in learned.items():
        torch.testing.assert_close(named[name], parameter.grad, atol=2e-4, rtol=1e-3)


@torch.no_grad()
def test_what_is_exported_the_reference_opens(pair, tmp_path):
    reference, ours = pair
    save_published(ours, tmp_path, PUBLISHED, {"pad_token_id": END, "decoder_start_token_id": START})
    opened, report = WhisperForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    frames, target = frames_for(reference, 2), torch.randint(0, VOCABULARY, (2, 7))
    found = opened.eval()(input_features=frames, decoder_input_ids=target).logits
    close(found, reference(input_features=frames, decoder_input_ids=target).logits)
    assert load_model(tmp_path).sizes == ours.sizes


@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_outputs_are_the_reference_s(pair, beams):
    """Of the plain search, without what is done for speech: the reference's own `generate` of its other models."""
    reference, ours = pair
    frames = frames_for(reference, 3)
    options = GenerationConfig(
        num_beams=beams, do_sample=False, max_new_tokens=12, length_penalty=0.0, early_stopping=False,
        decoder_start_token_id=START, eos_token_id=END, pad_token_id=END,
    )  # fmt: skip
    reference.generation_config = options
    expected = GenerationMixin.generate(reference, frames, options)
    limit = LengthLimit(factor=0.0, constant=12)
    found = beam_search(ours, frames, start=START, end=END, beams=beams, length_penalty=0.0, limit=limit)
    for row, best in zip(expected.tolist(), found, strict=True):
        written = row[1:]
        assert best[0].ids == (written[: written.index(END)] if END in written else written)


def test_decoding_is_the_same_for_frames_as_for_ids(pair):
    _, ours = pair
    frames = torch.randn(2, ours.sizes.mels, 2 * ours.sizes.source_positions)
    limit = LengthLimit(factor=0.0, constant=5)
    alone = greedy(ours, frames[:1], start=START, end=END, limit=limit)
    assert greedy(ours, frames, start=START, end=END, limit=limit)[0].ids == alone[0].ids
    drawn = sample(ours, frames, start=START, end=END, seed=1, samples=2, limit=limit)
    again = sample(ours, frames[1:], start=START, end=END, seed=1, samples=2, limit=limit)
    assert [each.ids for each in again[0]] == [each.ids for each in drawn[1]]
    with pytest.raises(QkvError, match="rows features frames"):
        greedy(ours, torch.zeros(2, 5, dtype=torch.long), start=START, end=END)


def test_what_no_window_holds_is_refused(pair):
    _, ours = pair
    mels, frames = ours.sizes.mels, 2 * ours.sizes.source_positions
    with pytest.raises(QkvError, match="features, not"):
        ours.encode(torch.randn(1, mels + 1, frames))
    with pytest.raises(QkvError, match="positions and the input needs"):
        ours.encode(torch.randn(1, mels, frames + 2))
    with pytest.raises(QkvError, match="heard like any other"):
        ours.encode(torch.randn(2, mels, frames), torch.tensor([frames, frames - 4]))


def test_positions_are_those_of_the_published_files():
    torch.testing.assert_close(timescales(1500, 384), sinusoids(1500, 384), atol=2e-4, rtol=0)  # theirs in float32


@pytest.mark.parametrize("size", SIZES)
def test_published_sizes_have_the_reference_s_parameters(size):
    sizes = SIZES[size]
    with torch.device("meta"):
        reference = WhisperForConditionalGeneration(WhisperConfig(**WHISPER.config.write(sizes)))
    positions = sizes.source_positions * sizes.width  # which the reference counts, though it never learns them
    assert count_parameters("whisper", sizes) == reference.num_parameters() - positions


def test_a_configuration_that_asks_for_more_is_refused(pair, tmp_path):
    _, ours = pair
    save_published(ours, tmp_path, PUBLISHED)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "scale_embedding": True}))
    with pytest.raises(QkvError, match="scale_embedding"):
        load_model(tmp_path)


PUBLISHED_KEYS = {  # of the tiny model's config.json
    "_name_or_path": "whisper-tiny", "activation_dropout": 0.0, "activation_function": "gelu",
    "apply_spec_augment": False, "architectures": ["WhisperForConditionalGeneration"], "attention_dropout": 0.0,
    "begin_suppress_tokens": [220, 50257], "bos_token_id": 50257, "classifier_proj_size": 256, "d_model": 384,
    "decoder_attention_heads": 6, "decoder_ffn_dim": 1536, "decoder_layerdrop": 0.0, "decoder_layers": 4,
    "decoder_start_token_id": 50258, "dropout": 0.0, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536,
    "encoder_layerdrop": 0.0, "encoder_layers": 4, "eos_token_id": 50257,
    "forced_decoder_ids": [[1, 50259], [2, 50359], [3, 50363]], "init_std": 0.02, "is_encoder_decoder": True,
    "mask_feature_length": 10, "mask_feature_min_masks": 0, "mask_feature_prob": 0.0, "mask_time_length": 10,
    "mask_time_min_masks": 2, "mask_time_prob": 0.05, "max_length": 448, "max_source_positions": 1500,
    "max_target_positions": 448, "median_filter_width": 7, "model_type": "whisper", "num_hidden_layers": 4,
    "num_mel_bins": 80, "pad_token_id": 50257, "scale_embedding": False, "suppress_tokens": [1, 2, 7],
    "torch_dtype": "float32", "transformers_version": "4.27.0.dev0", "use_cache": True,
    "use_weighted_layer_sum": False, "vocab_size": 51865,
}  # fmt: skip


def test_a_configuration_as_published_is_read():
    assert WHISPER.sizes_of(PUBLISHED_KEYS) == SIZES["tiny"]
    for wish in ({"apply_spec_augment": True}, {"num_hidden_layers": 5}, {"something": 1}):
        with pytest.raises(QkvError, match=next(iter(wish))):
            WHISPER.sizes_of({**PUBLISHED_KEYS, **wish})
