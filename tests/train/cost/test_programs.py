"""Programs for a GPU that a step would launch, noted where there is no GPU."""

import sys

import torch

from qkv.data.packing import LanguageBatch
from qkv.train.cost.operators import Work
from qkv.train.cost.step import trace_step
from qkv.train.cost.tracer import FORWARD
from qkv.train.objectives.language import LanguageLoss
from qkv.train.objectives.linear_cross_entropy import ALIGNED
from qkv.train.optimizers import adamw
from qkv.train.settings import TrainSettings
from tests.train.objectives.small import VOCABULARY, small_gpt

ROWS, SLOTS, WIDTH = 3, 20, 12
FILLED = -(-VOCABULARY // ALIGNED) * ALIGNED


def works() -> dict[Work, int]:
    ids = torch.zeros(ROWS, SLOTS + 1, dtype=torch.long)
    batch = LanguageBatch(ids, torch.ones_like(ids), False, ROWS * SLOTS, ROWS * SLOTS)
    settings = TrainSettings(steps=1, precision="bfloat16", device="cpu")
    trace, _ = trace_step(
        small_gpt(), LanguageLoss(), adamw, batch, settings, torch.device("cuda"), ("flash", "efficient", "math")
    )
    return {work: times for (phase, work), times in trace.works.items() if phase == FORWARD}


def test_the_loss_over_a_vocabulary_is_three_products_and_one_program() -> None:
    found = works()
    programs = {work: times for work, times in found.items() if work.name.startswith("entropy_programs.")}
    (program,) = programs
    assert programs[program] == 1
    logits = 2 * ROWS * SLOTS * FILLED  # bytes, the vocabulary filled up
    assert 2 * logits < program.bytes < 3 * logits  # read and written, and a few numbers for each row
    products = [work for work in found if work.kind == "product" and FILLED in work.shape]
    assert VOCABULARY < FILLED
    assert [work.flops for work in products] == 3 * [2 * ROWS * SLOTS * WIDTH * FILLED]
    assert all(found[work] == 1 for work in products)


def test_what_stood_in_for_triton_is_forgotten() -> None:
    before = sys.modules.get("qkv.train.objectives.entropy_triton")
    works()
    assert sys.modules.get("qkv.train.objectives.entropy_triton") is before
    assert "triton" not in sys.modules or hasattr(sys.modules["triton"], "__version__")
