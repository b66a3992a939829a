"""The programs of a step, on a GPU or, with TRITON_INTERPRET=1, by Triton's interpreter on a CPU."""

import os

import pytest
import torch

from qkv.generate.choose import TheLikeliest
from qkv.generate.continuation import FromPrompts
from qkv.generate.fused import Plan, plan_of
from qkv.generate.line import Line
from qkv.generate.standing import Standing
from qkv.generate.write import write
from tests.generate.stepped import make_steps_small, model_of

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED:
    pytestmark = pytest.mark.gpu
DEVICE = "cpu" if INTERPRETED else "cuda"
MOST = 6 if INTERPRETED else 40
PROMPTS = [[3, 4, 5], [7], [6, 5, 4, 3, 8, 9, 10], [11, 12], [20] * 9, [1, 1]]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    make_steps_small(monkeypatch, WIDEST=64)  # maps in several stretches of inputs


MODELS = {
    "gpt2": lambda: model_of("gpt2", DEVICE),
    "gpt2, relu, untied": lambda: model_of("gpt2", DEVICE, activation="relu", tied=False),
    "llama": lambda: model_of("llama", DEVICE),
    "llama, biases, tied": lambda: model_of("llama", DEVICE, attention_bias=True, output_bias=True, tied=True),
}


@pytest.mark.parametrize(
    ("name", "rows"),
    [("gpt2", 1), ("gpt2", 5), ("gpt2, relu, untied", 3), ("llama", 1), ("llama, biases, tied", 5)],
)
def test_tokens_and_log_probabilities_are_those_of_the_parts(name, rows):
    model = MODELS[name]()
    assert isinstance(plan_of(model), Plan)
    found = []
    for wrap in (lambda rows: rows, Standing):
        lines = [Line(prompt, MOST, frozenset([2])) for prompt in PROMPTS[:rows]]
        continuation = FromPrompts(model, PROMPTS[:rows], most=MOST)
        forbidden = torch.tensor([7, 9], device=DEVICE)
        for _ in write(wrap(continuation), lines, TheLikeliest(), forbidden=forbidden):
            pass
        found.append(lines)
    for line, other in zip(*found, strict=True):
        assert line.ids == other.ids
        assert line.log_probabilities == pytest.approx(other.log_probabilities, abs=2e-4)


@pytest.mark.parametrize("rows", [1, 5])
def test_logits_of_several_steps(rows):
    """The same record, once by its programs and once by the model's parts."""
    model = model_of("gpt2", DEVICE)
    continuation = Standing(FromPrompts(model, PROMPTS[:rows], most=16))
    ordinary = FromPrompts(model, PROMPTS[:rows], most=16)
    with torch.inference_mode():
        tokens = continuation.begin().argmax(-1)[:, None]
        ordinary.begin()
        for _ in range(3):
            found, expected = continuation.advance(tokens), ordinary.advance(tokens)
            torch.testing.assert_close(found.float(), expected, atol=2e-4, rtol=2e-4)
            tokens = (tokens + 1) % 101
        order = torch.arange(rows - 1, -1, -1, device=DEVICE)
        continuation.select(order)
        ordinary.select(order)
        torch.testing.assert_close(continuation.advance(tokens).float(), ordinary.advance(tokens), atol=2e-4, rtol=2e-4)
