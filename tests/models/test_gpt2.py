"""GPT-2's initial values, which GPT-3 shares."""

import pytest
import torch

from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.gpt3 import GPT3Sizes

SHARED = {"vocabulary": 400, "positions": 300, "width": 96, "hidden": 384, "heads": 4, "layers": 8}
SIZES = {"gpt2": GPT2Sizes(**SHARED), "gpt3": GPT3Sizes(**SHARED, head_width=24)}


@pytest.mark.parametrize("family", SIZES)
def test_matrices_that_write_to_the_stream_start_smaller(family: str) -> None:
    torch.manual_seed(0)
    model = build(family, SIZES[family])
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            writes = name.endswith(("attention.mixer.out.weight", "feed_forward.mixer.outer.weight"))
            expected = 0.02 / 4 if writes else 0.02  # √(2·8) = 4
            error = 5 * (2 * parameter.numel()) ** -0.5  # of a deviation estimated from so many numbers
            assert parameter.std().item() == pytest.approx(expected, rel=error), name
        else:
            one = name.endswith("norm.weight")
            assert torch.equal(parameter, torch.full_like(parameter, float(one))), name
