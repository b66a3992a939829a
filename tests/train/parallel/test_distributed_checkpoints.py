"""What ranks save together any number of ranks reads back to the bit; what goes wrong on one is told to all."""

import os
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

import qkv.train.parallel.distributed_save as saving
from qkv.errors import QkvError
from qkv.train.average import MovingAverage, average_checkpoints, average_into
from qkv.train.checkpoint import Checkpoint, Checkpoints
from qkv.train.checkpoint_folder import CheckpointFolder
from qkv.train.objectives.language import LanguageLoss
from qkv.train.optimizers import adamw, lion
from qkv.train.parallel.pieces import pieces_of, state_pieces
from qkv.train.parallel.team import Team, team_of
from qkv.train.parallel.whole import whole_tensors
from qkv.train.parallel.world import current_world
from qkv.train.random_state import random_state
from qkv.train.settings import TrainSettings
from qkv.weights.save import tensors_of
from tests.train.parallel.ranks import run_ranks
from tests.train.parallel.steps import language_model

IDS = torch.arange(24).view(2, 12)


class Trained:
    """A small model and its optimizer, alone or shared out, with a moving average; all the same on all ranks."""

    def __init__(self, folder: Path, parallel: str = "", name: str = "gpt") -> None:
        make, optimizer = KINDS[name]
        self.model = make()
        settings = TrainSettings(steps=1, device="cpu", parallel=parallel)
        self.team: Team = team_of(current_world(), self.model, LanguageLoss(), settings)
        self.optimizer = optimizer(self.model, learning_rate=0.01)
        self.moving = MovingAverage(self.model, 0.75)
        self.checkpoints = Checkpoints(folder, self.team.world, self.team.stream)

    def step(self) -> None:
        self.team.inside(lambda: self.model(IDS).square().sum()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.moving.update()

    def save(self, step: int) -> Path:
        return self.checkpoints.save(
            step,
            model=self.model,
            optimizer=self.optimizer,
            average=self.moving.tensors,
            random=random_state(),
            state={"note": step, "rank": self.team.world.rank},
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        checkpoint.restore_model(self.model)
        checkpoint.restore_optimizer(self.model, self.optimizer)
        checkpoint.restore_average(self.model, self.moving.tensors)
        checkpoint.restore_random(seed=1, stream=self.team.stream)


def gpt() -> nn.Module:
    """Rows that ranks do not share evenly: 37 of embeddings, and 21 of each of two tensor ranks; tied."""
    return language_model(hidden=42)


def with_experts() -> nn.Module:
    return language_model(experts=4)


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[..., torch.optim.Optimizer]]] = {
    "gpt": (gpt, adamw),
    "experts": (with_experts, lion),
}


def everything(checkpoint: Checkpoint) -> dict[str, Tensor]:
    kinds = {"model": checkpoint.model, "optimizer": checkpoint.optimizer, "average": checkpoint.average or {}}
    return {f"{kind}/{name}": tensor for kind, held in kinds.items() for name, tensor in held.items()}


def check_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(found[name], tensor), name


def pass_on(folder: str, ways: list[tuple[str, str]]) -> list[tuple[bool, float]]:
    """Read the newest and save it again as the next, by each layout; (whether all draw anew, the next draw) of each."""
    drawn = []
    for name, parallel in ways:
        trained = Trained(Path(folder) / name, parallel, name)
        with torch.no_grad():
            for parameter in trained.model.parameters():  # so that what is not read shows
                parameter.zero_()
        newest = trained.checkpoints.read_newest(print)
        assert newest is not None
        trained.restore(newest)
        drawn.append((newest.random is None, float(torch.rand(()))))
        check_places(trained.model)
        trained.save(newest.step + 1)
        trained.checkpoints.retain(2, best=1)
        trained.checkpoints.wait()
    return drawn


def check_places(model: nn.Module) -> None:
    """Where a rank's part begins is where torch says, as far as torch is right: where all ranks have as much."""
    starts = {piece.name: piece.start for piece in pieces_of(model)}
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor) and name in starts and parameter.to_local().numel():
            mesh, placements = parameter.device_mesh, parameter.placements
            _, start = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
            assert starts[name] == start, name


def test_one_two_four_and_one_again_to_the_bit(tmp_path: Path) -> None:
    """FSDP, replicas of it, tensor ranks under it, experts on their own ranks: all read what the one before wrote."""
    first = {}
    for name in KINDS:
        trained = Trained(tmp_path / name, name=name)
        trained.step()
        trained.step()
        torch.manual_seed(7)
        trained.save(1)
        first[name] = everything(trained.checkpoints.read(1))
    on_two = run_ranks(2, pass_on, str(tmp_path), [("gpt", ""), ("gpt", "tensor:2"), ("gpt", "tensor:2")])
    ways = [("gpt", "tensor:2"), ("gpt", "replicate:2"), ("experts", ""), ("experts", "expert:2")]
    run_ranks(4, pass_on, str(tmp_path), ways)
    for name in KINDS:
        alone = Trained(tmp_path / name, name=name)
        newest = alone.checkpoints.read_newest(print)
        assert newest is not None
        assert newest.state == {"note": newest.step, "rank": 0}
        assert len(alone.checkpoints.steps()) == 3, "the newest two and the first: what is too old goes in the end"
        check_bits(everything(newest), first[name])
        alone.restore(newest)
        alone.save(99)
        path = alone.checkpoints.path(99)
        assert {file.name for file in path.iterdir()} == {
            "model.safetensors", "optimizer.safetensors", "average.safetensors", "random.json", "state.json",
        }  # fmt: skip
        check_bits(everything(alone.checkpoints.read(99)), first[name])
        check_bits(average_checkpoints([alone.checkpoints.path(1), path]), dict(tensors_of(alone.model)))
    (sharded, tensors, again), (other_sharded, other_tensors, other_again) = on_two
    assert (sharded[0], tensors[0], again[0]) == (True, True, False), "other ranks, other streams, the same of both"
    assert sharded[1] != other_sharded[1], "ranks that see different rows draw different numbers"
    assert tensors == other_tensors, "and those that see the same, the same"
    assert again == other_again


def test_what_is_saved_is_what_was_there_then(tmp_path: Path) -> None:
    """Weights change as soon as `save` returns, and nothing has been written yet."""
    for told in run_ranks(2, changed_while_written, str(tmp_path)):
        assert told == "waited"
    checkpoints = Checkpoints(tmp_path / "run")
    saved = checkpoints.read(1)
    expected = torch.load(tmp_path / "expected.pt")
    check_bits(dict(saved.model), expected["model"])
    check_bits(dict(saved.optimizer), expected["optimizer"])
    assert {file.name for file in saved.folder.iterdir()} == {
        f"{kind}-0000{rank}.{ending}"
        for rank in range(2)
        for kind, ending in [("model", "safetensors"), ("optimizer", "safetensors"), ("average", "safetensors"),
                             ("random", "json")]
    } | {"state.json"}  # fmt: skip
    check_bits(average_checkpoints([checkpoints.path(1), checkpoints.path(2)]), expected["mean"])


def changed_while_written(folder: str) -> str:
    trained = Trained(Path(folder) / "run")
    trained.step()
    changed = threading.Event()
    write = saving.write_share

    def late(*arguments: Any) -> dict[str, str]:
        assert changed.wait(60)
        return write(*arguments)

    saving.write_share = late  # type: ignore[assignment]
    before = dict(whole_tensors(trained.model, trained.team.world))
    state = {piece.key: piece.tensor.clone() for piece in state_pieces(trained.model, trained.optimizer)}
    trained.save(1)
    trained.step()
    assert not list((Path(folder) / "run").glob("step-*"))
    changed.set()
    trained.save(2)  # which waits for the first
    second = dict(whole_tensors(trained.model, trained.team.world))
    assert trained.checkpoints.steps() == [1, 2]
    mean = pieces_of(trained.model)
    average_into(mean, [trained.checkpoints.read(step).model for step in (1, 2)])
    averaged = dict(whole_tensors(trained.model, trained.team.world))
    first = trained.checkpoints.read(1)
    again = Trained(Path(folder) / "run")
    first.restore_optimizer(again.model, again.optimizer)
    check_bits({piece.key: piece.tensor for piece in state_pieces(again.model, again.optimizer)}, state)
    if trained.team.world.first:
        assert any(not torch.equal(before[name], second[name]) for name in before)  # type: ignore[arg-type]
        torch.save(
            {"model": before, "mean": averaged, "optimizer": dict(first.optimizer)}, Path(folder) / "expected.pt"
        )
    return "waited"


def test_an_average_is_seen_by_the_next_pass_and_leaves_no_trace() -> None:
    """FSDP keeps whole what belongs to no block after a pass without gradients: that must not be used again."""
    alone = seen_inside()
    for answers in run_ranks(2, seen_inside):
        for found, expected in zip(answers, alone, strict=True):
            torch.testing.assert_close(found, expected)
    assert not torch.equal(alone[0], alone[1])
    assert torch.equal(alone[0], alone[2])


def seen_inside() -> list[Tensor]:
    trained = Trained(Path("nowhere"))
    with torch.no_grad():
        for tensor in trained.moving.tensors.values():
            tensor.mul_(0.5)
        answers = [trained.team.inside(lambda: trained.model(IDS))]
        with trained.moving.inside():
            answers.append(trained.team.inside(lambda: trained.model(IDS)))
        answers.append(trained.team.inside(lambda: trained.model(IDS)))
    return answers


def test_a_damaged_file_of_one_rank_is_named_and_all_take_the_newest_whole_one(tmp_path: Path) -> None:
    first, second = run_ranks(2, damaged, str(tmp_path))
    assert first[0] == second[0] == 1
    assert second[1] == [], "one rank speaks"
    assert len(first[1]) == 2
    assert "model-00001.safetensors was cut short, edited or damaged" in first[1][0]
    assert "random-00000.json is missing" in first[1][1]
    assert first[2] == second[2] == [1]
    assert first[3] == second[3]
    assert "model-00000.safetensors was cut short" in first[3]


def damaged(folder: str) -> tuple[int, list[str], list[int], str]:
    trained = Trained(Path(folder))
    trained.step()
    for step in (1, 2, 3):
        trained.save(step)
    trained.checkpoints.wait()
    if trained.team.world.first:
        flip(trained.checkpoints.path(3) / "model-00001.safetensors")
        (trained.checkpoints.path(2) / "random-00000.json").unlink()
    trained.team.world.wait()
    said: list[str] = []
    newest = trained.checkpoints.read_newest(said.append)
    assert newest is not None
    trained.restore(newest)
    steps = trained.checkpoints.steps()
    if trained.team.world.first:
        flip(trained.checkpoints.path(1) / "model-00000.safetensors")
    trained.team.world.wait()
    with pytest.raises(QkvError) as caught:
        trained.checkpoints.read_newest(said.append)
    return newest.step, said, steps, str(caught.value)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))


def test_a_disk_that_takes_no_more_of_one_rank_is_told_by_all(tmp_path: Path) -> None:
    for complaint, unshaped, steps in run_ranks(2, full_disk, str(tmp_path)):
        assert "step-00000002 could not be written (rank 1: " in complaint
        assert "File too large" in complaint
        assert "the last one, step-00000001, is intact" in complaint
        assert "is not shaped like the parameter" in unshaped
        assert steps == [1, 3]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


def full_disk(folder: str) -> tuple[str, str, list[int]]:
    trained = Trained(Path(folder))
    trained.step()
    trained.save(1)
    trained.checkpoints.wait()
    if not trained.team.world.first:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    trained.save(2)
    with pytest.raises(QkvError) as full:
        trained.checkpoints.steps()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    trained.save(3)
    steps = trained.checkpoints.steps()
    trained.optimizer.state[next(trained.model.parameters())]["exp_avg"] = torch.zeros(3)
    with pytest.raises(QkvError) as unshaped:
        trained.save(4)
    return str(full.value), str(unshaped.value), steps


@pytest.mark.parametrize("moment", ["a rank writes", "before the name"])
def test_a_rank_killed_in_a_save_leaves_whole_checkpoints_only(tmp_path: Path, moment: str) -> None:
    with pytest.raises(pytest.fail.Exception):
        run_ranks(2, killed, str(tmp_path / "run"), moment)
    assert list((tmp_path / "run").glob(".step-00000002.partial/*")), "it was killed in the middle"
    checkpoints = Checkpoints(tmp_path / "run")
    assert checkpoints.steps() == [1]
    newest = checkpoints.read_newest(pytest.fail)
    assert newest is not None
    assert newest.step == 1
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["step-00000001"]
    told = (tmp_path / "told.txt").read_text()
    assert "step-00000002 could not be written (another rank ended or cannot be reached); the last one, " in told
    assert "step-00000001, is intact. Resume the run." in told


def killed(folder: str, moment: str) -> None:
    trained = Trained(Path(folder))
    trained.save(1)
    trained.checkpoints.wait()
    first = trained.team.world.first
    if moment == "a rank writes" and not first:
        write = saving.write_share

        def half(*arguments: Any) -> dict[str, str]:
            write(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
            return {}

        saving.write_share = half  # type: ignore[assignment]
    if moment == "before the name" and first:
        CheckpointFolder.commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    trained.save(2)
    if first:
        CheckpointFolder.recover = lambda _: None  # type: ignore[method-assign]
    try:
        trained.checkpoints.wait()
    except QkvError as error:
        (Path(folder).parent / "told.txt").write_text(str(error))
        raise
