"""What is said of who runs a model."""

from __future__ import annotations

import pytest
from torch import nn

from qkv.generate import prepare as preparing
from qkv.generate.explain import explain
from qkv.generate.prepare import can_prepare
from qkv.parts import cpu
from tests.generate.test_guarded import small, with_window


@pytest.fixture(autouse=True)
def for_small_models_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "SMALL", 1)


def test_a_model_that_is_known_says_so_and_one_that_is_not_names_what_was_not_understood() -> None:
    model = small("gpt2")
    if not can_prepare(model) or cpu.library() is None:
        pytest.skip("needs a compiler")
    assert "all steps of a token are one call of a compiled program" in explain(model)
    model.stack.blocks[1].attention.mixer.gate = nn.Identity()
    said = explain(model)
    assert "3 of 4 steps by a compiled program" in said
    assert "a Attention has gate, which is not known" in said
    assert "its own parts, one after the other (attention.mixer: a Attention has gate" in said


def test_of_qwen3_the_norms_of_queries_and_keys_are_named() -> None:
    said = explain(small("qwen3"))
    assert "query_norm is a RMSNorm" in said


def test_windows_are_named_behind_which_faster_ways_were_tried() -> None:
    model = with_window(700)
    if not can_prepare(model) or cpu.library() is None:
        pytest.skip("needs a compiler")
    assert "tried beside its parts behind a window of 700 tokens" in explain(model)


def test_a_model_that_reads_says_nothing_of_steps() -> None:
    said = explain(small("bert"))
    assert "Decoding" not in said
    assert said.startswith("TextModel in float32 on cpu.\nWhole rows, stack: ")
