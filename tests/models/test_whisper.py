"""Whisper keeps the promises of every family, for frames in place of ids."""

from dataclasses import replace

import pytest
import torch

from qkv.models.catalogue import build, config_of, count_parameters, find_family
from qkv.models.whisper import SIZES
from qkv.weights.load import load_model
from qkv.weights.save import save_model
from tests.generate.speech import SIZES as SMALL
from tests.generate.speech import VOCABULARY, small_model

ROWS, STEPS = 3, 6


@pytest.fixture
def model():
    return small_model(sharp=1.0)


def given(rows=ROWS, frames=100):
    torch.manual_seed(5)
    return torch.randn(rows, SMALL.mels, frames), torch.randint(0, VOCABULARY, (rows, STEPS))


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("frames", [1, 2, 7, 100])
@torch.no_grad()
def test_a_slot_is_two_frames(model, frames):
    source, target = given(frames=frames)
    memory = model.encode(source)
    assert memory.states.shape == (ROWS, (frames + 1) // 2, SMALL.width)
    assert model.decode(target, memory).shape == (ROWS, STEPS, VOCABULARY)


@torch.no_grad()
def test_every_frame_matters_and_no_later_token(model):
    source, target = given()
    before = model(source, None, target)
    for frame in (0, 1, 50, 99):
        other = source.clone()
        other[:, :, frame] += 1
        assert ((model(other, None, target) - before).abs().amax((1, 2)) > 1e-5).all()
    other = target.clone()
    other[:, 3] = (other[:, 3] + 1) % VOCABULARY
    after = model(source, None, other)
    close(after[:, :3], before[:, :3])
    assert ((after - before)[:, 3:].abs().amax((0, 2)) > 1e-4).all()


@torch.no_grad()
def test_rows_steps_and_beams_change_nothing(model):
    source, target = given()
    memory = model.encode(source)
    whole = model.decode(target, memory)
    for row in range(ROWS):
        close(model(source[row : row + 1], None, target[row : row + 1]), whole[row : row + 1])
    cache = model.new_cache(STEPS)
    close(torch.cat([model.decode(part, memory, cache) for part in target.split((3, 1, 2), 1)], 1), whole)
    twice = target.repeat_interleave(2, 0)
    close(model.decode(twice, memory), whole.repeat_interleave(2, 0))


@torch.no_grad()
def test_a_saved_folder_makes_a_twin(model, tmp_path):
    source, target = given()
    model.source.position.weight.add_(0.5)  # a table that is not the computed one is saved too
    save_model(model, tmp_path)
    assert torch.equal(load_model(tmp_path)(source, None, target), model(source, None, target))
    config = config_of(model)
    assert find_family(config["family"]).sizes(config["sizes"]) == model.sizes


def test_every_parameter_learns_and_positions_do_not(model):
    source, target = given()
    model.train()
    model(source, None, target).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 1e-7, name
    assert "source.position.weight" not in dict(model.named_parameters())


def test_dropout_falls_in_training_alone():
    source, target = given()
    for kind in ("dropout", "hidden_dropout", "attention_dropout"):
        torch.manual_seed(0)
        model = build("whisper", replace(SMALL, **{kind: 0.5})).eval()
        assert torch.equal(model(source, None, target), model(source, None, target))
        model.train()
        assert not torch.allclose(model(source, None, target), model(source, None, target))


def test_it_compiles(model):
    source, target = given()
    torch._dynamo.reset()
    found = torch.compile(model, backend="eager", fullgraph=True)(source, None, target)
    close(found.detach(), model(source, None, target).detach())


def test_the_sizes_are_those_of_the_paper():
    """[radford2023 tab.1] in millions, and the later ones as their publisher gives them."""
    millions = {"tiny": 39, "base": 74, "small": 244, "medium": 769, "large": 1550, "large-v3-turbo": 809}
    for name, count in millions.items():
        assert count_parameters("whisper", SIZES[name]) / 1e6 == pytest.approx(count, rel=0.05)
