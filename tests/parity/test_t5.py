"""T5 1.0 and 1.1 against the reference library's, with noise on every parameter: outputs, gradients, files."""

import json

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from qkv.generate.beam import beam_search
from qkv.generate.decode import LengthLimit
from qkv.parts.attention.visibility import NotPadding, Tokens
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import family_of, save_published
from qkv.weights.rules import to_theirs
from qkv.weights.save import tensors_of
from tests.parity.published import agree

VOCABULARY, LONGEST = 41, 160  # beyond the farthest distance that has a bucket of its own
CONFIG = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "d_kv": 7,  # heads that do not divide the width
    "d_ff": 40,
    "num_heads": 3,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "pad_token_id": 3,
    "decoder_start_token_id": 3,
    "eos_token_id": 1,
}
CASES = {
    "1.0": CONFIG,
    "1.1": {**CONFIG, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "gated silu, tied, few buckets": {
        **CONFIG,
        "feed_forward_proj": "gated-silu",
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 20,
        "layer_norm_epsilon": 1e-3,
    },
    "one layer": {**CONFIG, "num_layers": 1, "num_decoder_layers": 1},
}


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    torch.manual_seed(1)
    reference = T5ForConditionalGeneration(T5Config(**CASES[request.param])).eval()
    if not CASES[request.param].get("tie_word_embeddings", True):  # the reference notes it, and ties all the same
        reference.lm_head.weight = torch.nn.Parameter(torch.randn_like(reference.lm_head.weight))
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    folder = tmp_path_factory.mktemp("t5")
    reference.save_pretrained(folder)
    return reference, load_model(folder)


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("length", [1, 2, 9, 64, LONGEST])
def test_logits_agree_at_all_paddings_and_precisions(pair, length):
    reference, ours = pair
    assert agree(ours, reference, [length]) == []


def test_under_autocast_it_loses_no_more_than_twice_what_the_reference_loses(pair):
    """Logits, and the gradient of the bias, which is added up over all pairs of tokens."""
    reference, ours = pair
    source, target = torch.randint(4, VOCABULARY, (3, LONGEST)), torch.randint(4, VOCABULARY, (3, 40))
    bias = reference.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight

    def answers(model, weight):
        given = {"input_ids": source, "decoder_input_ids": target}
        logits = (model(**given).logits if model is reference else model(source, None, target)).float()
        return logits.detach(), *torch.autograd.grad(logits.square().mean(), weight)

    exact = answers(reference, bias)
    with torch.autocast("cpu", torch.bfloat16):
        theirs, mine = answers(reference, bias), answers(ours, ours.encoder.bias.weight)
    for right, their, my in zip(exact, theirs, mine, strict=True):
        assert (my - right).square().mean() <= 4 * (their - right).square().mean()


@pytest.mark.parametrize("length", [1, 2, 9, 64, LONGEST])
@torch.no_grad()
def test_targets_of_another_length_agree(pair, length):
    reference, ours = pair
    source, target = torch.randint(4, VOCABULARY, (3, length)), torch.randint(4, VOCABULARY, (3, max(1, length - 1)))
    expected = reference(input_ids=source, decoder_input_ids=target).logits
    close(ours(source, None, target), expected)
    close(ours(source[:1], None, target[:1]), expected[:1])
    lengths = torch.tensor([length, max(1, length - 1), max(1, length // 2)])
    real = torch.arange(length) < lengths[:, None]
    expected = reference(input_ids=source, attention_mask=real.long(), decoder_input_ids=target).logits
    close(ours(source, lengths, target), expected)
    left = real.flip(1).long()
    expected = reference(input_ids=source, attention_mask=left, decoder_input_ids=target).logits
    memory = ours.encode_tokens(source, Tokens(length, documents=left), NotPadding())
    close(ours.decode(target, memory), expected)


@torch.no_grad()
def test_a_cache_changes_nothing(pair):
    _, ours = pair
    source, target = torch.randint(4, VOCABULARY, (2, 9)), torch.randint(4, VOCABULARY, (2, 150))
    memory, cache = ours.encode(source), ours.new_cache(150)
    steps = [ours.decode(target[:, slot : slot + 1], memory, cache) for slot in range(150)]
    close(torch.cat(steps, 1), ours.decode(target, memory))


def test_gradients_agree(pair):
    reference, ours = pair
    for model in pair:
        model.zero_grad()
    source, target = torch.randint(4, VOCABULARY, (2, 9)), torch.randint(4, VOCABULARY, (2, 7))
    theirs = reference(input_ids=source, decoder_input_ids=target).logits
    weight = torch.randn_like(theirs)
    (theirs * weight).sum().backward()
    (ours(source, None, target) * weight).sum().backward()
    values = {parameter: parameter.detach().clone() for parameter in ours.parameters()}
    with torch.no_grad():
        for parameter in values:
            parameter.copy_(parameter.grad)
        named = to_theirs(family_of(ours, PUBLISHED).rules(ours.sizes, None), tensors_of(ours))
        named = {name: tensor.clone() for name, tensor in named.items()}
        for parameter, value in values.items():
            parameter.copy_(value)
    expected = dict(reference.named_parameters())
    assert expected.keys() == named.keys()
    for name, gradient in named.items():
        torch.testing.assert_close(gradient, expected[name].grad, atol=2e-4, rtol=1e-3)


@torch.no_grad()
def test_what_is_exported_the_reference_opens(pair, tmp_path):
    reference, ours = pair
    save_published(ours, tmp_path, PUBLISHED, {"pad_token_id": 3, "decoder_start_token_id": 3})
    opened, report = T5ForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    source, target = torch.randint(4, VOCABULARY, (2, 9)), torch.randint(4, VOCABULARY, (2, 7))
    found = opened.eval()(input_ids=source, decoder_input_ids=target).logits
    close(found, reference(input_ids=source, decoder_input_ids=target).logits)


@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_outputs_are_the_reference_s(pair, beams):
    reference, ours = pair
    source = torch.randint(4, VOCABULARY, (3, 9))
    options = {"num_beams": beams, "do_sample": False, "max_new_tokens": 12, "length_penalty": 0.0}
    # The reference's own cache fails where the decoder has more layers than the encoder.
    expected = reference.generate(source, **options, early_stopping=False, use_cache=False)
    limit = LengthLimit(factor=0.0, constant=12)
    found = beam_search(ours, source, start=3, end=1, beams=beams, length_penalty=0.0, limit=limit)
    for row, best in zip(expected.tolist(), found, strict=True):
        written = row[1:]
        if 1 in written:
            written = written[: written.index(1)]
        assert best[0].ids == written


@torch.no_grad()
def test_files_from_before_the_scale_was_written_are_read(pair, tmp_path):
    """Published files of version 1.1 say that their logits are not tied, and nothing of a scale."""
    _, ours = pair
    save_published(ours, tmp_path, PUBLISHED)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("scale_decoder_outputs") == config["tie_word_embeddings"] == ours.sizes.tied
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_model(tmp_path).sizes == ours.sizes
