"""What a device has at most is what its maker promises, or what was measured, or unknown."""

from pathlib import Path

import pytest
import torch

from qkv.train.cost import profile
from qkv.train.utilisation import peak_of

CPU = torch.device("cpu")


def test_a_device_that_nobody_measured_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "own_profiles", lambda: tmp_path)
    assert peak_of(CPU, "float32") is None


def test_a_known_gpu_has_what_its_maker_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert peak_of(torch.device("cuda"), "bfloat16") == 989e12
    assert peak_of(torch.device("cuda"), "float32") == 67e12


def test_another_device_has_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = profile.DeviceProfile(
        name="a machine", kind="cpu", torch="", memory=1, libraries=0, launch=0.0, host={}, attention_order=(),
        products=(("float32", "nn", 1, 10, 10, 10, True, 2e-6),), attentions=(), traffic={},
    )  # fmt: skip
    monkeypatch.setattr("qkv.train.utilisation.find_profile", lambda device: measured)
    assert peak_of(CPU, "float32") == pytest.approx(2 * 10**3 / 2e-6)
    assert peak_of(CPU, "bfloat16") is None
