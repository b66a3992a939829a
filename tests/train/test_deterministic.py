"""Kernels whose answers repeat: taken while a run trains that asks for them, and then no longer."""

import os

import pytest
import torch

from qkv.train.deterministic import FIXED, WORKSPACE, deterministic_kernels


def test_it_holds_inside_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKSPACE, raising=False)
    with deterministic_kernels(False):
        assert not torch.are_deterministic_algorithms_enabled()
    with deterministic_kernels(True):
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ[WORKSPACE] == FIXED
    assert not torch.are_deterministic_algorithms_enabled()
