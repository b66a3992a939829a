"""What ranks save together any number of ranks reads back to the bit; what goes wrong on one is told to all."""

import os
import resource
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

import qkv.train.parallel.distributed_save as saving
from qkv.errors import QkvError
from qkv.train.average import average_checkpoints, average_into
from qkv.train.checkpoint import Checkpoints
from qkv.train.checkpoint_folder import CheckpointFolder
from qkv.train.parallel.pieces import pieces_of, state_pieces
from qkv.train.parallel.whole import whole_tensors
from qkv.weights.save import tensors_of
from tests.train.parallel.ranks import run_ranks
from tests.train.parallel.trained import IDS, KINDS, Trained, check_bits, everything
from tests.train.test_checkpoint import flip


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
        whole = dict(whole_tensors(trained.model, trained.team.world))
        if trained.team.world.first:
            check_bits(whole, dict(newest.model))  # type: ignore[arg-type]
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


@dataclass(frozen=True)
class OnTwo:
    """What two ranks told, who did one thing after the other: it takes long to start them."""

    folder: Path
    first: dict[str, dict[str, Tensor]]  # what one process had saved before, by kind
    told: list[dict[str, Any]]  # of each rank


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> OnTwo:
    folder, first = tmp_path_factory.mktemp("two"), {}
    for name in KINDS:
        trained = Trained(folder / name, name=name)
        trained.step()
        trained.step()
        trained.save(1)
        first[name] = everything(trained.checkpoints.read(1))
    return OnTwo(folder, first, run_ranks(2, on_two_ranks, str(folder)))


def on_two_ranks(folder: str) -> dict[str, Any]:
    ways = [("gpt", ""), ("gpt", "tensor:2"), ("gpt", "tensor:2")]
    return {
        "drawn": pass_on(folder, ways),
        "changed": changed_while_written(f"{folder}/changed"),
        "seen": seen_inside(),
        "damaged": damaged(f"{folder}/damaged"),
        "full": full_disk(f"{folder}/full"),
    }


def test_one_two_four_and_one_again_to_the_bit(two: OnTwo) -> None:
    """FSDP, replicas of it, tensor ranks under it, experts on their own ranks: all read what the one before wrote."""
    ways = [("gpt", "tensor:2"), ("gpt", "replicate:2"), ("experts", ""), ("experts", "expert:2")]
    run_ranks(4, pass_on, str(two.folder), ways)
    for name in KINDS:
        alone = Trained(two.folder / name, name=name)
        newest = alone.checkpoints.read_newest(print)
        assert newest is not None
        assert newest.state == {"note": newest.step, "rank": 0}
        assert len(alone.checkpoints.steps()) == 3, "the newest two and the first: what is too old goes in the end"
        check_bits(everything(newest), two.first[name])
        alone.restore(newest)
        alone.save(99)
        path = alone.checkpoints.path(99)
        assert {file.name for file in path.iterdir()} == {
            "model.safetensors", "optimizer.safetensors", "average.safetensors", "random.json", "state.json",
        }  # fmt: skip
        check_bits(everything(alone.checkpoints.read(99)), two.first[name])
        check_bits(average_checkpoints([alone.checkpoints.path(1), path]), dict(tensors_of(alone.model)))


def test_random_numbers_go_on_where_the_same_ranks_do_and_begin_anew_elsewhere(two: OnTwo) -> None:
    (sharded, tensors, again), (other_sharded, other_tensors, other_again) = (told["drawn"] for told in two.told)
    assert (sharded[0], tensors[0], again[0]) == (True, True, False), "other ranks, other streams, the same of both"
    assert sharded[1] != other_sharded[1], "ranks that see different rows draw different numbers"
    assert tensors == other_tensors, "and those that see the same, the same"
    assert again == other_again


def test_what_is_saved_is_what_was_there_then(two: OnTwo) -> None:
    """Weights change as soon as `save` returns, and nothing has been written yet."""
    checkpoints = Checkpoints(two.folder / "changed")
    saved = checkpoints.read(1)
    expected = two.told[0]["changed"]
    check_bits(dict(saved.model), expected["model"])
    assert {file.name for file in saved.folder.iterdir()} == {
        f"{kind}-0000{rank}.{ending}"
        for rank in range(2)
        for kind, ending in [("model", "safetensors"), ("optimizer", "safetensors"), ("average", "safetensors"),
                             ("random", "json")]
    } | {"state.json"}  # fmt: skip
    check_bits(average_checkpoints([checkpoints.path(1), checkpoints.path(2)]), expected["mean"])


def changed_while_written(folder: str) -> dict[str, Any]:
    """What the first rank has of the model before it changed, and of the mean of two checkpoints."""
    trained = Trained(Path(folder))
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
    assert not list(Path(folder).glob("step-*"))
    changed.set()
    trained.save(2)  # which waits for the first
    second = dict(whole_tensors(trained.model, trained.team.world))
    assert trained.checkpoints.steps() == [1, 2]
    mean = pieces_of(trained.model)
    average_into(mean, [trained.checkpoints.read(step).model for step in (1, 2)])
    averaged = dict(whole_tensors(trained.model, trained.team.world))
    first = trained.checkpoints.read(1)
    saving.write_share = write
    again = Trained(Path(folder))
    first.restore_optimizer(again.model, again.optimizer)
    check_bits({piece.key: piece.tensor for piece in state_pieces(again.model, again.optimizer)}, state)
    if trained.team.world.first:
        assert any(not torch.equal(before[name], second[name]) for name in before)  # type: ignore[arg-type]
    return {"model": before, "mean": averaged}


def test_an_average_is_seen_by_the_next_pass_and_leaves_no_trace(two: OnTwo) -> None:
    """FSDP keeps whole what belongs to no block after a pass without gradients: that must not be used again."""
    alone = seen_inside()
    for told in two.told:
        for found, expected in zip(told["seen"], alone, strict=True):
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


def test_a_damaged_file_of_one_rank_is_named_and_all_take_the_newest_whole_one(two: OnTwo) -> None:
    first, second = (told["damaged"] for told in two.told)
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


def test_a_disk_that_takes_no_more_of_one_rank_is_told_by_all(two: OnTwo) -> None:
    for complaint, unshaped, steps in (told["full"] for told in two.told):
        assert "step-00000002 could not be written (rank 1: " in complaint
        assert "File too large" in complaint
        assert "the last one, step-00000001, is intact" in complaint
        assert "is not shaped like the parameter" in unshaped
        assert steps == [1, 3]
    assert sorted(file.name for file in (two.folder / "full").iterdir()) == ["step-00000001", "step-00000003"]


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
