"""What a comparison compares: settings that all variants share, and what each of them changes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch
from torch import nn

from qkv.api.choices import Sizes
from qkv.errors import QkvError, nearest_or_all
from qkv.models.attention_choice import AttentionChoice
from qkv.train.optimizers import adamw
from qkv.train.schedules import Cosine, Schedule
from qkv.train.settings import TrainSettings

# Names become folders, lines of a table and words of a legend.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 .,:+=_-]{0,59}")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How one model is built and trained. What a comparison must hold equal (texts, length, budget) is not here."""

    family: str = "gpt2"
    sizes: Sizes = field(default_factory=dict)  # a named size, or changes to the desk size
    attention: str | None = None  # None: the family's own
    learning_rate: float = 1e-3
    warmup: int = 50  # updates
    batch_rows: int = 16
    precision: str = "auto"

    def __post_init__(self) -> None:
        if (choice := AttentionChoice.of(self.attention)) is not None:
            object.__setattr__(self, "attention", str(choice))
        for name in ("learning_rate", "batch_rows"):
            if not 0 < getattr(self, name) < float("inf"):
                raise QkvError(f"The setting {name} must be above 0 and finite, but is {getattr(self, name)}.")

    def changed(self, changes: Mapping[str, Any]) -> "Setup":
        """With some settings of its own. Sizes are changes to the common ones, unless the family is another."""
        known = [each.name for each in fields(self)]
        for name in changes:
            if name not in known:
                raise QkvError(f"A variant has no setting called {name}: {nearest_or_all(name, known)}")
        own: dict[str, Any] = dict(changes)
        sizes = own.get("sizes", {})
        if own.get("family", self.family) == self.family:
            if isinstance(self.sizes, Mapping) and isinstance(sizes, Mapping):
                own["sizes"] = {**self.sizes, **sizes}
            elif not sizes:
                own["sizes"] = self.sizes
        else:
            own["sizes"] = sizes
        return replace(self, **own)

    def settings(self, shared: TrainSettings, seed: int = 0) -> TrainSettings:
        own = replace(shared, seed=seed, precision=self.precision)  # type: ignore[arg-type]  # the settings check it
        return own.on(own.torch_device())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return adamw(model, learning_rate=self.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)

    def schedule(self) -> Schedule:
        return Cosine(warmup=self.warmup, floor=0.1)

    def described(self) -> dict[str, Any]:
        """As JSON."""
        sizes = self.sizes if isinstance(self.sizes, str) else dict(self.sizes)
        return {**asdict(self), "sizes": sizes}


@dataclass(frozen=True)
class Variant:
    """A name, and what it changes of the common settings: `Variant("window", {"attention": "window:256"})`."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name) or self.name.endswith((" ", ".")):
            raise QkvError(
                f"A variant cannot be called {self.name!r}: a name begins with a letter or digit and has at most 60 "
                "letters, digits, spaces and . , : + = _ -"
            )

    @property
    def folder(self) -> str:
        """The name as that of a folder, on any system."""
        return re.sub(r"[^A-Za-z0-9._+=-]+", "-", self.name)


def check_variants(variants: Sequence[Variant]) -> None:
    if not variants:
        raise QkvError("There is nothing to compare: name at least one variant.")
    seen: dict[str, str] = {}
    for variant in variants:
        key = variant.folder.lower()
        if key in seen:
            other = "" if seen[key] == variant.name else f" (as {seen[key]!r}, in the same folder)"
            raise QkvError(f"The variant {variant.name!r} is there twice{other}: give each a name of its own.")
        seen[key] = variant.name
