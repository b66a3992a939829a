"""A checkpoint comes back exactly, is refused when a byte of it changed, and appears whole or not at all."""

import errno
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import qkv.train.checkpoint_folder as module
import qkv.train.parallel.stored_pieces as pieces_module
from qkv.errors import QkvError
from qkv.parts.linear import JoinedLinear
from qkv.train.checkpoint import Checkpoints
from qkv.train.optimizers import adam, adamw
from qkv.train.random_state import random_state
from tests.train.tiny import TinyModel, make_batch


def trained(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and an optimizer with state in every parameter."""
    model = TinyModel(seed)
    optimizer = adam(model)
    batch = make_batch(seed)
    model(batch.source, batch.source_lengths, batch.target).square().sum().backward()
    optimizer.step()
    return model, optimizer


def save(checkpoints: Checkpoints, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> Path:
    return checkpoints.save(step, model=model, optimizer=optimizer, random=random_state(), state={"note": step})


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints")


def test_what_was_saved_comes_back(checkpoints: Checkpoints) -> None:
    model, optimizer = trained()
    path = save(checkpoints, 1000, model, optimizer)
    assert path.name == "step-00001000"
    files = {"model.safetensors", "optimizer.safetensors", "random.json", "state.json"}
    assert {file.name for file in path.iterdir()} == files
    other, other_optimizer = trained(seed=5)
    checkpoint = checkpoints.read(1000)
    checkpoint.restore_model(other)
    checkpoint.restore_optimizer(other, other_optimizer)
    assert checkpoint.state == {"note": 1000}
    assert checkpoint.average is None
    assert other.out.weight is other.embedding.weight
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert all(torch.equal(optimizer.state[a][key], other_optimizer.state[b][key]) for key in optimizer.state[a])


def test_optimizer_state_is_saved_by_parameter_name(checkpoints: Checkpoints) -> None:
    model, optimizer = trained()
    save(checkpoints, 1, model, optimizer)
    state = checkpoints.read(1).optimizer
    assert set(state) == {
        f"{name}/{key}" for name, _ in model.named_parameters() for key in ("step", "exp_avg", "exp_avg_sq")
    }
    regrouped = adamw(model)  # two groups, another order
    checkpoints.read(1).restore_optimizer(model, regrouped)
    assert torch.equal(regrouped.state[model.mix.bias]["exp_avg"], state["mix.bias/exp_avg"])


def test_joined_matrices_are_saved_apart_and_joined_again(checkpoints: Checkpoints) -> None:
    first, second = (nn.Sequential(JoinedLinear(4, {"query": 3, "key": 3, "value": 2})) for _ in range(2))
    save(checkpoints, 1, first, adam(first))
    assert "0.query.weight" in checkpoints.read(1).model
    checkpoints.read(1).restore_model(second)
    assert torch.equal(first[0].weight, second[0].weight)


def test_state_before_the_first_step_is_empty_and_fine(checkpoints: Checkpoints) -> None:
    model = TinyModel()
    save(checkpoints, 0, model, adam(model))
    checkpoints.read(0).restore_optimizer(model, adam(model))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink], ids=["cut", "flipped", "missing"])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "random.json", "state.json"])
def test_any_damage_is_noticed_and_names_the_file(
    checkpoints: Checkpoints, damage: Callable[[Path], None], name: str
) -> None:
    file = save(checkpoints, 7, *trained()) / name
    damage(file)
    with pytest.raises(QkvError) as caught:
        checkpoints.read(7)
    assert str(file) in str(caught.value)


def test_an_edited_state_is_noticed_even_if_it_is_whole_json(checkpoints: Checkpoints) -> None:
    file = save(checkpoints, 7, *trained()) / "state.json"
    content = json.loads(file.read_text())
    content["state"]["note"] = 8
    file.write_text(json.dumps(content))
    with pytest.raises(QkvError, match=r"state\.json was edited"):
        checkpoints.read(7)
    file.write_text('{"format": "something else"}')
    with pytest.raises(QkvError, match="not the state of a qkv-checkpoint-2"):
        checkpoints.read(7)


def test_a_checkpoint_moved_to_another_step_is_noticed(checkpoints: Checkpoints) -> None:
    save(checkpoints, 7, *trained()).rename(checkpoints.path(9))
    with pytest.raises(QkvError, match="checksum"):
        checkpoints.read(9)


def test_another_model_is_refused_by_name(checkpoints: Checkpoints) -> None:
    save(checkpoints, 7, *trained())
    with pytest.raises(QkvError, match=r"model\.safetensors lacks the tensor"):
        checkpoints.read(7).restore_model(nn.Linear(2, 2))
    wider = TinyModel()
    wider.norm = nn.LayerNorm(9)
    with pytest.raises(QkvError, match=r"norm\.\w+ with shape \[8\], but this model has \[9\]"):
        checkpoints.read(7).restore_model(wider)
    smaller = nn.Module()
    smaller.mix = nn.Linear(16, 8)
    with pytest.raises(QkvError, match="belongs to no parameter"):
        checkpoints.read(7).restore_optimizer(smaller, adam(smaller))


def test_the_newest_whole_one_is_used_and_the_damaged_set_aside(checkpoints: Checkpoints) -> None:
    for step in (1, 2, 3):
        save(checkpoints, step, *trained())
    cut(checkpoints.path(3) / "model.safetensors")
    (checkpoints.path(2) / "state.json").unlink()
    said: list[str] = []
    newest = checkpoints.read_newest(said.append)
    assert newest is not None
    assert newest.step == 1
    assert len(said) == 2
    assert str(checkpoints.path(3) / "model.safetensors") in said[0]
    assert "Going on from step-00000001" in said[0]
    assert checkpoints.steps() == [1]
    assert (checkpoints.folder / "step-00000003.damaged").is_dir()


def test_no_checkpoint_is_none_and_only_damaged_ones_are_an_error(checkpoints: Checkpoints) -> None:
    assert checkpoints.read_newest(print) is None
    cut(save(checkpoints, 4, *trained()) / "random.json")
    with pytest.raises(QkvError, match=r"is whole.*random\.json"):
        checkpoints.read_newest(print)
    assert checkpoints.steps() == [4]  # nothing was moved when there is nothing to go on from


def test_retention_keeps_the_newest_and_the_best(checkpoints: Checkpoints) -> None:
    model, optimizer = trained()
    for step in (1, 2, 3, 4, 5):
        save(checkpoints, step, model, optimizer)
    checkpoints.retain(2, best=2)
    assert checkpoints.steps() == [2, 4, 5]
    checkpoints.retain(2, best=None)
    assert checkpoints.steps() == [4, 5]


def test_retention_keeps_those_of_every_so_many_steps(checkpoints: Checkpoints) -> None:
    model, optimizer = trained()
    for step in range(1, 9):
        save(checkpoints, step, model, optimizer)
    checkpoints.retain(1, best=1, every=3)
    assert checkpoints.steps() == [1, 3, 6, 8]
    checkpoints.forget_after(3)
    assert checkpoints.steps() == [1, 3]


def test_a_checkpoint_out_of_turn_is_the_newest_until_the_next(checkpoints: Checkpoints) -> None:
    model, optimizer = trained()
    for step in (2, 4, 6, 7):
        save(checkpoints, step, model, optimizer)
    checkpoints.retain(2, best=None, regular=2)
    assert checkpoints.steps() == [6, 7]
    save(checkpoints, 8, model, optimizer)
    checkpoints.retain(2, best=None, regular=2)
    assert checkpoints.steps() == [6, 8]


def test_a_crash_while_one_is_deleted_leaves_no_torn_one(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = trained()
    for step in (1, 2, 3):
        save(checkpoints, step, model, optimizer)

    class PowerCut(Exception):
        pass

    def half(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        raise PowerCut

    monkeypatch.setattr(module.shutil, "rmtree", half)
    with pytest.raises(PowerCut):
        checkpoints.retain(1, best=None)
    monkeypatch.undo()
    assert checkpoints.steps() == [2, 3]
    said: list[str] = []
    newest = checkpoints.read_newest(said.append)
    assert newest is not None
    assert (newest.step, said) == (3, [])
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step-00000002", "step-00000003"]


def test_the_newest_up_to_a_step_passes_over_damaged_ones(checkpoints: Checkpoints) -> None:
    for step in (1, 2, 3):
        save(checkpoints, step, *trained())
    flip(checkpoints.path(2) / "model.safetensors")
    found = checkpoints.read_up_to(2, regular=1)
    assert found is not None
    assert found.step == 1
    assert checkpoints.read_up_to(0, regular=1) is None
    assert checkpoints.read_up_to(3, regular=4) is None


def test_saving_the_same_step_again_replaces_it(checkpoints: Checkpoints) -> None:
    save(checkpoints, 3, *trained(seed=0))
    model, optimizer = trained(seed=1)
    save(checkpoints, 3, model, optimizer)
    assert torch.equal(checkpoints.read(3).model["mix.bias"], model.mix.bias)
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-00000003"]


def test_a_crash_in_the_middle_is_tidied_up(checkpoints: Checkpoints) -> None:
    path = save(checkpoints, 3, *trained())
    shutil.copytree(path, checkpoints.folder / ".step-00000004.partial")
    path.rename(checkpoints.folder / ".step-00000003.replaced")  # it stopped between the two renames
    newest = checkpoints.read_newest(print)
    assert newest is not None
    assert newest.step == 3
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-00000003"]


@pytest.mark.parametrize(
    "place",
    [(pieces_module, "write_tensors"), (pieces_module, "write_json"), (module, "write_json"), (module, "sync_folder")],
    ids=["tensors", "random", "state", "folder"],
)
def test_a_disk_that_fills_up_leaves_the_last_checkpoint_and_no_rest(
    checkpoints: Checkpoints, place: tuple[ModuleType, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(checkpoints, 1, *trained())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*place, full)
    with pytest.raises(
        QkvError, match=r"step-00000002 could not be written \(No space left on device\).*step-00000001"
    ):
        save(checkpoints, 2, *trained())
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-00000001"]
    assert checkpoints.read(1).step == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB, where the system lets us make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs leave to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    checkpoints = Checkpoints(small_disk / "checkpoints")
    save(checkpoints, 1, *trained())
    large = nn.Linear(150, 150)
    with pytest.raises(QkvError, match=r"No space left on device.*step-00000001, is intact"):
        save(checkpoints, 2, large, adam(large))
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-00000001"]
    assert checkpoints.read(1).step == 1
