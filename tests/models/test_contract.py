"""What every family promises, whatever it is made of. A family that enters the catalogue is held to it at once."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES, build, config_of, count_parameters, find_family
from qkv.models.sequence_to_sequence import SequenceToSequence
from tests.models.small import CASES, TRANSLATORS, perturb, shrunk, small_model

LENGTHS = [7, 4, 1]
SLOTS, STEPS = 7, 6


@pytest.fixture(params=CASES)
def model(request: pytest.FixtureRequest) -> SequenceToSequence:
    return small_model(request.param)


def sources(model: SequenceToSequence) -> tuple[Tensor, Tensor]:
    return torch.randint(0, model.source_vocabulary, (len(LENGTHS), SLOTS)), torch.tensor(LENGTHS)


def targets(model: SequenceToSequence, rows: int = len(LENGTHS), steps: int = STEPS) -> Tensor:
    return torch.randint(0, model.target_vocabulary, (rows, steps))


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_logits_have_a_row_for_each_target_token(model: SequenceToSequence) -> None:
    source, lengths = sources(model)
    memory = model.encode(source, lengths)
    assert memory.states.shape[:2] == (len(LENGTHS), SLOTS)
    logits = model.decode(targets(model), memory)
    assert logits.shape == (len(LENGTHS), STEPS, model.target_vocabulary)
    assert logits.isfinite().all()
    assert logits.std() > 1e-3


@torch.no_grad()
def test_the_whole_is_decoding_of_the_encoded(model: SequenceToSequence) -> None:
    (source, lengths), target = sources(model), targets(model)
    assert_close(model(source, lengths, target), model.decode(target, model.encode(source, lengths)))


@pytest.mark.parametrize("slot", range(STEPS))
@torch.no_grad()
def test_no_logit_depends_on_a_later_target_token(model: SequenceToSequence, slot: int) -> None:
    (source, lengths), target = sources(model), targets(model)
    other = target.clone()
    other[:, slot] = (other[:, slot] + 1) % model.target_vocabulary
    before, after = model(source, lengths, target), model(source, lengths, other)
    assert_close(after[:, :slot], before[:, :slot])
    assert ((after - before)[:, slot:].abs().amax((0, 2)) > 1e-4).all()


@torch.no_grad()
def test_every_real_source_token_matters(model: SequenceToSequence) -> None:
    (source, lengths), target = sources(model), targets(model)
    before = model(source, lengths, target)
    for slot in range(SLOTS):
        other = source.clone()
        other[:, slot] = (other[:, slot] + 1) % model.source_vocabulary
        moved = (model(other, lengths, target) - before).abs().amax((1, 2))
        real = slot < lengths
        assert (moved[real] > 1e-5).all()
        assert (moved[~real] <= 1e-5).all()


@torch.no_grad()
def test_padding_changes_nothing(model: SequenceToSequence) -> None:
    (source, lengths), target = sources(model), targets(model)
    wider = torch.cat((source, torch.randint(0, model.source_vocabulary, (len(LENGTHS), 5))), 1)
    longer = torch.cat((target, targets(model)), 1)
    found = model(wider, lengths, longer)[:, :STEPS]
    assert_close(found, model(source, lengths, target))


@torch.no_grad()
def test_no_lengths_mean_no_padding(model: SequenceToSequence) -> None:
    (source, _), target = sources(model), targets(model)
    assert_close(model(source, None, target), model(source, torch.full((len(LENGTHS),), SLOTS), target))


def test_lengths_beyond_the_row_are_refused(model: SequenceToSequence) -> None:
    source, lengths = sources(model)
    with pytest.raises(QkvError, match=f"row of {SLOTS - 1} slots cannot hold {SLOTS} tokens"):
        model.encode(source[:, :-1], lengths)


@torch.no_grad()
def test_a_row_is_answered_the_same_in_any_company(model: SequenceToSequence) -> None:
    (source, lengths), target = sources(model), targets(model)
    together = model(source, lengths, target)
    order = torch.tensor([2, 0, 1])
    assert_close(model(source[order], lengths[order], target[order]), together[order])
    for row, length in enumerate(LENGTHS):
        alone = model(source[row : row + 1, :length], None, target[row : row + 1])
        assert_close(alone, together[row : row + 1])


@pytest.mark.parametrize("steps", [(1,) * STEPS, (3, 1, 2), (STEPS,)], ids=str)
@torch.no_grad()
def test_decoding_by_steps_is_decoding_at_once(model: SequenceToSequence, steps: tuple[int, ...]) -> None:
    (source, lengths), target = sources(model), targets(model)
    memory, cache = model.encode(source, lengths), model.new_cache(STEPS)
    found = torch.cat([model.decode(part, memory, cache) for part in target.split(steps, 1)], 1)
    assert_close(found, model.decode(target, memory))
    assert cache.length == STEPS


@pytest.mark.parametrize("beams", [2, 3])
@torch.no_grad()
def test_beams_share_a_memory_row(model: SequenceToSequence, beams: int) -> None:
    source, lengths = sources(model)
    target = targets(model, len(LENGTHS) * beams)
    memory, cache = model.encode(source, lengths), model.new_cache(STEPS)
    rows = torch.arange(len(LENGTHS)).repeat_interleave(beams)
    expected = model.decode(target, memory.select(rows))
    assert_close(model.decode(target, memory), expected)
    found = torch.cat([model.decode(part, memory, cache) for part in target.split(2, 1)], 1)
    assert_close(found, expected)


@torch.no_grad()
def test_beams_are_reordered_and_finished_rows_leave(model: SequenceToSequence) -> None:
    """As beam search does: 2 beams a row, beams change places, then the middle sentence is done."""
    source, lengths = sources(model)
    memory, cache = model.encode(source, lengths), model.new_cache(STEPS)
    target = targets(model, 6)
    model.decode(target[:, :3], memory, cache)
    order = torch.tensor([1, 0, 2, 2, 5, 4])
    cache.select(order)
    later = targets(model, 6, 2)
    target = torch.cat((target[order, :3], later), 1)
    found = model.decode(later, memory, cache)
    assert_close(found, model.decode(target, memory)[:, 3:])

    kept, kept_memory = torch.tensor([0, 1, 4, 5]), torch.tensor([0, 2])
    cache.select(kept, kept_memory)
    last = targets(model, 4, 1)
    target = torch.cat((target[kept], last), 1)
    found = model.decode(last, memory.select(kept_memory), cache)
    assert_close(found, model.decode(target, memory.select(kept_memory))[:, 5:])


@torch.no_grad()
def test_a_saved_state_makes_a_twin(model: SequenceToSequence) -> None:
    (source, lengths), target = sources(model), targets(model)
    twin = build(model.family, model.sizes).eval()
    assert not torch.allclose(twin(source, lengths, target), model(source, lengths, target), atol=1e-3)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(source, lengths, target), model(source, lengths, target))


def test_a_saved_configuration_says_what_to_build(model: SequenceToSequence) -> None:
    config = config_of(model)
    assert (config["format"], config["family"]) == ("qkv-1", model.family)
    assert find_family(config["family"]).sizes(config["sizes"]) == model.sizes


def test_every_parameter_learns(model: SequenceToSequence) -> None:
    (source, lengths), target = sources(model), targets(model)
    logits = model(source, lengths, target)
    nn.functional.cross_entropy(logits.flatten(0, 1), targets(model).flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 1e-7, name


def test_the_count_without_memory_is_the_count(model: SequenceToSequence) -> None:
    assert count_parameters(model.family, model.sizes) == sum(p.numel() for p in model.parameters())


def test_dropout_falls_in_training_alone(model: SequenceToSequence) -> None:
    model = build(model.family, replace(model.sizes, dropout=0.3)).eval()
    perturb(model)
    (source, lengths), target = sources(model), targets(model)
    assert torch.equal(model(source, lengths, target), model(source, lengths, target))
    model.train()
    assert not torch.allclose(model(source, lengths, target), model(source, lengths, target))


@pytest.mark.parametrize("family", TRANSLATORS)
def test_it_compiles(family: str) -> None:
    """Traced as one graph and run as traced, no code generated. Torch cannot trace its GRU, which may break it."""
    model = small_model(family)
    (source, lengths), target = sources(model), targets(model)
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=not recurrent)
    found = compiled(source, lengths, target)
    found.sum().backward()
    assert_close(found.detach(), model(source, lengths, target).detach())


@pytest.mark.slow
@pytest.mark.parametrize("family", TRANSLATORS)
def test_it_runs_as_generated_code(family: str) -> None:
    model = small_model(family)
    (source, lengths), target = sources(model), targets(model)
    torch._dynamo.reset()
    found = torch.compile(model)(source, lengths, target)
    assert_close(found.detach(), model(source, lengths, target).detach())


@pytest.mark.parametrize("family", TRANSLATORS)
def test_every_published_size_can_be_counted_and_shrunk(family: str) -> None:
    for sizes in FAMILIES[family].published.values():
        assert count_parameters(family, sizes) > 1_000_000
        assert count_parameters(family, shrunk(sizes)) < 100_000
