"""Rows that go on from prompts of their own are those that would go on alone."""

import pytest
import torch

from qkv.errors import QkvError
from qkv.generate.prompted import FromMemory
from tests.generate.speech import SIZES, VOCABULARY, small_model

PROMPTS = [[5], [7, 8, 9, 10], [11, 12]]


@torch.no_grad()
def test_prompts_of_any_lengths_are_read_side_by_side():
    model = small_model()
    memory = model.encode(torch.randn(3, SIZES.mels, 100))
    rows = FromMemory(model, memory, PROMPTS, most=4)
    logits, written = rows.begin(), [list(prompt) for prompt in PROMPTS]
    order, live = [0, 1, 2], list(range(3))
    for keep in ([0, 1, 2], [2, 0], [1, 0]):
        expected = [model.decode(torch.tensor([written[r]]), memory.select(torch.tensor([r])))[0, -1] for r in live]
        torch.testing.assert_close(logits, torch.stack(expected), atol=1e-5, rtol=1e-4)
        chosen = torch.tensor(keep)
        rows.select(chosen, chosen)
        live = [live[row] for row in keep]
        new = torch.randint(0, VOCABULARY, (len(live), 1))
        for row, token in zip(live, new[:, 0].tolist(), strict=True):
            written[row].append(token)
        logits = rows.advance(new)
    assert order == [0, 1, 2]


@torch.no_grad()
def test_logits_within_a_prompt_are_told():
    model = small_model()
    memory = model.encode(torch.randn(2, SIZES.mels, 100))
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8]]
    rows = FromMemory(model, memory, prompts, most=1)
    torch.testing.assert_close(rows.begin(), rows.prompt_logits(1))
    whole = model.decode(torch.tensor(prompts[1:]), memory.select(torch.tensor([1])))
    torch.testing.assert_close(rows.prompt_logits(3)[1], whole[0, -3], atol=1e-5, rtol=1e-4)


def test_an_empty_prompt_is_refused():
    model = small_model()
    with pytest.raises(QkvError, match="empty prompt"):
        FromMemory(model, model.encode(torch.randn(1, SIZES.mels, 100)), [[]], most=1)
