"""The processes that train together: which one this is, and how they tell each other what the host must know.

`torchrun` starts them and says so by its environment variables; without it a process is alone.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from qkv.errors import QkvError
from qkv.train.parallel.layout import Layout

PATIENCE = timedelta(minutes=10)  # that ranks wait for each other before they give up
NETWORK = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")  # in what a broken link says


class World:
    """All ranks, before anything is shared out. A process that is alone has none to agree with."""

    def __init__(self, rank: int = 0, size: int = 1, local_rank: int = 0) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank
        # Host to host, and apart from what devices say to each other: the order of one never depends on the other.
        self.host = dist.new_group(backend="gloo", timeout=PATIENCE) if size > 1 else None

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes files and speaks to a person."""
        return self.rank == 0

    def agree(self, numbers: Sequence[float]) -> list[float]:
        """The sum over all ranks of each number; whole numbers up to 2⁵³ stay whole."""
        if self.size == 1:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64)
        with others_may_be_lost(self.rank, self.size):
            dist.all_reduce(sums, group=self.host)
        return sums.tolist()

    def from_first(self, content: bytes | None) -> bytes:
        """What rank 0 has, on every rank; only rank 0 needs to give it."""
        if self.size == 1:
            assert content is not None
            return content
        length = torch.tensor([len(content or b"")])
        with others_may_be_lost(self.rank, self.size):
            dist.broadcast(length, 0, group=self.host)
            held = torch.empty(int(length), dtype=torch.uint8)
            if self.first and content:
                held = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            if len(held):
                dist.broadcast(held, 0, group=self.host)
        return held.numpy().tobytes()

    def check_same(self, value: str, what: str) -> None:
        """Refuse to go on where ranks would begin with different things."""
        differs = self.from_first(value.encode() if self.first else None) != value.encode()
        if self.agree([float(differs)])[0]:
            raise QkvError(f"The ranks do not agree on {what}: start all of them with the same command and data.")

    def wait(self) -> None:
        """Until every rank is here."""
        self.agree([0.0])


@contextmanager
def others_may_be_lost(rank: int, size: int) -> Iterator[None]:
    """A rank whose neighbour died says so, in place of what its network said."""
    try:
        yield
    except RuntimeError as error:
        if size == 1 or not (isinstance(error, dist.DistError) or any(word in str(error) for word in NETWORK)):
            raise
        raise QkvError(
            f"Rank {rank} lost touch with another, which ended or cannot be reached: torchrun starts all of them "
            "again with --max-restarts, and the same command goes on with --resume."
        ) from error


@cache
def current_world() -> World:
    """The ranks this process was started with; they meet at the first call."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ:
        return World()
    rank, local_rank = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    with others_may_be_lost(rank, size):  # also while they meet
        if not dist.is_initialized():
            _meet(rank, size, local_rank)
        return World(rank, size, local_rank)


def _meet(rank: int, size: int, local_rank: int) -> None:
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(local_rank)
    # Ranks that were started again meet in the same place, where addresses of those before may still lie.
    place, _, _ = next(dist.rendezvous("env://", rank, size, timeout=PATIENCE))
    store = dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", place)
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)


class Meshes:
    """The ranks of a world in the order of a layout.

    Two views of the same ranks: `model` says who holds which part of the parameters, and there the ranks that read
    stretches of one row shard like any others; `rows` says who sees which rows, and which part of them.
    """

    def __init__(self, world: World, layout: Layout, device: torch.device) -> None:
        self.world, self.layout, self.device = world, layout, device
        kind = device.type
        self.model = init_device_mesh(
            kind,
            (layout.replicate, layout.shard * layout.context, layout.tensor),
            mesh_dim_names=("replicate", "shard", "tensor"),
        )
        self.rows = init_device_mesh(
            kind, (layout.data, layout.context, layout.tensor), mesh_dim_names=("data", "context", "tensor")
        )
        self.counted = self._counted_group()

    @property
    def data_rank(self) -> int:
        """Which of the `layout.data` parts of a batch is this rank's."""
        return self.rows.get_local_rank("data")

    @property
    def sharded(self) -> DeviceMesh:
        """Over which parameters are sharded, and in whole groups repeated."""
        return self.model["replicate", "shard"] if self.layout.replicate > 1 else self.model["shard"]

    @property
    def tensor(self) -> DeviceMesh | None:
        return self.model["tensor"] if self.layout.tensor > 1 else None

    @property
    def context(self) -> DeviceMesh | None:
        return self.rows["context"] if self.layout.context > 1 else None

    def _counted_group(self) -> dist.ProcessGroup:
        """The ranks that see different tokens, of which sums are made: one of each group of tensor ranks."""
        layout, mine = self.layout, dist.group.WORLD
        assert mine is not None, "the ranks have met"
        if layout.tensor == 1:
            return mine
        ranks = self.rows.mesh.view(-1, layout.tensor)  # [data·context tensor]
        groups = [dist.new_group(ranks[:, column].tolist(), timeout=PATIENCE) for column in range(layout.tensor)]
        mine = groups[self.rows.get_local_rank("tensor")]  # all ranks must ask for all groups
        assert mine is not None
        return mine

    def total(self, sums: Tensor) -> Tensor:
        """The sum over all tokens of the batch of what this rank summed over its own; on the device."""
        sums = sums.clone()
        dist.all_reduce(sums, group=self.counted)
        return sums
