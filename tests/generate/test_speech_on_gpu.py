"""Speech on a GPU: what is written is what a CPU writes, and half precision works."""

from dataclasses import replace

import pytest
import torch

from qkv.generate.hearing import Hearing
from qkv.generate.transcribe import Transcriber
from tests.generate.speech import FEATURES, noise, small_model, tokenizer, tokens

pytestmark = pytest.mark.gpu
ONCE = Hearing(language="en", temperatures=(0.0,), most_silence=None, words=True)


def on(device, dtype=torch.float32):
    return Transcriber(small_model().to(device, dtype), tokenizer(), FEATURES, tokens())


@pytest.mark.parametrize("beams", [1, 3])
def test_a_gpu_writes_what_a_cpu_writes(beams):
    sounds, hearing = [noise(2.3, 1), noise(0.4, 2)], replace(ONCE, beams=beams)
    ours, expected = on("cuda").run(sounds, hearing), on("cpu").run(sounds, hearing)
    for found, theirs in zip(ours, expected, strict=True):
        assert [each.ids for each in found.segments] == [each.ids for each in theirs.segments]
        assert [word.start for word in found.words] == pytest.approx([word.start for word in theirs.words], abs=0.021)


def test_temperatures_languages_and_half_precision():
    ours = on("cuda", torch.bfloat16)
    strict = Hearing(least_log_probability=-1e-6, most_silence=None, temperatures=(0.0, 0.5), samples=2)
    found = ours.run([noise(1.5, 3)], strict)[0]
    assert found.language in ours.tokens.languages
    assert all(segment.heard.temperature == 0.5 for segment in found.segments)
