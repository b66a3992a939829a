"""Ranks find each other, agree, and stand where the layout says."""

import pytest
import torch
import torch.distributed as dist

from qkv.errors import QkvError
from qkv.train.parallel.layout import Layout
from qkv.train.parallel.world import Meshes, World, current_world
from tests.train.parallel.ranks import run_ranks


def test_a_layout_is_spelled_and_fitted_to_the_ranks() -> None:
    layout = Layout.parse("tensor:2, context:2").fitted(8)
    assert (layout.replicate, layout.shard, layout.context, layout.tensor, layout.data) == (1, 2, 2, 2, 2)
    assert layout.ranks == 8
    assert str(layout) == "shard:2,context:2,tensor:2"
    assert Layout.parse(str(layout)).fitted(8) == layout
    assert Layout.parse("").fitted(1) == Layout(shard=1)


@pytest.mark.parametrize(
    ("spelled", "ranks", "said"),
    [
        ("tensr:2", 2, "did you mean tensor"),
        ("tensor", 2, "how many ranks"),
        ("tensor:x", 2, "how many ranks"),
        ("tensor:2,tensor:2", 2, "twice"),
        ("tensor:0", 2, "1 rank or more for tensor"),
        ("tensor:3", 4, "4 ranks cannot be laid out"),
        ("shard:2", 4, "start 2, or change the layout"),
        ("expert:3", 4, "a multiple of as many"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(spelled: str, ranks: int, said: str) -> None:
    with pytest.raises(QkvError, match=said):
        Layout.parse(spelled).fitted(ranks)


def test_a_process_alone_agrees_with_itself() -> None:
    world = World()
    assert world.agree([2.5, 7]) == [2.5, 7]
    assert world.from_first(b"word") == b"word"
    world.check_same("a", "the data")


def test_a_rank_that_is_lost_while_others_agree_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a training begins, too: on what a recipe chose, or a tokenizer."""

    def lost(*_: object, **__: object) -> None:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer")

    monkeypatch.setattr(dist, "new_group", lambda **_: None)
    world = World(rank=1, size=2)
    for name in ("all_reduce", "broadcast"):
        monkeypatch.setattr(dist, name, lost)
    for agree in (lambda: world.agree([1.0]), lambda: world.from_first(None), world.wait):
        with pytest.raises(QkvError, match="Rank 1 lost touch with another"):
            agree()


def met() -> tuple[object, ...]:
    world = current_world()
    told = world.from_first("für alle".encode() if world.first else None)
    empty = world.from_first(b"" if world.first else None)
    try:
        world.check_same(f"rank {world.rank // 2}", "their numbers")
        complaint = ""
    except QkvError as error:
        complaint = str(error)
    world.check_same("one", "this")
    meshes = Meshes(world, Layout.parse("tensor:2").fitted(4), torch.device("cpu"))
    total = meshes.total(torch.tensor([float(10**meshes.data_rank)]))
    return world.agree([world.rank, 2.0**50]), told.decode(), empty, complaint, meshes.data_rank, float(total)


def test_ranks_agree_and_stand_where_the_layout_says() -> None:
    for rank, (sums, told, empty, complaint, data_rank, total) in enumerate(run_ranks(4, met)):
        assert sums == [6, 2.0**52]
        assert told == "für alle"
        assert empty == b""
        assert "do not agree on their numbers" in complaint
        assert data_rank == rank // 2
        assert total == 11, "each token is counted once, though two ranks hold it"
