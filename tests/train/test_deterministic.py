"""Kernels whose answers repeat: taken while a run trains that asks for them, and then no longer."""

import os

import pytest
import torch

from qkv.errors import QkvError
from qkv.train.deterministic import FIXED, WORKSPACE, deterministic_kernels, fix_workspace


def test_it_holds_inside_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKSPACE, raising=False)
    with deterministic_kernels(False):
        assert not torch.are_deterministic_algorithms_enabled()
    with deterministic_kernels(True):
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ[WORKSPACE] == FIXED
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_gpu_that_is_in_use_already_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKSPACE, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    fix_workspace(False)
    with pytest.raises(QkvError, match="before the GPU is first used"):
        fix_workspace(True)
    monkeypatch.setenv(WORKSPACE, FIXED)
    fix_workspace(True)
