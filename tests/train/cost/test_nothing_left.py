"""What is counted by shapes leaves nothing behind that a run would take for numbers."""

from __future__ import annotations

import gc
import sys
import warnings
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.data.preprocessing import HALF, by_channel
from qkv.errors import QkvError
from qkv.parts.pixels import ENOUGH, normalised
from qkv.train.cost.programs import programs_noted
from qkv.train.cost.shaped import Shaped
from qkv.train.cost.step import trace_step
from qkv.train.optimizers import adamw
from qkv.train.settings import TrainSettings
from tests.train.test_families_recorded_on_gpu import NEVER, PERHAPS, RECORDED

pytestmark = pytest.mark.filterwarnings("ignore")

GPU = torch.device("cuda", 0)
CASES = {**RECORDED, **PERHAPS, **NEVER}
TOLD_APART = {"vit", "deit", "clip", "gpt2", "a teacher"}  # pictures, teachers, and one of the others
UNCOUNTED = {"rnn", "detr", "letters", "hidden patches"}  # which look at numbers


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=[] if each in TOLD_APART else pytest.mark.slow) for each in CASES]
)
def test_nothing_that_stands_for_a_tensor_outlives_a_count(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ViT that was trained on a GPU found such a mean of its pixels, and read it at an address that is none."""
    for module in [each for name, each in sys.modules.items() if name.startswith("qkv.parts.")]:
        if isinstance(getattr(module, "ENOUGH", None), int):  # of numbers, from which on programs are taken
            monkeypatch.setattr(module, "ENOUGH", 1)
    model, objective, batch = CASES[case]()
    model = deepcopy(model).requires_grad_()  # which others may have frozen
    before = stand_ins()
    settings = TrainSettings(steps=1, precision="bfloat16", device="cpu")

    def optimizer(shapes: Any) -> torch.optim.Optimizer:
        return adamw(shapes, learning_rate=1e-3)

    with suppress(QkvError) if case in UNCOUNTED else nullcontext():
        trace_step(model, objective, optimizer, batch, settings, GPU, ("flash", "efficient", "math"))
    assert [describe(each) for each in stand_ins() if not any(each is other for other in before)] == []


def stand_ins() -> list[Tensor]:
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensors = [each for each in gc.get_objects() if issubclass(type(each), Tensor)]
    return [each for each in tensors if isinstance(each, Shaped) or each.device.type == "meta"]


def describe(tensor: Tensor) -> str:
    return f"{type(tensor).__name__} {list(tensor.shape)}"


def test_a_mean_of_pixels_is_kept_with_its_numbers() -> None:
    assert by_channel(HALF, torch.device("meta")).is_meta
    assert by_channel(HALF, torch.device("cpu")) is by_channel(HALF, torch.device("cpu"))


@pytest.mark.gpu
def test_pictures_are_normalised_after_a_step_was_foretold_as_before() -> None:
    """A mean without numbers lies at no address: the program that read it ended the training."""
    model, objective, batch = CASES["vit"]()
    pixels, way = torch.randint(0, 256, (6, 3, 252, 252), dtype=torch.uint8), objective.normalise
    assert pixels.numel() >= ENOUGH
    batch = replace(batch, pixels=pixels)
    settings = TrainSettings(steps=1, precision="bfloat16", device="cuda")
    trace_step(model, objective, lambda shapes: adamw(shapes, learning_rate=1e-3), batch, settings, GPU, ("math",))
    pixels = pixels.cuda()
    torch.testing.assert_close(normalised(pixels, way), way(pixels), rtol=0, atol=0)


def test_files_of_programs_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that lie in a folder of their own: what only notes must not be found by a run."""
    package, name = sys.modules["qkv.parts.attention"], "qkv.parts.attention.in_rows_triton"
    there, notes = ModuleType(name), ModuleType(name)
    monkeypatch.setitem(sys.modules, name, there)
    monkeypatch.setattr(package, "in_rows_triton", there, raising=False)
    with programs_noted(lambda work: None):
        assert name not in sys.modules
        sys.modules[name] = notes
        vars(package)["in_rows_triton"] = notes
    assert sys.modules[name] is there
    assert vars(package)["in_rows_triton"] is there
