"""What every model of samples promises, whatever its sizes and its head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES, config_of, count_parameters, find_family
from qkv.models.head_choice import HeadChoice
from qkv.models.sound_model import SoundModel
from qkv.models.wav2vec2 import Wav2Vec2Sizes, hiding
from qkv.parts.context import Ledger
from qkv.weights.load import load_model, with_head
from qkv.weights.save import save_model
from tests.models.small_sounds import CASES, HOP, LABELS, SHORTEST, choice, new_sound, small_sound

LENGTHS, SAMPLES = [333, 130, SHORTEST], 333


@pytest.fixture(params=CASES, ids=" ".join)
def model(request: pytest.FixtureRequest) -> SoundModel:
    return small_sound(*request.param)


@pytest.fixture(params=["base", "prenorm"])
def usual(request: pytest.FixtureRequest) -> SoundModel:
    return small_sound(request.param)


def answers(model: SoundModel, waves: Tensor, **beside: Any) -> tuple[Tensor, ...]:
    found = model(waves, **beside)
    return (found,) if isinstance(found, Tensor) else tuple(found)


def assert_close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_an_answer_has_the_shape_that_its_head_says(model: SoundModel) -> None:
    frames = (SAMPLES - SHORTEST) // HOP + 1
    expected = {
        "ctc": [(3, frames, 7)],
        "pretraining": [(3, frames, 9), (3, frames, 9), (3, frames, 2, 5)],
        "states": [(3, frames, 12)],
        "classification": [(3, len(LABELS))],
        "tokens": [(3, frames, len(LABELS))],
        "embedding": [(3, 12)],
    }
    found = answers(model, torch.randn(3, SAMPLES))
    assert [tuple(each.shape) for each in found] == expected[model.head_choice.kind]
    assert all(each.isfinite().all() and each.std() > 1e-3 for each in found)


@torch.no_grad()
def test_padding_changes_nothing(model: SoundModel) -> None:
    lengths = torch.tensor(LENGTHS)
    waves = torch.randn(3, SAMPLES)
    found = answers(model, waves, lengths=lengths)
    other = torch.where(torch.arange(SAMPLES) < lengths[:, None], waves, torch.randn(3, SAMPLES))
    wider = answers(model, torch.cat((other, torch.randn(3, 77)), 1), lengths=lengths)
    counts = model.frames.frames_of(lengths).tolist()
    for row, (length, count) in enumerate(zip(LENGTHS, counts, strict=True)):
        alone = answers(model, waves[row : row + 1, :length])
        for padded in (found, wider):
            assert_close(
                alone, tuple(each[row : row + 1, :count] if each.ndim > 2 else each[row, None] for each in padded)
            )


@torch.no_grad()
def test_every_sample_matters_to_all_frames(usual: SoundModel) -> None:
    waves = torch.randn(2, SAMPLES)
    before = usual(waves)
    used = SHORTEST + HOP * (usual.frames.count(SAMPLES) - 1)
    for sample in range(0, used, 17):
        other = waves.clone()
        other[:, sample] += 3.0
        assert ((usual(other) - before).abs().amax(-1) > 1e-6).all(), sample


@torch.no_grad()
def test_a_row_is_answered_the_same_in_any_company(model: SoundModel) -> None:
    waves, order = torch.randn(3, SAMPLES), torch.tensor([2, 0, 1])
    assert_close(answers(model, waves[order]), tuple(each[order] for each in answers(model, waves)))


@torch.no_grad()
def test_a_saved_model_is_loaded_as_it_was(model: SoundModel, tmp_path: Path) -> None:
    save_model(model, tmp_path)
    again, waves = load_model(tmp_path), torch.randn(2, SAMPLES)
    assert (again.family, again.sizes, again.head_choice) == (model.family, model.sizes, model.head_choice)
    for found, expected in zip(answers(again, waves), answers(model, waves), strict=True):
        assert torch.equal(found, expected)


def test_a_saved_configuration_says_what_to_build(model: SoundModel) -> None:
    config = config_of(model)
    assert find_family(config["family"]).sizes(config["sizes"]) == model.sizes
    assert HeadChoice.from_config(config["head"]) == model.head_choice


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_every_parameter_learns(case: tuple[str, str]) -> None:
    model = new_sound(*case).train()
    hidden = torch.zeros(2, model.frames.count(SAMPLES)).bool()
    hidden[:, 3:7] = True
    found = answers(model, torch.randn(2, SAMPLES), hidden_frames=hidden)
    sum((each * torch.randn_like(each)).sum() for each in found).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 1e-9, name


def test_the_count_without_memory_is_the_count(model: SoundModel) -> None:
    counted = count_parameters(model.family, model.sizes, model.head_choice)
    assert counted == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    "name", ["dropout", "hidden_dropout", "attention_dropout", "frame_dropout", "head_dropout", "layer_dropout"]
)
def test_dropout_falls_in_training_alone(name: str) -> None:
    model, waves = new_sound(**{name: 0.4}), torch.randn(2, SAMPLES)
    assert torch.equal(model(waves), model(waves))
    model.train()
    assert any(not torch.allclose(model(waves), model(waves)) for _ in range(5))


@torch.no_grad()
def test_another_head_keeps_what_the_model_has_learned(usual: SoundModel) -> None:
    waves = torch.randn(2, SAMPLES)
    other = with_head(usual, choice("states")).eval()
    torch.testing.assert_close(other(waves), usual.hear(waves).states)


@torch.no_grad()
def test_a_sound_shorter_than_a_frame_is_refused(usual: SoundModel) -> None:
    assert usual(torch.randn(1, SHORTEST)).shape[1] == 1
    for waves, lengths in [
        (torch.randn(1, SHORTEST - 1), None),
        (torch.randn(1, 0), None),
        (torch.randn(2, 100), torch.tensor([100, SHORTEST - 1])),
    ]:
        with pytest.raises(QkvError, match=f"{SHORTEST} samples at least"):
            usual(waves, lengths=lengths)
    with pytest.raises(QkvError, match="cannot hold"):
        usual(torch.randn(1, 100), lengths=torch.tensor([200]))


@torch.no_grad()
def test_a_ledger_keeps_who_looked_at_whom(usual: SoundModel) -> None:
    ledger, frames = Ledger(usual, {"weights"}), usual.frames.count(SAMPLES)
    usual(torch.randn(2, SAMPLES), ledger=ledger)
    assert [each[0].shape for each in ledger.entries.values()] == [(2, 2, frames, frames)] * 2


@pytest.mark.parametrize("sizes", ["base", "prenorm"])
def test_it_compiles(sizes: str) -> None:
    """Traced as one graph and run as traced, no code generated."""
    model, waves, lengths = new_sound(sizes, layer_dropout=0.2), torch.randn(3, SAMPLES), torch.tensor(LENGTHS)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(waves, lengths=lengths), model(waves, lengths=lengths), atol=1e-5, rtol=1e-4)
    model.train()
    compiled(waves, lengths=lengths).sum().backward()


def test_matrices_start_with_a_small_spread() -> None:
    torch.manual_seed(0)
    for sizes in FAMILIES["wav2vec2"].published.values():
        small = Wav2Vec2Sizes(width=64, hidden=128, heads=2, layers=2, norm=sizes.norm, frame_norm=sizes.frame_norm)
        logits = find_family("wav2vec2").build(small, HeadChoice("ctc")).eval()(torch.randn(2, 4000))
        assert logits.std() < 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"channels": ()}, {"channels": (8, 6)}, {"channels": 8}, {"kernels": (10, 3, 0)}, {"strides": (5, 2, True)},
        {"norm": "between"}, {"frame_norm": "group"},
    ],
)  # fmt: skip
def test_sizes_that_make_no_model_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(QkvError, match=r"family wav2vec2|same convolutions"):
        find_family("wav2vec2").sizes({"width": 12, "hidden": 20, "heads": 2, "layers": 2, **wrong})


def test_what_is_hidden_follows_from_the_sizes() -> None:
    plain = Wav2Vec2Sizes(width=12, hidden=20, heads=2, layers=2)
    frames, channels = hiding(plain)
    assert frames is not None
    assert (frames.share, frames.length, frames.least, channels) == (0.05, 10, 2, None)
    assert hiding(Wav2Vec2Sizes(width=12, hidden=20, heads=2, layers=2, augment=False)) == (None, None)
