"""A checkpoint of many ranks, written by torch.distributed.checkpoint while training goes on.

Torch brings the ranks together and sees to it that an error of one is told to all. What is written is ours: each rank
copies its pieces to the host, the first decides who writes those that several hold, each writes its files, and the
first puts their checksums and the name of the checkpoint where they belong. Nothing is pickled into a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult

from qkv.files import WRITE_ERRORS
from qkv.train.parallel.pieces import Piece
from qkv.train.parallel.stored_pieces import write_share

Answer = TypeVar("Answer")
FAILED = "failed"  # in place of the tensors of a rank that could not copy them


class NotWritten(Exception):
    """Why a rank could not do its part, in words: other ranks are told of it, and not every error can be sent."""


@dataclass(frozen=True)
class Job:
    """What the first rank does around the writing: make the folder, and put in place what all have written."""

    folder: Path
    begin: Callable[[], None]
    commit: Callable[[dict[str, str]], None]


class DistributedSaver:
    """Saves one checkpoint at a time; all ranks make one, and call it together."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        # Ranks talk about a checkpoint from a thread of its own, so in a group of its own.
        self.group = dist.new_group(backend="gloo")
        self.stager = _ToHost()

    def start(self, job: Job, tensors: Mapping[str, Sequence[Piece]], random: Mapping[str, Any]) -> Future[Any]:
        """Copy to the host, then write in a thread. The weights may change as soon as this returns."""
        answer = dcp.async_save(
            dict(tensors),
            storage_writer=_Writer(job, f"-{self.rank:05d}", tensors, random),
            planner=_Planner(),
            process_group=self.group,
            async_stager=self.stager,
        )
        return cast("Future[Any]", answer)


def told(error: BaseException) -> bool:
    """Whether all ranks were told why a save failed; otherwise one of them is gone."""
    return isinstance(error, dcp.CheckpointException)


def why(error: BaseException) -> str:
    """Why a save failed, in words; the same on all ranks that were told."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, dcp.CheckpointException):
        rank, (cause, _) = min(error.failures.items())
        return f"rank {rank}: {why(cause)}"
    return str(error) or type(error).__name__


class _ToHost(AsyncStager):
    """Copies pieces to memory of the host, which is kept for the next time."""

    _synchronize_after_execute = False  # it is done when `stage` returns

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Tensor] = {}

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        try:
            kept = {
                (kind, piece.key): self._place(kind, piece) for kind, pieces in state_dict.items() for piece in pieces
            }
            staged = {
                kind: [replace(piece, tensor=kept[kind, piece.key]) for piece in pieces]
                for kind, pieces in state_dict.items()
            }
            self._kept = kept
            if torch.cuda.is_available():
                torch.cuda.current_stream().synchronize()
        except (RuntimeError, MemoryError) as error:  # others are on their way already: they must hear of it
            return {FAILED: why(error)}
        return staged

    def _place(self, kind: str, piece: Piece) -> Tensor:
        own, before = piece.tensor, self._kept.get((kind, piece.key))
        if before is None or (before.shape, before.dtype) != (own.shape, own.dtype):
            before = torch.empty(own.shape, dtype=own.dtype, pin_memory=own.is_cuda)
        return before.copy_(own, non_blocking=True)

    def synchronize_staging(self) -> None:
        """There is nothing to wait for."""

    def close(self) -> None:
        self._kept = {}


class _Planner(SavePlanner):
    """Which rank writes which piece: of those that hold the same, the one that has the least to write so far."""

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        if FAILED in state_dict:
            raise NotWritten(state_dict[FAILED])
        self.pieces = {
            MetadataIndex(f"{kind}/{piece.name}", piece.start): piece
            for kind, pieces in state_dict.items()
            for piece in pieces
            if piece.is_whole or piece.tensor.numel()
        }

    def create_local_plan(self) -> SavePlan:
        return SavePlan([_item(index, piece) for index, piece in self.pieces.items()])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        holders: dict[MetadataIndex, list[tuple[int, WriteItem]]] = {}
        for rank, plan in enumerate(all_plans):
            for item in plan.items:
                holders.setdefault(item.index, []).append((rank, item))
        shares: list[list[WriteItem]] = [[] for _ in all_plans]
        numbers = [0] * len(all_plans)
        found: dict[str, int] = {}
        whole: dict[str, int] = {}
        for index, held in holders.items():
            rank, item = min(held, key=lambda each: numbers[each[0]])
            data = item.tensor_data
            assert data is not None
            shares[rank].append(item)
            numbers[rank] += math.prod(data.chunk.sizes)
            found[index.fqn] = found.get(index.fqn, 0) + math.prod(data.chunk.sizes)
            whole[index.fqn] = math.prod(data.size)
        if lacking := [name for name, count in found.items() if count != whole[name]]:
            raise NotWritten(f"the ranks do not hold all of {lacking[0]}, or hold some of it in different pieces")
        return [replace(plan, items=share) for plan, share in zip(all_plans, shares, strict=True)], Metadata({})

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        return self.pieces[write_item.index].tensor


def _item(index: MetadataIndex, piece: Piece) -> WriteItem:
    chunk = ChunkStorageMetadata(torch.Size(piece.start), piece.tensor.shape)
    properties = TensorProperties(dtype=piece.tensor.dtype)
    return WriteItem(
        index, WriteItemType.SHARD, tensor_data=TensorWriteData(chunk, properties, torch.Size(piece.shape))
    )


class _Writer(StorageWriter):
    """Writes a rank's share into a folder that has a passing name until all is there."""

    def __init__(self, job: Job, ending: str, kinds: Iterable[str], random: Mapping[str, Any]) -> None:
        self.job, self.ending, self.kinds, self.random = job, ending, tuple(kinds), random

    def reset(self, checkpoint_id: Any = None) -> None: ...

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None: ...

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        _told(self.job.begin)
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[list[WriteResult]]:
        tensors: dict[str, list[Piece]] = {kind: [] for kind in self.kinds}
        for item in plan.items:
            kind, _, name = item.index.fqn.partition("/")
            data, tensor = item.tensor_data, planner.resolve_data(item)
            assert data is not None
            assert isinstance(tensor, Tensor)
            tensors[kind].append(Piece(name, tuple(data.size), tuple(data.chunk.offsets), tensor))
        files = _told(lambda: write_share(self.job.folder, self.ending, tensors, self.random))
        written: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
        written.set_result([WriteResult(MetadataIndex(name), 0, checksum) for name, checksum in files.items()])
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        files = {result.index.fqn: result.storage_data for share in results for result in share}
        _told(lambda: self.job.commit(dict(sorted(files.items()))))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False  # it is never found by a name


def _told(work: Callable[[], Answer]) -> Answer:
    """What goes wrong, in words that can be sent to other ranks."""
    try:
        return work()
    except WRITE_ERRORS as error:
        raise NotWritten(why(error)) from error
