"""Mixtral against the reference library's, with noise on every parameter: outputs, gradients, files both ways."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from qkv.errors import QkvError
from qkv.models.mixtral import SIZES
from qkv.parts.context import Ledger
from qkv.parts.experts import BALANCE
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import family_of
from qkv.weights.rules import to_theirs
from qkv.weights.save import tensors_of
from tests.parity.published import (
    Case,
    answers,
    check_both_ways,
    check_cached,
    check_outputs,
    other_heads_slow,
    random_ids,
    reference_pair,
)

CONFIG = {
    "vocab_size": 41, "max_position_embeddings": 80, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 3, "num_local_experts": 5, "pad_token_id": 5,
}  # fmt: skip


def mixtral(architecture: str = "MixtralForCausalLM", **changes) -> Case:
    config = MixtralConfig(**{**CONFIG, **changes})
    config._experts_implementation = "eager"  # its plain loop: the other ways refuse narrow experts
    return Case(architecture, config)


CASES = {
    "language": mixtral(),
    "one expert for each token": mixtral(num_experts_per_tok=1),
    "all experts": mixtral(num_local_experts=3, num_experts_per_tok=3),
    "a single expert": mixtral(num_local_experts=1, num_experts_per_tok=1),
    "many narrow experts": mixtral(num_local_experts=12, num_experts_per_tok=4, intermediate_size=12),
    "a window, tied, gelu": mixtral(sliding_window=5, tie_word_embeddings=True, hidden_act="gelu"),
    "another base, wide heads": mixtral(rope_parameters={"rope_type": "default", "rope_theta": 99.0}, head_dim=10),
    "states": mixtral("MixtralModel"),
    "classification": mixtral("MixtralForSequenceClassification", num_labels=3),
    "tokens": mixtral("MixtralForTokenClassification", num_labels=4),
    "spans": mixtral("MixtralForQuestionAnswering"),
}
READ = PUBLISHED["mixtral"].sizes_of


@pytest.fixture(scope="module", params=other_heads_slow(CASES))
def pair(request, tmp_path_factory):
    return reference_pair(CASES[request.param], tmp_path_factory.mktemp("reference"))


def test_outputs_agree_at_all_lengths_and_paddings(pair):
    check_outputs(pair, [1, 2, 9, 64, 80])


def test_a_cache_changes_nothing(pair):
    check_cached(pair)


def test_what_is_exported_the_reference_opens(pair, tmp_path):
    check_both_ways(pair, tmp_path)


def test_gradients_agree(pair, tmp_path):
    """By the names of files: in memory the reference has all experts in one tensor, two maps side by side."""
    ids = random_ids(pair, 2, 9)
    for model in (pair.ours, pair.reference):
        model.zero_grad()
    ours, theirs = answers(pair.ours(ids)), answers(pair.reference(ids))
    weights = [torch.randn_like(each) for each in theirs]
    for given in (ours, theirs):
        torch.stack([(each * weight).sum() for each, weight in zip(given, weights, strict=True)]).sum().backward()
    published = family_of(pair.ours, PUBLISHED)
    rules = published.rules(pair.ours.sizes, pair.ours.head_choice)
    with gradients_for_values(pair.ours):
        found = {name: tensor.clone() for name, tensor in to_theirs(rules, tensors_of(pair.ours)).items()}
    with gradients_for_values(pair.reference):
        pair.reference.save_pretrained(tmp_path)
    expected = load_file(tmp_path / "model.safetensors")
    expected = {name if name in found else published.base + name: tensor for name, tensor in expected.items()}
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-4, rtol=1e-3, msg=name)


class gradients_for_values:
    """Inside, a model's parameters hold their gradients, so that they go where parameters go."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.values = {parameter: parameter.detach().clone() for parameter in model.parameters()}

    def __enter__(self) -> None:
        with torch.no_grad():
            for parameter in self.values:
                parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)

    def __exit__(self, *_: object) -> None:
        with torch.no_grad():
            for parameter, value in self.values.items():
                parameter.copy_(value)
                parameter.grad = None


@torch.no_grad()
def test_the_balance_loss_is_the_reference_s(tmp_path):
    """Which counts a token for each of its two experts, and all layers as one: here there is one."""
    pair = reference_pair(mixtral(num_hidden_layers=1), tmp_path)
    ids = random_ids(pair, 3, 9)
    real = (torch.arange(9) < torch.tensor([[9], [4], [7]])).long()
    logits = pair.reference(ids, attention_mask=real, output_router_logits=True).router_logits
    expected = load_balancing_loss_func(logits, 5, 2, real)
    ledger = Ledger(pair.ours, [BALANCE])
    pair.ours(ids, lengths=real.sum(1), ledger=ledger)
    ((found,),) = ledger.entries.values()
    torch.testing.assert_close(2 * found, expected)


def test_configurations_of_older_versions_are_read():
    older = {
        "model_type": "mixtral", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": False, "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": None, "tie_word_embeddings": False,
        "attention_dropout": 0.0, "initializer_range": 0.02, "torch_dtype": "bfloat16", "vocab_size": 32000,
    }  # fmt: skip
    assert READ(older) == SIZES["8x7b"]


def test_an_absent_base_is_a_million():
    config = json.loads(MixtralConfig(**CONFIG).to_json_string())
    del config["rope_parameters"]
    assert READ(config).rotary_base == 1e6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"router_jitter_noise": 0.1}, "router_jitter_noise 0.0"),
        ({"num_shared_experts": 1}, "could change what Mixtral computes: num_shared_experts"),
        ({"num_local_experts": 0}, "experts .* above 0"),
    ],
)
def test_what_is_not_read_is_refused(changes, message):
    config = json.loads(MixtralConfig(**CONFIG).to_json_string())
    with pytest.raises(QkvError, match=message):
        READ({**config, **changes})


def test_a_missing_expert_is_named(tmp_path: Path):
    reference_pair(CASES["language"], tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.block_sparse_moe.experts.3.w2.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(QkvError, match=r"lack tensors: model\.layers\.1\.block_sparse_moe\.experts\.3\.w2\.weight"):
        load_model(tmp_path)
