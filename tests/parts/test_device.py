"""Devices that this machine does not have are pretended; on a CPU what they would compute is computed."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from qkv.api.loading import load
from qkv.errors import QkvError, QkvWarning
from qkv.generate.use import OnItsWay
from qkv.parts import device as devices
from qkv.parts import programs
from qkv.parts.attention.kernels.choose import choose_kernel
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.visibility import Causal, Mask, Tokens, Window
from qkv.parts.device import at_once, check_bfloat16, device_called, has_bfloat16, is_tested
from qkv.train.random_state import random_state, set_random_state
from qkv.weights.precision import settled
from tests.api.corpus import VERSES
from tests.cli.command import WORDS, qkv
from tests.cli.text_models import save_reader, save_writer
from tests.generate.models import sources
from tests.models.small import small_model as small_pair
from tests.models.small_images import small_model as small_images
from tests.models.small_text import small_model as small_text
from tests.parts.pretended import pretended

CPU, GPU = torch.device("cpu"), torch.device("cuda")
KINDS = ("mps", "xpu")


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    devices._tell.cache_clear()


def has_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], built: tuple[str, ...] = ()) -> None:
    """This machine has a GPU of that kind, for those who ask."""
    properties = SimpleNamespace(major=capability[0], minor=capability[1], total_memory=8 * 2**30)
    for name, answer in {
        "is_available": True, "device_count": 1, "get_device_capability": capability, "get_device_name": "Some GPU",
        "get_device_properties": properties, "get_arch_list": list(built), "current_device": 0,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)


def test_names() -> None:
    assert device_called("cpu") == CPU
    assert device_called("auto").type in {"cpu", "cuda"}
    with pytest.raises(QkvError, match="no device called 'gpu'"):
        device_called("gpu")
    with pytest.raises(QkvError, match="runs on cpu, cuda, mps, xpu, not on 'meta'"):
        device_called("meta")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_here_is_refused_and_what_is_here_is_called_untested(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(QkvError, match="this machine offers none"):
        device_called(kind)
    with pretended(kind, monkeypatch):
        with pytest.warns(QkvWarning, match=f"The device {kind} is untested.*float32"):
            assert device_called(kind).type == kind
        with pytest.raises(QkvError, match=f"no {kind}:1"):
            device_called(f"{kind}:1")
        assert device_called("auto").type != kind


@pytest.mark.filterwarnings("error")
def test_a_gpu_that_qkv_is_tested_on_is_taken_without_a_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    has_gpu(monkeypatch, (9, 0), ("sm_80", "sm_90", "compute_90"))
    assert device_called("auto") == device_called("cuda") == GPU
    assert has_bfloat16(GPU)
    assert programs.are_for(GPU)


def test_an_old_gpu_runs_plain_parts_in_single_precision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    has_gpu(monkeypatch, (7, 5), ("sm_70", "sm_90"))
    with pytest.warns(QkvWarning, match="Some GPU is untested"):
        assert device_called("auto") == GPU
    assert not is_tested(GPU)
    assert not programs.are_for(GPU)
    assert settled("auto", tmp_path, GPU) == "float32"
    with pytest.raises(QkvError, match="does not multiply bfloat16: take precision float32"):
        settled("bfloat16", tmp_path, GPU)
    with pytest.raises(QkvError, match="Some GPU does not"):
        check_bfloat16(GPU)


def test_a_gpu_that_torch_was_not_built_for_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    has_gpu(monkeypatch, (6, 1), ("sm_75", "sm_90a"))
    with pytest.warns(QkvWarning, match="too old for it: all is done on the CPU"):
        assert device_called("auto") == CPU
    with pytest.raises(QkvError, match="too old for it: use cpu"):
        device_called("cuda")


def test_a_gpu_by_another_maker_runs_none_of_our_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    has_gpu(monkeypatch, (9, 4), ("gfx942",))
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: not including_emulation)
    with pytest.warns(QkvWarning, match="untested"):
        assert device_called("cuda") == GPU
    assert not programs.are_for(GPU)
    assert has_bfloat16(GPU)


def test_programs_are_not_asked_for_on_an_old_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """By tensors that say they lie on one."""

    class There(torch.Tensor):
        is_cuda, device = True, torch.device("cuda", 0)
        __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    q = torch.empty(1, 16, 4096, 8, dtype=torch.bfloat16).as_subclass(There)
    mask = Mask(Causal() & Window(64), Tokens(4096), Tokens(4096), CPU)
    assert choose_kernel(q, q, mask, 0.0, False) is not fused
    has_gpu(monkeypatch, (7, 0))
    assert not programs.is_served(q)
    assert not programs.runs_our_own(q)
    assert not programs.runs_operators(q)
    assert choose_kernel(q, q, mask, 0.0, False) is fused


def test_a_small_gpu_is_given_less_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    has_gpu(monkeypatch, (8, 6))
    assert at_once(65_536, 2048, GPU) == 8192
    assert at_once(64, 16, GPU) == 16
    assert at_once(65_536, 2048, CPU) == 2048


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_models_answer_on_other_devices_as_on_a_cpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, lengths, pixels = torch.tensor([[7, 3, 9, 1], [5, 2, 0, 0]]), torch.tensor([4, 2]), torch.randn(2, 3, 12, 12)
    source, of_source = sources([7, 4], small_pair("t5").source_vocabulary)
    calls: dict[str, tuple[Any, Any]] = {
        **{name: (small_text(name), lambda m, d: m(ids.to(d), lengths=lengths.to(d))) for name in ("gpt2", "llama")},
        "bert": (small_text("bert", "states"), lambda m, d: m(ids.to(d), lengths=lengths.to(d))),
        "t5": (small_pair("t5"), lambda m, d: m(source.to(d), of_source.to(d), ids.to(d))),
        "vit": (small_images("vit"), lambda m, d: m(pixels.to(d))),
    }
    for model, call in calls.values():
        expected = call(model, "cpu")
        with pretended(kind, monkeypatch) as there:
            found = call(deepcopy(model).to(kind), kind)
            assert found.device.type == kind
            assert there.ran > 10
            torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:The device")
def test_what_is_written_and_read_there_is_what_a_cpu_does(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = save_writer(tmp_path / "writer"), save_reader(tmp_path / "reader", "embedding")
    for more in ([], ["--temperature", "0.8", "--seed", "1"], ["--beams", "3"], ["--precision", "bfloat16"]):
        given = ["run", writer, "And God", "In the", "--max-tokens", "5", *more]
        expected = qkv(*given, "--device", "cpu")
        with pretended(kind, monkeypatch) as there:
            found = qkv(*given, "--device", kind)
            assert there.ran > 0
        assert found.code == expected.code == 0, found
        assert found.out == expected.out or "bfloat16" in more  # by processors that do not multiply it
    with pretended(kind, monkeypatch):
        torch.testing.assert_close(load(reader, kind).run(VERSES[:2]), load(reader, "cpu").run(VERSES[:2]))
        with pytest.raises(QkvError, match="8 bits are for the CPU"):
            load(reader, kind, precision="int8")


@pytest.mark.filterwarnings("ignore:The device")
def test_models_are_trained_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are those of a CPU: the same numbers in another place, where the recipe does not go by the device."""
    texts, pairs, draw = tmp_path / "verses.txt", tmp_path / "pairs.csv", np.random.default_rng(0)
    texts.write_text("\n\n".join(VERSES), encoding="utf-8")
    pairs.write_text("word,phonemes\n" + "".join(f"{a},{b}\n" for a, b in WORDS.items()) * 4, encoding="utf-8")
    for part, count in (("train", 20), ("t10k", 10)):
        np.save(tmp_path / f"{part}-images.npy", draw.integers(0, 256, (count, 8, 8), np.uint8))
        np.save(tmp_path / f"{part}-labels.npy", (np.arange(count) % 2).astype(np.uint8))
    recipe = ["--length", "32", "--batch-rows", "4", "--optimizer", "adamw", "--schedule", "linear"]
    words = ["--source", "word", "--target", "phonemes", "--source-tokenizer", "characters"]
    works: dict[str, list[str | Path]] = {
        "llama": ["lm", "--family", "llama", "--data", texts, "--blank-lines", "--tokenizer", "bpe:280", *recipe],
        "pairs": ["text-to-text", "--data", pairs, *words, "--target-tokenizer", "symbols", "--optimizer", "muon"],
        "pictures": ["images", "--data", tmp_path, "--change", "strong"],
    }
    small = ["--size", "width=16,hidden=32,heads=2,layers=1", "--steps", "3"]
    for name, work in works.items():
        expected = qkv("train", *work, *small, "--device", "cpu", "--out", tmp_path / f"{name}-cpu")
        with pretended("mps", monkeypatch) as there:
            found = qkv("train", *work, *small, "--device", "mps", "--out", tmp_path / f"{name}-mps")
            assert there.ran > 100
        assert found.code == expected.code == 0, found
        held = [line for line in found.out.splitlines() if line.startswith("Held out")]
        assert held == [line for line in expected.out.splitlines() if line.startswith("Held out")]


def test_products_of_8_bits_are_not_trained_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.train.float8.products import check_float8

    with pretended("mps", monkeypatch), pytest.raises(QkvError, match="not for mps"):
        check_float8(torch.device("mps"), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_that_a_device_draws_are_part_of_the_state(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kind not in random_state() or not random_state()[kind]
    with pretended(kind, monkeypatch):
        states = [torch.tensor([1, 2], dtype=torch.uint8)]
        module = getattr(torch, kind)
        monkeypatch.setattr(module, "get_rng_state", lambda *_: states[-1])
        monkeypatch.setattr(module, "set_rng_state", lambda state, *_: states.append(state))
        before = random_state()
        assert len(before[kind]) == 1
        states.append(torch.tensor([3, 4], dtype=torch.uint8))
        set_random_state(before)
        assert states[-1].tolist() == [1, 2]


def test_an_answer_on_its_way_from_such_a_device_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended("mps", monkeypatch):
        given = torch.arange(3.0).to("mps")
        assert OnItsWay(given, []).arrived().tolist() == [0, 1, 2]
