"""Steps of decoders that read a source, on a GPU or, with TRITON_INTERPRET=1, by Triton's interpreter on a CPU."""

import os

import pytest
import torch

from qkv.generate import beam
from qkv.generate.beam import beam_search
from qkv.generate.choose import TheLikeliest
from qkv.generate.decode import LengthLimit
from qkv.generate.fused import Plan, plan_of
from qkv.generate.line import Line
from qkv.generate.prompted import FromMemory
from qkv.generate.standing import Standing
from qkv.generate.write import write
from qkv.models.sequence_to_sequence import Memory
from qkv.parts.attention.visibility import NotPadding, Tokens
from tests.generate.models import END, START, sources
from tests.generate.stepped import hearer, make_steps_small, reader_of

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED:
    pytestmark = pytest.mark.gpu
DEVICE = "cpu" if INTERPRETED else "cuda"
MOST = 5 if INTERPRETED else 40
LENGTHS = [5, 3, 9, 1, 7, 2]
GATED = {"feed_forward": "gated-gelu", "tied": False, "scaled": False}


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    make_steps_small(monkeypatch)


def memory_of(model, rows, side):
    """Of sources that are padded on this side."""
    source, lengths = sources(LENGTHS[:rows], vocabulary=101)
    slots = source.shape[1]
    if side == "left":
        source = torch.stack([row.roll(slots - length) for row, length in zip(source, lengths.tolist(), strict=True)])
    place = torch.arange(slots)
    real = place < lengths[:, None] if side == "right" else place >= slots - lengths[:, None]
    tokens = Tokens(slots, documents=real.long().to(DEVICE))
    return model.encode_tokens(source.to(DEVICE), tokens, NotPadding())


def check_written(model, memory_of_rows, rows, turns=1):
    """Tokens and log-probabilities after prompts of several lengths; at the second turn by a record that is kept."""
    assert isinstance(plan_of(model), Plan)
    prompts = ([[START, 7, 8], [START], [START, 9]] * 2)[:rows]
    found = []
    with torch.inference_mode():
        for wrap in (lambda rows: rows, *[Standing] * turns):
            lines = [Line(prompt, MOST, frozenset([END])) for prompt in prompts]
            continuation = wrap(FromMemory(model, memory_of_rows(), prompts, most=MOST))
            for _ in write(continuation, lines, TheLikeliest(), forbidden=torch.tensor([11], device=DEVICE)):
                pass
            found.append(lines)
    for others in found[1:]:
        for line, other in zip(found[0], others, strict=True):
            assert line.ids == other.ids
            assert line.log_probabilities == pytest.approx(other.log_probabilities, abs=2e-4)


@pytest.mark.parametrize(
    ("rows", "side", "changed"), [(2, "right", GATED), (6, "right", GATED), (6, "left", {}), (1, "right", {})]
)
def test_tokens_and_log_probabilities_are_those_of_the_parts(rows, side, changed):
    model = reader_of(DEVICE, **changed)
    check_written(model, lambda: memory_of(model, rows, side), rows, turns=1 if INTERPRETED else 2)


@pytest.mark.parametrize("rows", [2, 5])
def test_maps_of_which_some_have_no_bias(rows):
    model = hearer(DEVICE)
    states = torch.randn(rows, 9, 48, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    check_written(model, lambda: Memory(states, Tokens(9)), rows)


def test_a_source_of_which_nothing_is_real():
    """As the rule has it, a query that sees no key gets zeros."""
    model = reader_of(DEVICE)
    memory = memory_of(model, 2, "right")
    memory.tokens.documents[1] = 0
    check_written(model, lambda: memory, 2)


def test_beams_that_share_a_memory(monkeypatch):
    model = reader_of(DEVICE)
    source, lengths = (each.to(DEVICE) for each in sources([5, 3], vocabulary=101))
    found = []
    for wrap in (lambda rows, most, **_: rows, lambda rows, most, **_: Standing(rows)):
        monkeypatch.setattr(beam, "standing", wrap)
        limit = LengthLimit(0.0, MOST)
        found.append(beam_search(model, source, lengths, start=START, end=END, beams=3, best=2, limit=limit))
    for expected, given in zip(*found, strict=True):
        assert [each.ids for each in given] == [each.ids for each in expected]
        assert [each.score for each in given] == pytest.approx([each.score for each in expected], abs=1e-3)


@pytest.mark.skipif(INTERPRETED, reason="it multiplies narrow numbers in a wrong way")
@pytest.mark.parametrize("rows", [2, 6, 17])
def test_bfloat16_is_as_near_to_single_precision_as_the_parts_are(rows):
    model = reader_of(DEVICE, width=256, key_width=64, heads=4, hidden=512)
    source, lengths = (each.to(DEVICE) for each in sources([3 + row % 7 for row in range(rows)], vocabulary=101))

    def logits(narrow, wrap):
        model.to(narrow)
        continuation = wrap(FromMemory(model, model.encode(source, lengths), [[START]] * rows, most=20))
        continuation.begin()
        tokens = (torch.full((rows, 1), token, device=DEVICE) for token in range(3, 9))
        return torch.stack([continuation.advance(token).float().clone() for token in tokens])  # one buffer

    with torch.inference_mode():
        exact, parts = logits(torch.float32, lambda rows: rows), logits(torch.bfloat16, lambda rows: rows)
        ours = logits(torch.bfloat16, Standing)
    # These weights have opinions that rounding changes: the parts themselves are off by a tenth in some rows.
    assert (ours - exact).pow(2).mean() < 1.5 * (parts - exact).pow(2).mean()
