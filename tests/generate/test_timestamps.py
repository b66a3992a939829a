"""Which times may follow which tokens, and what they divide an output into, beside the reference library's."""

import random
from types import SimpleNamespace

import pytest
import torch
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from qkv.generate.history import History
from qkv.generate.timestamps import TimestampRules, stretches
from tests.generate.speech import END, FIRST, NO_TIMES, START, TIMES, VOCABULARY, tokens

PROMPT = [START, START + 1, START + 5]
TEXT_ROWS = [
    [],
    [FIRST],
    [FIRST, 40],
    [FIRST, 40, 41, FIRST + 3],
    [FIRST, 40, FIRST + 3, FIRST + 3],
    [FIRST, 40, FIRST + 3, FIRST + 5, 44],
    [FIRST + 4, 40, 41, FIRST + TIMES - 1],
    [FIRST + 4, 40, 41, FIRST + TIMES - 1, FIRST + TIMES - 1],
]


@pytest.mark.parametrize("written", TEXT_ROWS, ids=str)
@pytest.mark.parametrize("raised", [0.0, 4.0, -30.0])
def test_the_rules_are_the_reference_s(written, raised):
    """With times as likely as they come, far likelier, and so unlikely that words are written."""
    torch.manual_seed(len(written))
    scores = torch.randn(2, VOCABULARY)
    scores[:, FIRST:] += raised
    ids = torch.tensor([[*PROMPT, *written]] * 2)
    settings = SimpleNamespace(
        no_timestamps_token_id=NO_TIMES, eos_token_id=END, bos_token_id=END, max_initial_timestamp_index=10,
        _detect_timestamp_from_logprob=True,
    )  # fmt: skip
    theirs = WhisperTimeStampLogitsProcessor(settings, begin_index=len(PROMPT))
    expected = theirs(ids, scores.clone())
    found = TimestampRules(tokens())(scores, History(ids, len(PROMPT)))
    assert torch.equal(found.isneginf(), expected.isneginf())
    assert torch.equal(found[~found.isneginf()], expected[~expected.isneginf()])


def random_output(seed):
    """Times that never go back, mostly in pairs, among words."""
    chance = random.Random(seed)
    ids, time = [], chance.randrange(3)
    for _ in range(chance.randrange(5)):
        ids += [FIRST + time, *(chance.randrange(200) for _ in range(chance.randrange(1, 4)))]
        time = min(TIMES - 1, time + chance.randrange(1, 9))
        ids.append(FIRST + time)
    ids += chance.choice([[], [FIRST + time], [FIRST + time, 7], [7, 8]])
    return ids if ids else [7]


@pytest.mark.parametrize("seed", range(40))
def test_an_output_is_divided_as_the_reference_does(seed):
    ids, size = random_output(seed), 50
    segments, offset = WhisperGenerationMixin._retrieve_segment(
        seek_sequence=torch.tensor(ids), seek_outputs=[{}], time_offset=torch.tensor([0.0]), timestamp_begin=FIRST,
        seek_num_frames=torch.tensor([2 * size]), time_precision=0.02, time_precision_features=0.01, input_stride=2,
        prev_idx=0, idx=0, return_token_timestamps=False, decoder_input_ids=torch.zeros(1, 3),
    )  # fmt: skip
    found, done = stretches(ids, tokens(), size)
    assert 2 * done == int(offset)
    assert len(found) == len(segments)
    for ours, theirs in zip(found, segments, strict=True):
        assert ours.begin * 0.02 == pytest.approx(float(theirs["start"]))
        assert ours.end * 0.02 == pytest.approx(float(theirs["end"]))
        assert ours.ids == theirs["tokens"].tolist()[: len(ours.ids)]
        assert len(theirs["tokens"]) - len(ours.ids) in (0, 1)  # theirs keeps the time after the last pair


def test_an_output_always_gets_on():
    """Two equal times at the very beginning would hear the same window for ever."""
    found, done = stretches([FIRST, FIRST], tokens(), 50)
    assert done == 1
    assert [(part.begin, part.end) for part in found] == [(0, 0)]
