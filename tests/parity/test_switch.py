"""Switch Transformer against the reference library's, with noise on every parameter: outputs, gradients, files."""

import json

import pytest
import torch
from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

from qkv.errors import QkvError
from qkv.generate.beam import beam_search
from qkv.generate.decode import LengthLimit
from qkv.models.catalogue import build
from qkv.models.switch import SIZES
from qkv.parts.attention.visibility import NotPadding, Tokens
from qkv.parts.context import Ledger
from qkv.parts.experts import BALANCE, DROPPED, ROUTER_Z
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import family_of, published_config, save_published
from qkv.weights.rules import to_theirs
from qkv.weights.save import tensors_of
from tests.models.small import shrunk
from tests.parity.published import agree

VOCABULARY, LONGEST = 41, 160  # beyond the farthest distance that has a bucket of its own
CONFIG = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "d_kv": 7,  # heads that do not divide the width
    "d_ff": 40,
    "num_heads": 3,
    "num_layers": 4,
    "num_decoder_layers": 4,
    "num_sparse_encoder_layers": 2,
    "num_sparse_decoder_layers": 2,
    "num_experts": 5,
    "expert_capacity": LONGEST,
    "pad_token_id": 3,
    "decoder_start_token_id": 3,
    "eos_token_id": 1,
}
CASES = {
    "every other block": CONFIG,
    "every block, a biased router": {
        **CONFIG,
        "num_layers": 2,
        "num_decoder_layers": 3,
        "num_sparse_decoder_layers": 3,
        "router_bias": True,
    },
    "experts soon full": {**CONFIG, "expert_capacity": 2},
    "every third block, narrow experts, gelu": {
        **CONFIG,
        "num_decoder_layers": 6,
        "d_ff": 13,
        "dense_act_fn": "gelu_new",
        "num_experts": 12,
        "expert_capacity": 3,
        "layer_norm_epsilon": 1e-3,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 20,
    },
}


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    torch.manual_seed(1)
    reference = SwitchTransformersForConditionalGeneration(SwitchTransformersConfig(**CASES[request.param])).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    folder = tmp_path_factory.mktemp("switch")
    reference.save_pretrained(folder)
    return reference, load_model(folder)


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("length", [1, 2, 9, 64, LONGEST])
def test_logits_agree_at_all_paddings_and_precisions(pair, length):
    reference, ours = pair
    assert agree(ours, reference, [length]) == []


@pytest.mark.parametrize("length", [1, 2, 9, LONGEST])
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
    if ours.sizes.capacity < length:  # in the reference padding before a text takes the places of its tokens
        return
    left = real.flip(1).long()
    expected = reference(input_ids=source, attention_mask=left, decoder_input_ids=target).logits
    memory = ours.encode_tokens(source, Tokens(length, documents=left), NotPadding())
    close(ours.decode(target, memory), expected)


@torch.no_grad()
def test_experts_are_full_where_they_should_be(pair):
    """Or the rest of this file would not notice how tokens are counted."""
    _, ours = pair
    ledger = Ledger(ours, [DROPPED])
    ours.decode(
        torch.randint(4, VOCABULARY, (3, 40)),
        ours.encode(torch.randint(4, VOCABULARY, (3, 40)), None, ledger),
        ledger=ledger,
    )
    shares = torch.stack([value for (value,) in ledger.entries.values()])
    assert ((shares > 0.05) == (ours.sizes.capacity < 40)).all()


@torch.no_grad()
def test_a_cache_changes_nothing(pair):
    """Also where experts were filled by tokens of earlier steps, which the reference forgets."""
    _, ours = pair
    source, target = torch.randint(4, VOCABULARY, (2, 9)), torch.randint(4, VOCABULARY, (2, 40))
    memory, cache = ours.encode(source), ours.new_cache(40)
    steps = [ours.decode(part, memory, cache) for part in target.split([3, *(1,) * 30, 7], 1)]
    close(torch.cat(steps, 1), ours.decode(target, memory))


def test_gradients_agree(pair):
    reference, ours = pair
    for model in pair:
        model.zero_grad()
    source, target = torch.randint(4, VOCABULARY, (2, 19)), torch.randint(4, VOCABULARY, (2, 17))
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
        theirs = expected[name].grad
        theirs = torch.zeros_like(gradient) if theirs is None else theirs  # an expert that no token chose
        torch.testing.assert_close(gradient, theirs, atol=2e-4, rtol=1e-3, msg=name)


@torch.no_grad()
def test_what_is_exported_the_reference_opens(pair, tmp_path):
    reference, ours = pair
    save_published(ours, tmp_path, PUBLISHED, {"pad_token_id": 3, "decoder_start_token_id": 3})
    opened, report = SwitchTransformersForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    expected = reference.state_dict()
    for name, tensor in opened.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    source, target = torch.randint(4, VOCABULARY, (2, 9)), torch.randint(4, VOCABULARY, (2, 7))
    found = opened.eval()(input_ids=source, decoder_input_ids=target).logits
    wanted = reference(input_ids=source, decoder_input_ids=target).logits
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)  # sums depend on where weights lie in memory


@torch.no_grad()
def test_outputs_are_the_reference_s(pair):
    """Greedily, which writes as many tokens of one kind as fill an expert; read anew for each token, not by a cache."""
    reference, ours = pair
    source = torch.randint(4, VOCABULARY, (3, 9))
    expected = reference.generate(source, do_sample=False, max_new_tokens=12, use_cache=False)
    limit = LengthLimit(factor=0.0, constant=12)
    found = beam_search(ours, source, start=3, end=1, beams=1, length_penalty=0.0, limit=limit)
    for row, best in zip(expected.tolist(), found, strict=True):
        written = row[1:]
        assert best[0].ids == (written[: written.index(1)] if 1 in written else written)


@torch.no_grad()
def test_both_losses_are_the_reference_s(tmp_path):
    """Which takes all layers as one, and row by row: here one layer with experts reads one row."""
    torch.manual_seed(2)
    config = {**CONFIG, "num_layers": 2, "num_decoder_layers": 2}
    config |= {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    reference = SwitchTransformersForConditionalGeneration(SwitchTransformersConfig(**config)).eval()
    reference.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    source, target = torch.randint(4, VOCABULARY, (1, 19)), torch.randint(4, VOCABULARY, (1, 17))
    theirs = reference(input_ids=source, decoder_input_ids=target, output_router_logits=True)
    ledger = Ledger(ours, [BALANCE, ROUTER_Z])
    ours.decode(target, ours.encode(source, None, ledger), ledger=ledger)
    for stack in ("encoder", "decoder"):
        for kind, name in ((BALANCE, "aux_loss"), (ROUTER_Z, "z_loss")):
            (found,) = ledger.entries[f"{stack}.blocks.1.feed_forward.mixer/{kind}"]
            torch.testing.assert_close(found, getattr(theirs, f"{stack}_{name}"), atol=1e-4, rtol=1e-4)


def test_three_tables_of_tokens_are_not_taken_for_one(tmp_path):
    """Which the reference has where logits are not tied."""
    SwitchTransformersForConditionalGeneration(
        SwitchTransformersConfig(**CONFIG, tie_word_embeddings=False)
    ).save_pretrained(tmp_path)
    with pytest.raises(QkvError, match=r"embed_tokens.weight differs from shared.weight"):
        load_model(tmp_path)


def test_configurations_of_older_versions_are_read():
    older = {
        "model_type": "switch_transformers", "d_ff": 3072, "d_kv": 64, "d_model": 768, "decoder_sparse_step": 2,
        "decoder_start_token_id": 0, "dense_act_fn": "relu", "dropout_rate": 0.1, "encoder_sparse_step": 2,
        "expert_capacity": 64, "feed_forward_proj": "relu", "is_encoder_decoder": True, "is_gated_act": False,
        "layer_norm_epsilon": 1e-6, "num_decoder_layers": 12, "num_experts": 8, "num_heads": 12, "num_layers": 12,
        "num_sparse_decoder_layers": 6, "num_sparse_encoder_layers": 6, "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32, "router_aux_loss_coef": 0.001, "router_bias": False,
        "router_dtype": "float32", "router_ignore_padding_tokens": False, "router_jitter_noise": 0.01,
        "router_type": "tokens_masked", "router_z_loss_coef": 0.001, "vocab_size": 32128,
    }  # fmt: skip
    assert PUBLISHED["switch_transformers"].sizes_of(older) == SIZES["base-8"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"router_dtype": "bfloat16"}, "router_dtype 'float32'"),
        ({"dense_act_fn": "silu"}, "Switch here has relu and gelu_new"),
        ({"is_gated_act": True}, "is_gated_act"),
        ({"num_sparse_encoder_layers": 0}, "of 4 layers, 1 or more have experts"),
        ({"encoder_sparse_step": 3}, "encoder_sparse_step 3, but num_sparse_encoder_layers 2 of 4"),
        ({"num_selected_experts": 2}, "num_selected_experts 1"),
        ({"expert_depth": 2}, "could change what Switch computes: expert_depth"),
    ],
)
def test_what_is_not_read_is_refused(changes, message):
    config = json.loads(SwitchTransformersConfig(**CONFIG).to_json_string())
    with pytest.raises(QkvError, match=message):
        PUBLISHED["switch_transformers"].sizes_of({**config, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"capacity": None, "capacity_factor": 1.25},
        {"feed_forward": "gated-gelu"},
        {"expert_dropout": 0.4},
        {"tied": False, "scaled": False},
        {"encoder_layers": 3},  # of which no number of blocks with experts makes every other one
    ],
)
def test_what_the_reference_has_not_is_not_exported(changes):
    model = build("switch", shrunk(SIZES["base-8"], **changes))
    with pytest.raises(QkvError, match="None of the published forms of the family switch"):
        published_config(model, PUBLISHED)
