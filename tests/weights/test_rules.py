from pathlib import Path

import pytest
import torch

from qkv.errors import QkvError
from qkv.weights.rules import (
    Computed,
    Copy,
    Drop,
    Flatten,
    Rename,
    Split,
    check_kinds,
    rename_modules,
    to_ours,
    to_theirs,
)

RULES = [
    Rename("embed.w", "tokens.weight"),
    Copy("head.w", of="embed.w"),
    Drop("layer.{}.counter", "counts steps"),
    Flatten("offset", "bias"),
    Split("layer.{}.qkv", ("blocks.{}.query", "blocks.{}.key", "blocks.{}.value")),
    *rename_modules([("layer.{}.norm", "blocks.{}.norm")]),
]


def their_tensors(layers=12):
    """Enough layers that sorting them as text would mix them up."""
    tensors = {"embed.w": torch.randn(5, 4), "offset": torch.randn(1, 5)}
    for index in range(layers):
        tensors[f"layer.{index}.qkv"] = torch.randn(12, 4)
        tensors[f"layer.{index}.norm.weight"] = torch.randn(4)
        tensors[f"layer.{index}.norm.bias"] = torch.randn(4)
    return tensors


def our_names(layers=12):
    names = {"tokens.weight", "bias"}
    for index in range(layers):
        names |= {f"blocks.{index}.{name}" for name in ("query", "key", "value", "norm.weight", "norm.bias")}
    return names


def test_every_tensor_arrives_and_comes_back():
    theirs = their_tensors()
    ours = to_ours(RULES, theirs, our_names())
    assert set(ours) == our_names()
    assert torch.equal(ours["blocks.10.key"], theirs["layer.10.qkv"][4:8])
    assert ours["bias"].shape == (5,)
    back = to_theirs(RULES, ours)
    assert set(back) == set(theirs)
    assert all(torch.equal(back[name], theirs[name]) for name in theirs)


def test_what_is_dropped_may_be_there_and_is_not_exported():
    theirs = their_tensors()
    more = theirs | {"head.w": theirs["embed.w"].clone(), "layer.3.counter": torch.tensor(7)}
    ours = to_ours(RULES, more, our_names())
    assert set(to_theirs(RULES, ours)) == set(theirs)


def test_a_copy_that_is_none_is_an_error():
    theirs = their_tensors()
    with pytest.raises(QkvError, match=r"head.w differs from embed.w"):
        to_ours(RULES, theirs | {"head.w": theirs["embed.w"] + 1}, our_names())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.update(extra=torch.zeros(1)), "no place for: extra"),
        (lambda t: t.pop("embed.w"), r"lack tensors: embed.w\.$"),
        (lambda t: t.pop("layer.3.norm.bias"), r"lack tensors: layer.3.norm.bias\.$"),
        (lambda t: t.pop("layer.11.qkv"), r"lack tensors: layer.11.qkv\.$"),
        (lambda t: t.update({"layer.12.norm.weight": torch.zeros(4)}), r"more layers.*: layer.12.norm.weight\.$"),
        (lambda t: t.update({"layer.x.norm.weight": torch.zeros(4)}), r"no place for: layer.x.norm.weight"),
        (lambda t: t.update({"layer.0.qkv": torch.zeros(10, 4)}), "not 3 equal parts"),
    ],
)
def test_what_does_not_fit_is_named(change, said):
    theirs = their_tensors()
    change(theirs)
    with pytest.raises(QkvError, match=said):
        to_ours(RULES, theirs, our_names())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer.2.qkv": torch.zeros(10, 4)}, r"gives FILE.layer.2.qkv the shape \[10, 4\]; .* it has \[12, 4\]"),
        ({"offset": torch.zeros(5)}, r"gives FILE.offset the shape \[5\]; .* it has \[1, 5\]"),
        ({"embed.w": torch.zeros(5, 4, dtype=torch.int8)}, r"FILE.embed.w as torch.int8, not as torch.float32"),
    ],
)
def test_shapes_and_kinds_are_told_as_the_file_has_them(change, said):
    theirs = their_tensors()
    wanted = to_ours(RULES, theirs, our_names())
    check_kinds(RULES, theirs, wanted, Path("folder"))
    with pytest.raises(QkvError, match=said):
        check_kinds(RULES, theirs | change, wanted, Path("folder"), lambda name: f"FILE.{name}")


def test_exporting_what_they_have_no_place_for_is_an_error():
    ours = to_ours(RULES, their_tensors(), our_names())
    with pytest.raises(QkvError, match="no place for: gate"):
        to_theirs(RULES, ours | {"gate": torch.zeros(1)})
    del ours["blocks.2.key"]
    with pytest.raises(QkvError, match=r"lack tensors: blocks.2.key"):
        to_theirs(RULES, ours)


def test_many_names_are_counted():
    with pytest.raises(QkvError, match="and 11 more"):
        to_ours(RULES, {}, our_names(5))


def test_a_computed_tensor_is_checked_and_written() -> None:
    rules = [Rename("a", "x"), Computed("table", lambda: torch.arange(4.0))]
    one = torch.ones(2)
    assert to_ours(rules, {"a": one}, {"x"}) == {"x": one}
    assert to_ours(rules, {"a": one, "table": torch.arange(4.0).half()}, {"x"}) == {"x": one}
    assert torch.equal(to_theirs(rules, {"x": one})["table"], torch.arange(4.0))
    for wrong in (torch.arange(4.0) + 0.01, torch.arange(5.0)):
        with pytest.raises(QkvError, match="table is not what every model"):
            to_ours(rules, {"a": one, "table": wrong}, {"x"})


def test_a_dropped_tensor_may_be_written_as_another() -> None:
    rules = [Drop("b", "never read", written_as="a"), Rename("a", "x")]
    one = torch.ones(2)
    assert to_ours(rules, {"a": one, "b": torch.zeros(2)}, {"x"}) == {"x": one}
    theirs = to_theirs(rules, {"x": one})
    assert torch.equal(theirs["b"], one)
    assert theirs["b"].data_ptr() != theirs["a"].data_ptr()
