"""A command on a machine without a GPU does not import Triton, and one with a GPU does."""

import importlib.util
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from qkv.cli.triton_apart import WARNS, keep_triton_apart

COST = """
import json, sys, torch
torch.accelerator.is_available = lambda: False
sys.path.insert(0, sys.argv[1])
from qkv.cli.main import main
sys.argv = ["qkv", "cost", "--family", "gpt2", "--size", "width=16,heads=2,layers=1,vocabulary=99", "--device", "cpu"]
code = main()
print(json.dumps([code, "triton" in sys.modules, "torch.utils.flop_counter" in sys.modules]))
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A Triton with the one name that torch takes from it to count operations."""
    runtime = tmp_path / "triton" / "runtime"
    runtime.mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").touch()
    (runtime / "__init__.py").touch()
    (runtime / "jit.py").write_text("class JITFunction: ...\n", encoding="utf-8")
    return tmp_path


def test_what_a_training_costs_is_told_without_triton(fake: Path) -> None:
    done = subprocess.run([sys.executable, "-c", COST, str(fake)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [0, False, True]
    assert done.stderr == ""


@pytest.mark.parametrize("gpu", [True, False])
def test_triton_is_found_and_imported_only_with_a_gpu(gpu: bool, fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(fake)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpu)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for name in [each for each in sys.modules if each.partition(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    level = logging.getLogger(WARNS).level
    keep_triton_apart()
    try:
        assert importlib.util.find_spec("triton") is not None, "torch asks whether it is there while it is imported"
        if gpu:
            assert importlib.import_module("triton.runtime.jit").JITFunction
        else:
            with pytest.raises(ModuleNotFoundError, match="no GPU"):
                importlib.import_module("triton.runtime.jit")
    finally:
        logging.getLogger(WARNS).setLevel(level)
        for name in [each for each in sys.modules if each.partition(".")[0] == "triton"]:
            del sys.modules[name]
