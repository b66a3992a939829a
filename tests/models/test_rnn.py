"""The recurrent predecessor as a whole model: padding, caching, beams, sizes, and that it learns."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.models.catalogue import build, count_parameters
from qkv.models.rnn import SIZES, RNNSearch, RNNSizes, initialise_wide
from qkv.parts.context import Ledger

SMALL = RNNSizes(vocabulary=23, source_vocabulary=17, embedding=10, width=12, alignment=9, maxout=7)
LENGTHS = torch.tensor([6, 4, 1])


@pytest.fixture
def model() -> RNNSearch:
    """A small model with visible noise everywhere: at the paper's start attention is even and leaks would not show."""
    model = build("rnn", SMALL)
    assert isinstance(model, RNNSearch)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.eval()


@pytest.fixture
def source() -> Tensor:
    rows = torch.randint(1, 17, (3, 6))
    return rows * (torch.arange(6) < LENGTHS[:, None])


@pytest.fixture
def target() -> Tensor:
    return torch.randint(1, 23, (3, 5))


def test_a_row_alone_answers_as_in_a_padded_batch(model: RNNSearch, source: Tensor, target: Tensor) -> None:
    together = model(source, LENGTHS, target)
    assert together.shape == (3, 5, 23)
    for row, length in enumerate(LENGTHS):
        alone = model(source[row : row + 1, :length], None, target[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-6, rtol=0)


def test_what_padding_holds_changes_nothing(model: RNNSearch, source: Tensor, target: Tensor) -> None:
    other = torch.where(torch.arange(6) < LENGTHS[:, None], source, 16)
    assert not torch.equal(other, source)
    assert torch.equal(model(source, LENGTHS, target), model(other, LENGTHS, target))


def test_no_step_sees_a_later_target_token(model: RNNSearch, source: Tensor, target: Tensor) -> None:
    whole = model(source, LENGTHS, target)
    for step in range(5):
        changed = target.clone()
        changed[:, step] = (changed[:, step] + 1) % 23
        answer = model(source, LENGTHS, changed)
        assert torch.equal(answer[:, :step], whole[:, :step])
        assert not torch.allclose(answer[:, step], whole[:, step])


def test_every_source_token_is_seen_from_every_step(model: RNNSearch, source: Tensor, target: Tensor) -> None:
    whole = model(source, LENGTHS, target)
    for slot in range(6):
        changed = source.clone()
        changed[0, slot] = changed[0, slot] % 16 + 1
        assert (model(changed, LENGTHS, target)[0] != whole[0]).any(-1).all()


@pytest.mark.parametrize("steps", [(1, 1, 1, 1, 1), (2, 3), (4, 1)])
def test_cached_steps_answer_as_the_whole(
    model: RNNSearch, source: Tensor, target: Tensor, steps: tuple[int, ...]
) -> None:
    memory = model.encode(source, LENGTHS)
    cache = model.new_cache(5)
    pieces = [model.decode(part, memory, cache) for part in target.split(steps, 1)]
    assert cache.length == 5
    torch.testing.assert_close(torch.cat(pieces, 1), model.decode(target, memory), atol=1e-6, rtol=0)


def test_beams_share_the_memory_and_are_reordered(model: RNNSearch, source: Tensor) -> None:
    """Two beams a sentence; after two steps they swap places, and the second sentence is finished and leaves."""
    beams = torch.randint(1, 23, (6, 4))
    memory = model.encode(source, LENGTHS)
    cache = model.new_cache(4)
    first = model.decode(beams[:, :2], memory, cache)
    repeated = model(source.repeat_interleave(2, 0), LENGTHS.repeat_interleave(2), beams[:, :2])
    torch.testing.assert_close(first, repeated, atol=1e-6, rtol=0)

    rows, sentences = torch.tensor([1, 0, 5, 4]), torch.tensor([0, 2])
    cache.select(rows, sentences)
    second = model.decode(beams[rows, 2:], memory.select(sentences), cache)
    parents = torch.tensor([0, 0, 2, 2])
    repeated = model(source[parents], LENGTHS[parents], beams[rows])
    torch.testing.assert_close(second, repeated[:, 2:], atol=1e-6, rtol=0)


def test_the_ledger_gets_weights_that_sum_to_one_over_real_slots(
    model: RNNSearch, source: Tensor, target: Tensor
) -> None:
    ledger = Ledger(model, keep={"weights"})
    model.decode(target, model.encode(source, LENGTHS), ledger=ledger)
    (weights,) = ledger.entries["decoder.attention/weights"]
    assert weights.shape == (3, 1, 5, 6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 1, 5))
    assert not weights.masked_select(torch.arange(6) >= LENGTHS[:, None, None, None]).any()


def test_the_readout_is_the_papers(model: RNNSearch) -> None:
    """Pairs (2j−1, 2j) of the deep output compete, and the larger goes on."""
    state, word, context = torch.randn(12), torch.randn(10), torch.randn(24)
    readout = model.readout
    pieces = readout.state.weight @ state + readout.state.bias
    pieces = pieces + readout.word.weight @ word + readout.context.weight @ context
    expected = torch.stack([max(pieces[2 * unit], pieces[2 * unit + 1]) for unit in range(7)])
    torch.testing.assert_close(readout(state, word, context), expected)


def expected_parameters(sizes: RNNSizes) -> int:
    m, n, a, l, v = sizes.embedding, sizes.width, sizes.alignment, sizes.maxout, sizes.vocabulary  # noqa: E741
    embeddings = m * (v + (sizes.source_vocabulary or 0))
    encoder = 2 * 3 * (n * m + n * n + 2 * n)
    attention = a * n + a * 2 * n + a + a
    decoder = (n * n + n) + 3 * (n * m + n) + 3 * n * 2 * n + 3 * n * n
    readout = 2 * l * (n + m + 2 * n) + 2 * l
    return embeddings + encoder + attention + decoder + readout + v * l + v


@pytest.mark.parametrize(
    "sizes", [SMALL, SIZES["search"], RNNSizes(vocabulary=9, embedding=2, width=3, alignment=4, maxout=5)]
)
def test_parameters_are_those_of_the_formula(sizes: RNNSizes) -> None:
    assert count_parameters("rnn", sizes) == expected_parameters(sizes)


def test_one_vocabulary_means_one_matrix() -> None:
    model = build("rnn", RNNSizes(vocabulary=9, embedding=2, width=3, alignment=4, maxout=5))
    assert isinstance(model, RNNSearch)
    assert model.source is model.target
    assert model.source_vocabulary == model.target_vocabulary == 9


def test_dropout_acts_in_training_alone(source: Tensor, target: Tensor) -> None:
    model = build("rnn", RNNSizes(**{**vars(SMALL), "dropout": 0.3}))
    assert not torch.equal(model(source, LENGTHS, target), model(source, LENGTHS, target))
    model.eval()
    assert torch.equal(model(source, LENGTHS, target), model(source, LENGTHS, target))


def test_every_parameter_gets_a_finite_gradient(model: RNNSearch, source: Tensor, target: Tensor) -> None:
    model(source, LENGTHS, target).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_the_wide_start_leaves_recurrent_matrices_as_they_are() -> None:
    model = build("rnn", SMALL)
    assert isinstance(model, RNNSearch)
    recurrent = {"encoder.left_to_right.weight_hh_l0", "encoder.right_to_left.weight_hh_l0"}
    recurrent |= {"decoder.gates.weight", "decoder.candidate.weight"}
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    initialise_wide(model)
    kept = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
    assert kept == recurrent | {name for name in before if "bias" in name}


def test_it_learns_twenty_pairs_by_heart() -> None:
    """From the paper's own start, with padded sources and targets of unequal length."""
    sources = torch.randint(3, 12, (20, 6))
    lengths = torch.randint(2, 7, (20,))
    mirrored = (lengths[:, None] - 1 - torch.arange(6)) % 6
    real = torch.arange(6) < lengths[:, None]
    wanted = torch.where(real, sources.gather(1, mirrored), -100)  # each source backwards
    target = torch.cat((torch.ones(20, 1).long(), wanted[:, :-1].clamp(min=0)), 1)
    model = build("rnn", RNNSizes(vocabulary=12, embedding=32, width=64, alignment=64, maxout=32))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        loss = F.cross_entropy(model(sources, lengths, target).transpose(1, 2), wanted)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    written = target[:, :1]
    memory, cache = model.encode(sources, lengths), model.new_cache(6)
    for _ in range(6):
        logits = model.decode(written[:, -1:], memory, cache)
        written = torch.cat((written, logits[:, -1:].argmax(-1)), 1)
    assert (written[:, 1:] == wanted)[real].all()


@pytest.mark.gpu
def test_a_gpu_answers_as_the_cpu_and_trains_in_bfloat16(model: RNNSearch, source: Tensor, target: Tensor) -> None:
    expected = model(source, LENGTHS, target)
    model.cuda()
    inputs = source.cuda(), LENGTHS.cuda(), target.cuda()
    with torch.backends.cudnn.flags(allow_tf32=False):
        torch.testing.assert_close(model(*inputs).cpu(), expected, atol=1e-5, rtol=0)
    model.train()
    model.decoder.step = torch.compile(model.decoder.step, dynamic=True)  # type: ignore[method-assign]
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(*inputs)
    torch.testing.assert_close(logits.float().cpu(), expected, atol=0.1, rtol=0.1)
    logits.float().square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
