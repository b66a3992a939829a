"""Several linear maps of one input, computed as one matrix product.

In memory the maps are one matrix, because one large product is faster than three small ones. On disk each has its own
name, because that is what the maps are: `query.weight`, `key.weight`, `value.weight`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts import joined_map
from qkv.parts.activated_map import linear_map
from qkv.parts.learned_map import learned_map
from qkv.parts.spec import Depends


class JoinedLinear(nn.Module):
    """Named linear maps of the same input, joined row by row into one matrix. `bias`: all have one, none, or these."""

    depends_on = Depends("width", "outputs", "biases", "weight", bias=None, together=None)

    def __init__(self, width: int, outputs: Mapping[str, int], bias: bool | Collection[str] = True) -> None:
        super().__init__()
        self.width, self.outputs = width, dict(outputs)
        with_bias = (self.outputs if bias else ()) if isinstance(bias, bool) else bias
        self.biases = {name: rows for name, rows in self.outputs.items() if name in with_bias}
        rows = sum(self.outputs.values())
        self.weight = nn.Parameter(torch.empty(rows, width))
        self.bias = nn.Parameter(torch.zeros(sum(self.biases.values()))) if self.biases else None
        for part in self.parts(self.weight):
            nn.init.xavier_uniform_(part)  # each by its own size [glorot2010 eq.16]
        self.register_state_dict_post_hook(_split_names)
        self.register_load_state_dict_pre_hook(_join_names)

    def parts(self, joined: Tensor) -> Iterator[Tensor]:
        """The rows of each map, in order, as views."""
        yield from joined.detach().split(list(self.outputs.values()))

    def stretches(self) -> list[tuple[str, int, int]]:
        """Where the rows of the whole matrix come from: (map, first row within it, rows), in their order."""
        return [(name, 0, rows) for name, rows in self.outputs.items()]

    def matrix(self) -> Tensor:
        """The rows that are computed with."""
        return self.weight

    def own_bias(self) -> Tensor | None:
        """The bias of those maps that have one, that is computed with."""
        return self.bias

    def whole_bias(self) -> Tensor | None:
        """The bias of all maps, zeros for those that have none."""
        bias = self.own_bias()
        if bias is None or len(self.biases) == len(self.outputs):
            return bias
        own = dict(zip(self.biases, bias.split(list(self.biases.values())), strict=True))
        return torch.cat([own[name] if name in own else bias.new_zeros(n) for name, n in self.outputs.items()])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        if type(self) is JoinedLinear and joined_map.fits(x, self):
            return joined_map.maps(x, self)
        return self.together(x).split(list(self.outputs.values()), -1)

    def together(self, x: Tensor) -> Tensor:
        """All maps side by side in one tensor."""
        return linear_map(x, self.matrix(), self.whole_bias())

    def is_plain(self) -> bool:
        """Whether all maps together are `matrix` and `whole_bias`, and nothing else."""
        return type(self) is JoinedLinear and "together" not in self.__dict__

    def with_bias_apart(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The same, and the bias in it that does not learn from them, but is left to whoever knows its gradient."""
        if not self.is_plain():
            return self.together(x), None
        bias = self.whole_bias()
        return learned_map(x, self.weight, None if bias is None else bias.detach()), bias

    def with_last_of(self, x: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        """All maps of x but the last, which is of another input: values that have no positions. [carion2020 §A.3]"""
        *first, last = self.outputs.values()
        matrix, bias, rows = self.matrix(), self.whole_bias(), sum(first)
        head, tail = (None, None) if bias is None else bias.split([rows, last])
        return (*F.linear(x, matrix[:rows], head).split(first, -1), F.linear(other, matrix[rows:], tail))

    def with_first_of(self, other: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        """All maps of x but the first, which is of another input: queries of a few, keys and values of all."""
        first, *rest = self.outputs.values()
        matrix, bias, rows = self.matrix(), self.whole_bias(), sum(rest)
        head, tail = (None, None) if bias is None else bias.split([first, rows])
        return (F.linear(other, matrix[:first], head), *F.linear(x, matrix[first:], tail).split(rest, -1))

    def extra_repr(self) -> str:
        return f"{self.width} → " + ", ".join(f"{name} {rows}" for name, rows in self.outputs.items())


def _split_names(module: nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
    assert isinstance(module, JoinedLinear)
    for kind, rows in (("weight", module.outputs), ("bias", module.biases)):
        if (joined := state.pop(prefix + kind, None)) is not None:
            for name, part in zip(rows, joined.split(list(rows.values())), strict=True):
                state[f"{prefix}{name}.{kind}"] = part


def _join_names(
    module: nn.Module,
    state: dict[str, Any],
    prefix: str,
    metadata: object,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """Join the parts of a saved state. A missing or misshapen part is reported by its own name and left as it was."""
    assert isinstance(module, JoinedLinear)
    for kind, joined, rows in (("weight", module.weight, module.outputs), ("bias", module.bias, module.biases)):
        if joined is None:  # torch reports parts that nobody takes
            continue
        parts, complete = [], True
        for name, own in zip(rows, joined.detach().split(list(rows.values())), strict=True):
            part = state.pop(saved := f"{prefix}{name}.{kind}", None)
            if part is None:
                missing.append(saved)
            elif part.shape != own.shape:
                errors.append(f"size mismatch for {saved}: {list(part.shape)} in the state, {list(own.shape)} here.")
            if part is None or part.shape != own.shape:
                part, complete = own, False
            parts.append(part)
        state[prefix + kind] = torch.cat(parts if complete else [part.to(joined.device) for part in parts])
