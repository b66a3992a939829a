"""Models with experts: where the experts are, how many parameters that makes, and what stays as it was."""

from dataclasses import replace

import pytest
import torch

from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES, build, count_parameters
from qkv.models.switch import SIZES, has_experts
from qkv.parts.attention.visibility import SameDocument, Tokens
from qkv.parts.experts import Experts, GatedExperts, Mixture
from qkv.parts.feedforward import MLP
from qkv.parts.position import positions_in_documents
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import published_config
from tests.models.small import perturb, shrunk
from tests.models.small_text import small_sizes

# base-8 as counted in its published file, the last two as [fedus2022 tab.9] has them in billions
COUNTS = {"base-8": 619_339_008, "large-128": 26_309_291_008, "c-2048": 1_571_308_972_448}


@pytest.mark.parametrize("size", COUNTS)
def test_the_parameters_are_those_published(size):
    assert count_parameters("switch", SIZES[size]) == COUNTS[size]


@pytest.mark.parametrize(
    ("step", "layers", "expected"), [(1, 3, [0, 1, 2]), (2, 5, [1, 3]), (3, 6, [1, 4]), (4, 12, [1, 5, 9])]
)
def test_experts_stand_in_some_blocks(step, layers, expected):
    assert [layer for layer in range(layers) if has_experts(layer, step)] == expected
    model = build("switch", shrunk(SIZES["base-8"], encoder_layers=layers, encoder_step=step))
    mixers = [block.feed_forward.mixer for block in model.encoder.blocks]
    assert [layer for layer, mixer in enumerate(mixers) if isinstance(mixer, Experts)] == expected
    assert sum(isinstance(mixer, MLP) for mixer in mixers) == layers - len(expected)


def test_gated_experts_can_be_asked_for():
    model = build("switch", shrunk(SIZES["base-8"], feed_forward="gated-gelu"))
    assert isinstance(model.encoder.blocks[1].feed_forward.mixer, GatedExperts)
    with pytest.raises(QkvError, match="no feed-forward called swish"):
        build("switch", shrunk(SIZES["base-8"], feed_forward="swish", encoder_step=1, decoder_step=1))
    with pytest.raises(QkvError, match="a number of tokens or a factor, one of them"):
        build("switch", shrunk(SIZES["base-8"], capacity_factor=1.0))


def test_expert_dropout_is_that_of_experts_alone():
    model = build("switch", shrunk(SIZES["base-8"], expert_dropout=0.4))
    rates = {type(module).__name__: module.dropout.p for module in model.modules() if isinstance(module, Mixture | MLP)}
    assert rates == {"Experts": 0.4, "MLP": 0.1}


def test_experts_begin_small():
    """N(0, 0.1 / inputs), nothing beyond two deviations."""
    torch.manual_seed(0)
    model = build("switch", replace(shrunk(SIZES["base-8"]), width=64, hidden=128, experts=8))
    mixer = model.encoder.blocks[1].feed_forward.mixer
    for weight, inputs in ((mixer.inner.weight, 64), (mixer.outer.weight, 128), (mixer.router.weight, 64)):
        deviation = (0.1 / inputs) ** 0.5
        assert weight.abs().max() <= 2 * deviation
        assert weight.std().item() == pytest.approx(0.88 * deviation, rel=0.1)


def gpt_with_experts():
    torch.manual_seed(0)
    model = build("gpt2", replace(small_sizes("gpt2"), experts=4, layers=3)).eval()
    perturb(model)
    return model


@torch.no_grad()
def test_a_gpt_with_experts_reads_by_steps_padded_and_packed_as_any_gpt():
    model = gpt_with_experts()
    assert [isinstance(block.feed_forward.mixer, Experts) for block in model.stack.blocks] == [False, True, False]
    ids = torch.randint(0, model.vocabulary, (1, 9))
    whole, cache = model(ids), model.new_cache(9)
    steps = torch.cat([model(part, cache=cache) for part in ids.split((4, 1, 1, 3), 1)], 1)
    torch.testing.assert_close(steps, whole, atol=1e-5, rtol=1e-4)
    documents = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 2, 2]])
    packed = Tokens(9, documents=documents)
    positions = positions_in_documents(documents)
    found = model(ids, tokens=packed, positions=positions, visibility=SameDocument())
    for start, end in ((2, 5), (5, 9)):
        torch.testing.assert_close(found[:, start:end], model(ids[:, start:end]), atol=1e-5, rtol=1e-4)


def test_a_gpt_with_experts_has_no_published_form():
    with pytest.raises(QkvError, match="None of the published forms of the family gpt2"):
        published_config(gpt_with_experts(), PUBLISHED)


def test_a_mixtral_has_no_biases_in_its_experts():
    with pytest.raises(QkvError, match="leave out feed_forward_bias"):
        build("mixtral", replace(shrunk(FAMILIES["mixtral"].published["8x7b"]), feed_forward_bias=True))
