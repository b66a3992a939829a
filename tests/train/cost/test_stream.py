"""A step of shapes on a GPU goes the way of a real one: in a stream, by operators and programs of our own."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.api.cost import new_model, typical_step
from qkv.parts import programs
from qkv.train.cost.prediction import Cost, cost_of, traced
from qkv.train.cost.profile import DeviceProfile, shipped
from qkv.train.cost.shaped import NOWHERE, Shaped, ShapesOnly, pretending, without_numbers
from qkv.train.optimizers import adamw
from qkv.train.settings import TrainSettings

GPU = torch.device("cuda", 0)
BASE = {"width": 768, "hidden": 3072, "heads": 12}
VIT = {**BASE, "layers": 2, "image": 224, "patch": 16}
GPT2 = {**BASE, "layers": 2, "dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
OF_STREAM = {"sum_norm", "sum_norm_back", "weight_gradient"}
OF_HOPPER = {
    "mapped", "mapped_across", "activated_map", "map_times_slope", "attend_rows", "back_over_joined_rows",
}  # fmt: skip
OF_PICTURES = {f"patch_programs.{name}" for name in ("normalised", "cut", "placed", "taken_back")}
OF_EMBEDDINGS = {"embed_programs.sum_runs", "embed_programs.sum_parts"}


@pytest.fixture(scope="module")
def h200() -> DeviceProfile:
    return DeviceProfile.load(shipped()["h200"])


def step(
    profile: DeviceProfile, family: str, size: Any, rows: int, length: int | None, **how: Any
) -> tuple[Counter[str], Cost]:
    """How often each operator is called, and what the step takes."""
    with NOWHERE:
        model = new_model(family, size, None, None, length)
    objective, batch = typical_step(model, rows, length, None)
    settings = TrainSettings(steps=1, device="cuda", **{"precision": "bfloat16", **how})
    trace, counted = traced(model, objective, batch, settings, place=GPU, profile=profile, optimizer=adamw)
    names: Counter[str] = Counter()
    for (_, work), times in trace.works.items():
        names[work.name] += times
    return names, cost_of(trace, model, counted, "", settings, profile, profile.name, recorded=True)


def test_blocks_of_text_are_a_stream(h200: DeviceProfile) -> None:
    names, _ = step(h200, "gpt2", GPT2, 24, 1024)
    assert OF_STREAM | OF_EMBEDDINGS <= set(names)
    assert names["sum_norm"] == names["sum_norm_back"] == 5
    assert names["activated_map"] == names["map_times_slope"] == 2
    assert names["attend_rows"] == names["back_over_joined_rows"] == 2
    assert names["mapped"] == 2 * 2 + 2  # of queries, keys and values together, behind them, and of feed-forwards
    assert names["weight_gradient"] == 2 * 4
    assert not {"native_layer_norm", "native_layer_norm_backward", "gelu", "cat"} & set(names)


def test_blocks_of_pictures_are_a_stream(h200: DeviceProfile) -> None:
    names, _ = step(h200, "vit", VIT, 128, None)
    assert OF_STREAM | OF_HOPPER | OF_PICTURES <= set(names)
    assert names["attend_rows"] == names["back_over_joined_rows"] == 1  # the last block answers for one slot
    assert not {"native_layer_norm", "native_layer_norm_backward", "unfold"} & set(names)


def test_a_gpu_before_hopper_has_no_copy_engine(h200: DeviceProfile) -> None:
    before = replace(h200, generation=8)
    for given in (
        ("gpt2", GPT2, 24, 1024),
        ("vit", VIT, 128, None),
    ):
        names, _ = step(before, *given)  # type: ignore[arg-type]
        assert OF_STREAM - {"weight_gradient"} <= set(names)
        assert not OF_HOPPER & set(names)


def test_other_steps_are_as_they_are(h200: DeviceProfile) -> None:
    wide, _ = step(h200, "gpt2", GPT2, 24, 1024, precision="float32")
    dropping, _ = step(h200, "gpt2", {**GPT2, "dropout": 0.1}, 24, 1024)
    twice, _ = step(h200, "gpt2", GPT2, 24, 1024, recompute=True)
    for names in (wide, dropping, twice):
        assert names["sum_norm"] == 0
        assert names["native_layer_norm"] >= 5


@pytest.mark.parametrize(
    ("family", "size", "rows", "length", "milliseconds"),
    [("gpt2", {**GPT2, "layers": 12, "vocabulary": 50257}, 32, 1024, 52.6), ("vit", "base-16", 256, None, 52.7)],
)
def test_predictions_are_near_what_was_measured(
    h200: DeviceProfile, family: str, size: Any, rows: int, length: int | None, milliseconds: float
) -> None:
    _, cost = step(h200, family, size, rows, length)
    assert cost.seconds is not None
    assert 1e3 * cost.seconds == pytest.approx(milliseconds, rel=0.1)


def test_only_shapes_in_a_step_that_is_counted_are_taken_for_others() -> None:
    with ShapesOnly(GPU):
        shape = nn.Parameter(without_numbers(torch.ones(2), GPU))
    tests = (programs.is_counted, programs.runs_or_counts, programs.runs_operators, programs.is_plain)
    assert not any(ask(shape) for ask in tests)
    Shaped.counts_programs = True
    try:
        assert all(ask(shape) for ask in (*tests, programs.is_plain_parameter))
        assert not programs.is_plain_parameter(without_numbers(torch.ones(2), GPU))
        assert not programs.is_counted(without_numbers(torch.ones(2), torch.device("cpu")))
        for real in (torch.ones(2), nn.Parameter(torch.ones(2))):
            assert not any(ask(real) for ask in tests[:3])
            assert programs.is_plain(real)
    finally:
        Shaped.counts_programs = False


def test_a_subclass_of_tensors_is_not_plain() -> None:
    class Other(Tensor):
        pass

    other = torch.ones(2).as_subclass(Other)
    assert not programs.is_plain(other)
    assert not programs.is_plain_parameter(torch.ones(2))
    assert programs.is_plain_parameter(nn.Parameter(torch.ones(2)))


def test_answers_of_a_gpu_that_is_pretended_are_forgotten(h200: DeviceProfile) -> None:
    found = []
    for generation in (9, 8, 9):
        with pretending(GPU, generation):
            assert programs.multiprocessors(GPU) == 132
            found.append(programs.has_copy_engine(GPU))
    assert found == [True, False, True]
    step(h200, "gpt2", GPT2, 24, 1024)
    assert not Shaped.counts_programs
