"""DeepNorm's constants as its paper prints them, and which matrices its start makes smaller."""

import pytest
import torch

from qkv.models.catalogue import build
from qkv.models.transformer import SIZES
from qkv.parts.deepnorm import constants_alone, constants_of_decoder, constants_of_encoder, start_deepnorm
from qkv.parts.residual import DeepNorm
from tests.models.small import shrunk

N, M = 18, 12


def test_constants_are_those_of_the_paper() -> None:
    """Figure 2 of the paper, by hand: α and β of one stack alone, of an encoder beside a decoder, of that decoder."""
    alone = constants_alone(N)
    assert (alone.alpha, alone.beta) == pytest.approx((36**0.25, 1 / 144**0.25))
    encoder = constants_of_encoder(N, M)
    assert encoder.alpha == pytest.approx(0.81 * (18**4 * 12) ** (1 / 16))
    assert encoder.beta == pytest.approx(0.87 * (18**4 * 12) ** (-1 / 16))
    decoder = constants_of_decoder(M)
    assert (decoder.alpha, decoder.beta) == pytest.approx((36**0.25, 1 / 144**0.25))
    assert constants_alone(100).alpha == pytest.approx(3.7606, abs=1e-4)  # a hundred layers, on a calculator
    assert constants_alone(100).beta == pytest.approx(0.18803, abs=1e-5)


def test_each_stack_has_its_own_constants() -> None:
    sizes = shrunk(SIZES["base"], encoder_layers=4, decoder_layers=3)
    model = build("transformer-deepnorm", sizes)
    alphas = [
        {step.alpha for step in stack.modules() if isinstance(step, DeepNorm)}
        for stack in (model.encoder, model.decoder)
    ]
    assert alphas == [{constants_of_encoder(4, 3).alpha}, {constants_of_decoder(3).alpha}]


def test_the_start_shrinks_values_outputs_and_feed_forwards_and_nothing_else() -> None:
    sizes = shrunk(SIZES["base"])
    model = build("transformer", sizes)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    start_deepnorm(model.decoder, 0.25)
    smaller = ("value.weight", "out.weight", "inner.weight", "outer.weight")
    changed = set()
    for name, value in model.state_dict().items():
        if name.startswith("decoder.") and name.endswith(smaller):
            torch.testing.assert_close(value, 0.25 * before[name])
            changed.add(name.split(".mixer.")[-1])
        else:
            assert torch.equal(value, before[name]), name
    assert changed == {"project.value.weight", "out.weight", "inner.weight", "outer.weight"}


def test_a_model_starts_with_xavier_times_beta() -> None:
    """Var = β²·2/(in + out); the query keeps 2/(in + out)."""
    sizes = shrunk(SIZES["base"], width=64, hidden=128, heads=4, encoder_layers=3, decoder_layers=3)
    torch.manual_seed(0)
    state = build("transformer-deepnorm", sizes).state_dict()
    encoder, decoder = constants_of_encoder(3, 3), constants_of_decoder(3)

    def spread(name: str) -> float:
        return state[name].std().item()

    whole = (2 / 128) ** 0.5
    assert spread("encoder.blocks.1.attention.mixer.project.query.weight") == pytest.approx(whole, rel=0.05)
    value = spread("encoder.blocks.1.attention.mixer.project.value.weight")
    assert value == pytest.approx(encoder.beta * whole, rel=0.05)
    cross = spread("decoder.blocks.2.cross.mixer.project.value.weight")
    assert cross == pytest.approx(decoder.beta * whole, rel=0.05)
    inner = spread("decoder.blocks.0.feed_forward.mixer.inner.weight")
    assert inner == pytest.approx(decoder.beta * (2 / 192) ** 0.5, rel=0.05)
