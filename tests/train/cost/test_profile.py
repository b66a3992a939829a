"""A measured device as a file, and what it answers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qkv.errors import QkvError
from qkv.train.cost import profile as profiles
from qkv.train.cost.measure import TINY, measure_device
from qkv.train.cost.operators import KINDS_OF_TRAFFIC, Product, Work, as_tuple
from qkv.train.cost.profile import DeviceProfile, find_profile, known_devices, own_profiles, shipped, short_name


@pytest.fixture(scope="module")
def profile() -> DeviceProfile:
    return measure_device(torch.device("cpu"), TINY)


def product(m: int, n: int, k: int) -> Work:
    shape = Product("float32", "nn", 1, m, n, k, True)
    return Work("product", "mm", 2 * m * n * k, 4 * (m * k + k * n + m * n), as_tuple(shape))


def test_a_profile_survives_its_file(profile: DeviceProfile, tmp_path: Path) -> None:
    profile.save(tmp_path / "here.json")
    assert DeviceProfile.load(tmp_path / "here.json") == profile
    told = json.loads((tmp_path / "here.json").read_text())
    before = {name: value for name, value in told.items() if name not in ("generation", "sustained")}
    (tmp_path / "before.json").write_text(json.dumps(before))
    assert DeviceProfile.load(tmp_path / "before.json") == profile  # which is of no GPU, as files from before say
    for other in ({}, {**before, "sustained": 1.09}):
        (tmp_path / "other.json").write_text(json.dumps(other))
        with pytest.raises(QkvError, match="not a measured device"):
            DeviceProfile.load(tmp_path / "other.json")


def test_own_profiles_are_found_by_name(
    profile: DeviceProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    monkeypatch.setattr(profiles, "device_name", lambda place: "Abacus 9000")
    assert find_profile("cpu") is None
    replace(profile, name="Abacus 9000").save(own_profiles() / "abacus-9000.json")
    found = find_profile("cpu")
    assert found is not None
    assert found.name == "Abacus 9000"
    assert "abacus-9000" in known_devices()
    assert find_profile("abacus-9000") == found


def test_profiles_that_cannot_be_looked_for_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", closed)  # as a folder that cannot be searched answers in Python 3.11
    monkeypatch.setattr(Path, "is_file", closed)
    assert find_profile("cpu") is None


def test_products_take_longer_in_the_long_run_and_nothing_else_does(profile: DeviceProfile) -> None:
    held, large, moved = (
        replace(profile, sustained={"float32": 1.25, "bfloat16": 2.0}),
        product(4096, 4096, 4096),
        Work("pointwise", "add", 0, 1 << 30),
    )
    assert held.seconds(large) == pytest.approx(1.25 * profile.seconds(large))
    assert held.seconds(moved) == profile.seconds(moved)


def test_names_are_short() -> None:
    assert short_name("NVIDIA H200") == "h200"
    assert short_name("NVIDIA GeForce RTX 4090") == "geforce-rtx-4090"


def test_measured_points_are_read_back_and_larger_ones_take_longer(profile: DeviceProfile) -> None:
    for dtype, layout, batch, m, n, k, aligned, seconds in profile.products[:8]:
        work = Work("product", "mm", 2 * batch * m * n * k, 1, (dtype, layout, batch, m, n, k, aligned))
        assert profile.seconds(work) == pytest.approx(max(seconds, profile.launch, profile.traffic["copy"][0][1]))
    assert profile.seconds(product(4096, 4096, 4096)) > profile.seconds(product(1024, 1024, 1024))


def test_every_kind_of_work_has_a_time(profile: DeviceProfile) -> None:
    for kind in KINDS_OF_TRAFFIC:
        assert profile.seconds(Work(kind, "some", 0, 1 << 20)) >= profile.launch
    assert profile.seconds(Work("nothing", "view", 0, 0)) == 0


def test_what_is_shipped_can_be_read() -> None:
    for name, file in shipped().items():
        found = DeviceProfile.load(file)
        assert short_name(found.name) == name
        assert found.kind == "cuda"
        assert found.peak("bfloat16") > found.peak("float32") > 0
