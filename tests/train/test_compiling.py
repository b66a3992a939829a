"""Blocks compiled while a model trains: few makes of code, the same numbers, and the ledger filled as without."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.parts.context import Ledger
from qkv.parts.experts import BALANCE, DROPPED, LOADS, ROUTER_Z
from qkv.train.compiling import KEPT_IN, compiled_blocks
from tests.models.small import perturb

IDS = torch.randint(0, 23, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was compiled, each graph whole: a break in it would be an error."""
    found: list[Any] = []

    def keep(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        found.append(graph)
        return graph.forward

    compile_ = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda code, dynamic: compile_(code, dynamic=dynamic, fullgraph=True, backend=keep)
    )
    torch._dynamo.reset()
    return found


def test_what_torch_compiles_is_kept_where_nobody_else_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    for named, kept in ((None, tmp_path / "qkv" / "torch"), (str(tmp_path / "named"), tmp_path / "named")):
        monkeypatch.setenv(KEPT_IN, str(named))
        if named is None:
            monkeypatch.delenv(KEPT_IN)
        with compiled_blocks(some_model()):
            assert os.environ[KEPT_IN] == str(kept)
    assert stat.S_IMODE((tmp_path / "qkv" / "torch").stat().st_mode) == 0o700


def some_model() -> nn.Module:
    sizes = GPT2Sizes(vocabulary=23, positions=16, width=16, hidden=24, heads=2, layers=8, experts=4, dropout=0.0)
    torch.manual_seed(0)
    model = build("gpt2", sizes, HeadChoice("language"))
    perturb(model)
    return model.eval()


@pytest.mark.slow
def test_layers_of_experts_share_one_code(graphs: list[Any]) -> None:
    model = some_model()
    plain, compiled = (Ledger(model, [BALANCE, ROUTER_Z, LOADS, DROPPED]) for _ in range(2))
    expected = model(IDS, ledger=plain)
    with compiled_blocks(model):
        found = model(IDS, ledger=compiled)
        makes = len(graphs)
        model(IDS, ledger=Ledger(model, [BALANCE, ROUTER_Z, LOADS, DROPPED]))
    assert makes == len(graphs) == 2  # of eight blocks: those with experts, and the rest
    torch.testing.assert_close(found, expected)
    assert plain.entries.keys() == compiled.entries.keys()
    assert len(plain.written) == len(compiled.written) == 4 * 4
    for name, (value,) in plain.entries.items():
        torch.testing.assert_close(compiled.entries[name][0], value)
    assert "forward" not in vars(next(iter(model.stack.blocks)))
