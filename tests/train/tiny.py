"""The smallest model, data and run that honour the contracts of training: an embedding, a dropout and a linear map."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor, nn

from qkv.train.evaluation import Evaluate
from qkv.train.loop import train
from qkv.train.objectives import Loss, SequenceToSequenceLoss
from qkv.train.optimizers import adam
from qkv.train.reporter import Reporter
from qkv.train.run_folder import RunFolder
from qkv.train.schedules import Constant, Schedule
from qkv.train.settings import TrainSettings
from qkv.train.state import TrainResult
from qkv.train.step import FlopCount

VOCABULARY = 11


@dataclass(frozen=True)
class TinyBatch:
    source: Tensor
    source_lengths: Tensor
    target: Tensor
    target_lengths: Tensor
    target_tokens: int

    @property
    def padding(self) -> Tensor:
        return self.source_lengths

    def to(self, device: torch.device) -> "TinyBatch":
        names = ("source", "source_lengths", "target", "target_lengths")
        return replace(self, **{name: getattr(self, name).to(device, non_blocking=True) for name in names})


def make_batch(seed: int, *, rows: int = 3, width: int = 6) -> TinyBatch:
    """Rows of several lengths; targets from <s>=1 to </s>=2, padded with 0."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(3, VOCABULARY, (rows, width), generator=generator)
    target = torch.randint(3, VOCABULARY, (rows, width), generator=generator)
    lengths = torch.randint(3, width + 1, (rows,), generator=generator)
    target[:, 0] = 1
    for row, length in enumerate(lengths.tolist()):
        target[row, length - 1] = 2
        target[row, length:] = 0
    return TinyBatch(source, torch.full((rows,), width), target, lengths, int((lengths - 1).sum()))


class TinyBatches:
    """Epochs of `size` batches that differ from each other, with a position as the data room keeps it."""

    def __init__(self, size: int = 3) -> None:
        self.size = size
        self.epoch = 0
        self.index = 0

    def __iter__(self) -> Iterator[TinyBatch]:
        while self.index < self.size:
            batch = make_batch(1000 * self.epoch + self.index)
            self.index += 1
            yield batch
        self.epoch, self.index = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "index": self.index}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.index = state["epoch"], state["index"]


class TinyModel(nn.Module):
    """Logits of the next target token from this one and the mean of the source; the table is shared with the output."""

    def __init__(self, seed: int = 0, dropout: float = 0.3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.mix = nn.Linear(16, 8)
        self.norm = nn.LayerNorm(8)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(8, VOCABULARY, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        summary = self.embedding(source).mean(1, keepdim=True).expand(-1, target.shape[1], -1)  # [b t d]
        x = torch.cat([self.embedding(target), summary], -1)  # [b t 2d]
        return self.out(self.dropout(self.norm(self.mix(x))))  # [b t v]


def save_tiny_model(model: nn.Module, folder: Path) -> None:
    save_file(dict(model.named_parameters()), folder / "model.safetensors")


def quiet() -> Reporter:
    return Reporter(Console(quiet=True))


def open_run(folder: Path, **options: Any) -> RunFolder:
    return RunFolder(folder, save_model=options.pop("save_model", save_tiny_model), **options)


def train_tiny(
    folder: Path,
    *,
    model: nn.Module | None = None,
    objective: Callable[[nn.Module, Any], Loss] = SequenceToSequenceLoss(smoothing=0.1),  # noqa: B008 (frozen)
    batches: TinyBatches | None = None,
    schedule: Schedule = Constant(),  # noqa: B008 (frozen)
    optimizer: torch.optim.Optimizer | None = None,
    evaluate: Evaluate | None = None,
    reporter: Reporter | None = None,
    flops_per_token: FlopCount = 0.0,
    run: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[TrainResult, nn.Module, torch.optim.Optimizer]:
    """A whole run with everything the caller leaves open filled in."""
    model = model if model is not None else TinyModel()
    optimizer = optimizer if optimizer is not None else adam(model, learning_rate=1e-2)
    result = train(
        model,
        objective,
        batches or TinyBatches(),
        TrainSettings(**{"steps": 10, "log_every": 1, "device": "cpu", **settings}),
        open_run(folder, **(run or {})),
        optimizer=optimizer,
        schedule=schedule,
        evaluate=evaluate,
        flops_per_token=flops_per_token,
        reporter=reporter or quiet(),
    )
    return result, model, optimizer
