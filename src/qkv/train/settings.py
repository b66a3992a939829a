"""Everything about a training run that is a number or a choice, and the budget it defines."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch

from qkv.errors import QkvError
from qkv.parts.device import check_bfloat16, device_called, is_tested

# What may differ when a run is resumed: how long it goes on and how much it keeps, never what a step computes.
CHANGEABLE_ON_RESUME = frozenset(
    {"steps", "minutes", "flops", "patience", "keep", "keep_every", "gradient_norms", "parallel", "recompute", "record"}
)


# Figures that would keep the worst weights if watched the other way.
HIGHER_IS_BETTER = frozenset(
    [
        "bleu",
        "chrf",
        "rouge1",
        "rouge2",
        "rougeL",
        "accuracy",
        "next_sentence_accuracy",
        "macro_f1",
        "matthews",
        "pearson",
        "spearman",
        "exact",
        "exact_match",
        "f1",
        "top5",
        "text_accuracy",
        "map",
        "map50",
    ]
)


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How long to train, how to step, and what to keep. Parts (model, optimizer, schedule) are passed built."""

    # Budget: at least one; with several, whichever is used up first ends the run.
    steps: int | None = None
    minutes: float | None = None  # time spent stepping; evaluation and checkpoints do not count
    flops: float | None = None  # operations of the matrix products, as the front end counts them

    accumulate: int = 1  # micro-batches for each update
    clip: float | None = 1.0  # largest gradient norm; None leaves gradients as they are
    # Of products; weights stay float32. "auto" is bfloat16 on GPUs that qkv is tested on, and float32 elsewhere.
    precision: Literal["auto", "float32", "bfloat16", "float8"] = "auto"
    compile: bool = False  # each block by torch.compile, for changing shapes
    # On a GPU, steps whose shapes come again as one CUDA graph (`recorded.py`). None: where all code is known to allow
    # it (`recordable.py`); True says why not where it is not done.
    record: bool | None = None
    device: str = "auto"  # "auto" takes CUDA where it is present
    recompute: bool = False  # the inside of blocks on the way back, in place of keeping it
    parallel: str = ""  # how ranks share the work, as `parallel.layout.Layout` spells it; what is not named shards
    seed: int = 0
    deterministic: bool = False  # only kernels whose answers repeat bit for bit; on a CPU all of them do

    log_every: int = 50  # steps between records; between them the loop never waits for the device
    gradient_norms: bool = False  # at each record, norms of gradients and updates of every layer too; waits for them
    evaluate_every: int | None = None  # None: only at the end
    evaluations: int | None = None  # so many instead, at equal shares of the budget: alike for fast and slow models
    save_every: int | None = None  # None: only at the end, at a new best and when interrupted
    keep: int = 3  # newest checkpoints kept; the best one is kept besides
    keep_every: int | None = None  # and those whose step is a multiple of this, for good

    watch: str = "loss"  # the validation figure that says which checkpoint is best
    better: Literal["lower", "higher"] = "lower"
    patience: int | None = None  # stop after so many evaluations without a new best
    tolerate: int = 10  # updates in a row that may be skipped for a non-finite loss or gradient
    roll_back: float | None = None  # a loss above so many times the usual goes back to a checkpoint: see `spikes.py`

    average: int = 0  # the final weights are the mean of so many last checkpoints [vaswani2017 §6.1]
    ema: float | None = None  # decay of a moving average of the weights, which is then what gets evaluated

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None and self.flops is None:
            raise QkvError("Training needs a budget: give a number of steps, of minutes, of FLOPs, or several of them.")
        for name in ("steps", "minutes", "flops", "accumulate", "clip", "log_every", "evaluate_every", "evaluations",
                     "save_every", "keep", "keep_every", "patience", "tolerate"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise QkvError(f"The training setting {name} must be above 0 and finite, but is {value}.")
        if not 0 <= self.seed < 2**32:
            raise QkvError(f"The seed must be a whole number from 0 to 4294967295, but is {self.seed}.")
        if self.average < 0:
            raise QkvError(f"The number of checkpoints to average must be 0 or more, but is {self.average}.")
        if self.ema is not None and not 0 < self.ema < 1:
            raise QkvError(f"The decay of the moving average must lie between 0 and 1, but is {self.ema}.")
        if self.average and self.ema is not None:
            raise QkvError(
                "Final weights are an average of checkpoints or a moving average: give average or ema, not both."
            )
        if self.average > 1 and self.save_every is None:
            raise QkvError(f"To average {self.average} checkpoints there must be as many: give save_every.")
        if self.keep_every is not None and (self.save_every is None or self.keep_every % self.save_every):
            raise QkvError(
                f"Checkpoints of every {self.keep_every} steps can only be kept where they are saved: give a "
                "save_every that divides it."
            )
        if self.roll_back is not None and not 1 < self.roll_back < math.inf:
            raise QkvError(f"A loss goes back when it is above 1 times the usual or more, not {self.roll_back} times.")
        if self.roll_back is not None and (self.save_every is None or self.keep < 2):
            raise QkvError("To go back after a loss leaps up there must be checkpoints: give save_every, and keep 2.")
        if self.evaluate_every is not None and self.evaluations is not None:
            raise QkvError("Evaluations come every so many steps or at shares of the budget: give one of the two.")
        if self.patience is not None and self.evaluate_every is None and self.evaluations is None:
            raise QkvError("Patience counts evaluations, and there is only the last one: give evaluate_every.")
        _one_of("precision", self.precision, ("auto", "float32", "bfloat16", "float8"))
        _one_of("better", self.better, ("lower", "higher"))
        if self.watch in HIGHER_IS_BETTER and self.better == "lower":
            raise QkvError(f'A higher {self.watch} is better: watch it with better="higher".')

    def progress(self, steps: int, seconds: float, flops: float = 0.0) -> float:
        """The share of the budget used after so many steps, seconds and operations, from 0 to 1."""
        of_steps = steps / self.steps if self.steps else 0.0
        of_minutes = seconds / (60 * self.minutes) if self.minutes else 0.0
        of_flops = flops / self.flops if self.flops else 0.0
        return min(1.0, max(of_steps, of_minutes, of_flops))

    def evaluations_due(self, progress: float) -> int:
        """How many of the evaluations at shares of the budget should be over by now."""
        return 0 if self.evaluations is None else int(self.evaluations * progress + 1e-9)

    def improves(self, score: float, best: float | None) -> bool:
        if score != score:  # NaN is never better
            return False
        return best is None or (score < best if self.better == "lower" else score > best)

    def torch_device(self) -> torch.device:
        return device_called(self.device)

    def on(self, device: torch.device) -> "TrainSettings":
        """With the precision that `auto` means there; another one that the device does not have is refused."""
        if self.precision == "auto":
            return replace(self, precision="bfloat16" if device.type == "cuda" and is_tested(device) else "float32")
        if self.precision == "bfloat16" and device.type != "cpu":
            check_bfloat16(device)
        return self

    def autocast(self, device: torch.device) -> torch.autocast:
        """Matrix products in bfloat16 where the precision says so, and for float8 those that `float8.py` leaves over.

        A fresh context each time. Narrow copies of weights are kept until its end, for those that are used again; not
        where blocks are computed twice to keep nothing: all of them together would be as large as half the model.
        """
        narrow = self.on(device).precision != "float32"
        return torch.autocast(device.type, torch.bfloat16, enabled=narrow, cache_enabled=not self.recompute)


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise QkvError(f"The training setting {name} must be one of {', '.join(choices)}, but is {value!r}.")
