"""What `cost` foretells: parameters and operations to the last one, memory as a real step holds it, times in order."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from qkv.api.cost import cost, new_model, typical_step
from qkv.errors import QkvError
from qkv.models.catalogue import count_parameters, find_family
from qkv.models.head_choice import HeadChoice
from qkv.parts.attention.blocks import TILE
from qkv.train.cost.measure import TINY, measure_device
from qkv.train.cost.profile import DeviceProfile
from qkv.train.objectives.expert_losses import with_expert_losses
from qkv.train.settings import TrainSettings
from tests.train.cost.real_memory import real_peak

CPU = TrainSettings(steps=1, device="cpu")
GPT = {"vocabulary": 96, "width": 32, "hidden": 128, "heads": 2, "layers": 2, "dropout": 0.0,
       "embedding_dropout": 0.0, "attention_dropout": 0.0}  # fmt: skip
ROWS, LENGTH = 4, 128


@pytest.fixture(scope="module")
def profile() -> DeviceProfile:
    """Of this machine, in a second; as a GPU's it has one more column for narrow numbers."""
    return measure_device(torch.device("cpu"), TINY)


def as_gpu(profile: DeviceProfile) -> DeviceProfile:
    narrow = {name.replace("float32", "bfloat16"): seconds for name, seconds in profile.host.items()}
    order = ("cudnn", "flash", "efficient", "math")
    return replace(profile, kind="cuda", host={**profile.host, **narrow}, attention_order=order)


def test_parameters_are_those_of_the_catalogue() -> None:
    for family, size in (("gpt2", "base"), ("bert", "base"), ("t5", "small"), ("vit", "base-16")):
        chosen = find_family(family)
        head = {"gpt2": HeadChoice("language"), "bert": HeadChoice("pretraining")}.get(family)
        if family == "vit":
            head = HeadChoice("classification", tuple(map(str, range(1000))))
        length = None if family == "vit" else 128
        found = cost(family, size, rows=2, length=length, device="cuda", forward_only=True)
        assert found.parameters == count_parameters(family, chosen.published[size], head), family


def products_of_gpt(tokens: int, pairs: int) -> int:
    """By hand: two operations for every weight that a token meets, and two for every pair of tokens and number of a
    head, twice: scores and sums."""
    d, hidden, layers = GPT["width"], GPT["hidden"], GPT["layers"]
    weights = layers * (4 * d * d + 2 * d * hidden) + d * GPT["vocabulary"]
    return 2 * tokens * weights + layers * 4 * pairs * d


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_operations_are_those_of_the_formula(device: str) -> None:
    found = cost("gpt2", GPT, rows=ROWS, length=LENGTH, device=device)
    tokens = ROWS * LENGTH
    pairs = tokens * LENGTH // 2  # fused attention computes no more than it must
    of_loss = 2 * 2 * tokens * GPT["width"] * GPT["vocabulary"]  # whose gradients are made with the logits, forward
    assert found.flops_forward == products_of_gpt(tokens, pairs) + of_loss
    attention_back = GPT["layers"] * 10 * pairs * GPT["width"]  # five products where forward has two
    assert found.flops_backward == 2 * products_of_gpt(tokens, 0) - of_loss + attention_back
    assert found.counted == tokens


def test_operations_of_our_own_kernel_follow_the_tiles_that_are_seen() -> None:
    length = 4096
    asked: dict[str, Any] = {"rows": 8, "length": length, "device": "cuda", "forward_only": True}
    dense = cost("gpt2", GPT, **asked).flops
    near = cost("gpt2", GPT, attention=f"window:{TILE}", **asked).flops
    tiles = 2 * (length // TILE) - 1  # each row of tiles meets its own and the one before
    assert near == products_of_gpt(8 * length, 8 * tiles * TILE * TILE)
    assert near < dense


CASES = {
    "gpt2": ({**GPT}, None),
    "gpt2 with dropout": ({**GPT, "dropout": 0.1, "embedding_dropout": 0.1, "attention_dropout": 0.1}, None),
    "gpt2 window": ({**GPT}, "window:32"),
    "gpt2 performer": ({**GPT}, "performer:16"),
    "bert": ({"vocabulary": 96, "width": 32, "hidden": 64, "heads": 2, "layers": 2}, None),
    "t5": ({"vocabulary": 96, "width": 32, "key_width": 16, "hidden": 64, "heads": 2}, None),
    "switch": ({"vocabulary": 96, "width": 32, "key_width": 16, "hidden": 64, "heads": 2, "experts": 4}, None),
    "llama": ({"vocabulary": 96, "width": 32, "hidden": 64, "heads": 4, "key_value_heads": 2, "layers": 2}, None),
    "qwen3": ({"vocabulary": 96, "width": 32, "hidden": 64, "heads": 4, "key_value_heads": 2, "head_width": 16,
               "layers": 2}, None),
    "reformer": ({"vocabulary": 96, "width": 64, "line_width": 32, "hidden": 64, "heads": 2, "head_width": 32,
                  "layers": 2}, None),
    "vit": ({"image": 16, "patch": 4, "width": 32, "hidden": 64, "heads": 2, "layers": 2}, None),
}  # fmt: skip


def real_model(name: str, length: int | None) -> nn.Module:
    sizes, attention = CASES[name]
    torch.manual_seed(0)
    return new_model(name.split()[0], sizes, None, attention, length)


@pytest.mark.parametrize("name", CASES)
def test_memory_is_that_of_a_real_step(name: str) -> None:
    length = None if name == "vit" else LENGTH
    model = real_model(name, length)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = cost(model, rows=ROWS, length=length, device="cpu")
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())  # nothing was touched
    assert all(parameter.grad is None for parameter in model.parameters())
    objective, batch = typical_step(model, ROWS, length, None)
    real = real_peak(model, with_expert_losses(model, objective), batch, CPU)
    assert abs(found.memory.total / real - 1) < 0.03


def test_memory_is_split_by_owner() -> None:
    found = cost("gpt2", GPT, rows=ROWS, length=LENGTH, device="cpu")
    assert found.memory.weights == 4 * found.parameters
    assert 8 * found.parameters <= found.memory.optimizer < 8 * found.parameters + 1024
    assert found.memory.activations > 0
    passing = cost("gpt2", GPT, rows=ROWS, length=LENGTH, device="cpu", forward_only=True).memory
    assert passing.weights == found.memory.weights
    assert passing.gradients == passing.optimizer == passing.activations == 0


def test_a_reversible_stack_needs_no_more_memory_for_more_layers() -> None:
    def activations(layers: int) -> int:
        sizes = {**CASES["reformer"][0], "layers": layers}
        memory = cost("reformer", sizes, rows=1, length=1024, device="cuda").memory
        return memory.activations + memory.temporary

    def plain(layers: int) -> int:
        return cost("gpt2", {**GPT, "layers": layers}, rows=1, length=1024, device="cuda").memory.activations

    assert activations(8) < 1.2 * activations(2)
    assert plain(8) > 2 * plain(2)


def test_more_work_takes_more(profile: DeviceProfile) -> None:
    gpu = as_gpu(profile)

    def asked(rows: int, length: int, precision: str = "bfloat16") -> Any:
        return cost("gpt2", GPT, rows=rows, length=length, device=gpu, precision=precision)

    few, more, longer = asked(4, 128), asked(64, 128), asked(4, 2048)
    for larger in (more, longer):
        assert larger.flops > few.flops
        assert larger.memory.total > few.memory.total
        assert larger.device_seconds > few.device_seconds
        assert larger.seconds >= few.seconds
    assert asked(4, 512, "bfloat16").memory.activations < asked(4, 512, "float32").memory.activations


def test_a_recorded_step_waits_for_the_device_alone() -> None:
    small = {"width": 32, "hidden": 64, "heads": 2, "layers": 2, "vocabulary": 50}
    plain, recorded, usual = (
        cost("gpt2", small, rows=2, length=16, device="h200", record=asked) for asked in (False, True, None)
    )
    assert usual == recorded
    assert recorded.device_seconds == plain.device_seconds
    assert recorded.seconds < plain.seconds  # of which nearly all is the host's
    assert recorded.memory == plain.memory
    backwards = {**small, "head_width": 16, "line_width": 8}
    with pytest.raises(QkvError, match="not recorded where layers are computed from those after them"):
        cost("reformer", backwards, rows=1, length=64, device="h200", record=True)
    with pytest.raises(QkvError, match="not recorded where there is no GPU"):
        cost("gpt2", small, rows=2, length=16, device="cpu", record=True)
    with pytest.raises(QkvError, match="Only steps that learn are recorded"):
        cost("gpt2", small, record=True, forward_only=True)


def test_time_is_told_only_where_it_was_measured(profile: DeviceProfile) -> None:
    unknown = cost("gpt2", GPT, rows=2, length=16, device="cuda", steps=10)
    if not torch.cuda.is_available():
        assert unknown.seconds is None
        assert unknown.total_seconds is None
        assert unknown.per_second is None
    known = cost("gpt2", GPT, rows=2, length=16, device=profile, steps=10)
    assert known.seconds is not None
    assert known.total_seconds == 10 * known.seconds
    assert known.per_second == 2 * 16 / known.seconds
    narrow = cost("gpt2", GPT, rows=2, length=16, device=profile, precision="bfloat16")
    assert narrow.seconds is None  # of a CPU only float32 was measured


@pytest.mark.parametrize(
    ("family", "attention"),
    [("gpt2", "lsh:2:64"), ("gpt2", "rfa:32"), ("gpt2", "performer:32"), ("bert", "performer:40"),
     ("gpt2", "strided:32"), ("bert", "linformer:32"), ("big-bird", None),
     ("longformer", None), ("mixtral", None), ("albert", None), ("transformer", None), ("deit", None)],
)  # fmt: skip
def test_families_and_attentions_of_a_gpu_are_told_without_one(family: str, attention: str | None) -> None:
    length = None if family == "deit" else 256
    found = cost(family, rows=2, length=length, attention=attention, device="cuda", precision="bfloat16")
    assert found.flops > 0
    assert found.memory.total > 16 * found.parameters


def test_wrong_questions_are_refused() -> None:
    with pytest.raises(QkvError, match="no measured device called abacus"):
        cost("gpt2", GPT, device="abacus")
    with pytest.raises(QkvError, match="at least 1 row"):
        cost("gpt2", GPT, rows=0)
    with pytest.raises(QkvError, match="leave the length out"):
        cost("vit", length=12)
    with pytest.raises(QkvError, match="leave their length out"):
        cost("gpt2", GPT, length=12, target_length=12)
    with pytest.raises(QkvError, match="none that the model reads"):
        cost("gpt2", {**GPT, "positions": 8}, length=12)
    with pytest.raises(QkvError, match="cannot be told"):
        cost("rnn", rows=2, length=8, device="cuda")
    with pytest.raises(QkvError, match="is what it is"):
        cost(nn.Linear(1, 1), "base")


def test_the_precision_is_that_of_a_training_there() -> None:
    small = {"width": 32, "hidden": 64, "heads": 2, "layers": 1, "vocabulary": 50}
    for device, precision, other in (("h200", "bfloat16", "float32"), ("cpu", "float32", "bfloat16")):
        told = cost("gpt2", small, rows=2, length=16, device=device)
        assert told == cost("gpt2", small, rows=2, length=16, device=device, precision=precision)
        assert told != cost("gpt2", small, rows=2, length=16, device=device, precision=other)
