"""`qkv cost --ranks`: a table or JSON, the best layouts, and one sentence for what cannot be planned."""

import json

import pytest

from tests.cli.command import Outcome, qkv

SMALL = ["--family", "gpt2", "--size", "width=32,hidden=64,heads=4,layers=1", "--length", "16", "--device", "h200"]


def planned(*more: str) -> Outcome:
    return qkv("cost", *SMALL, "--precision", "bfloat16", "--rows", "16", *more)


def test_a_plan_is_shown() -> None:
    told = planned("--ranks", "16", "--parallel", "tensor:2,replicate:2", "--steps", "10")
    assert told.code == 0, told.err
    for line in ("16 ranks as replicate:2,shard:4,tensor:2", "sent: gradients", "sent: tensor sums", "to other nodes",
                 "of the device's peak", "time of 10 steps"):  # fmt: skip
        assert line in told.out, line
    assert "does not fit" not in told.out
    values = json.loads(planned("--ranks", "16", "--parallel", "tensor:2,replicate:2", "--json").out)
    assert values["layout"] == "replicate:2,shard:4,tensor:2"
    assert values["sent"]["gradients of replicas"][1] > 0
    one_node = json.loads(planned("--ranks", "16", "--per-node", "16", "--links", "within:100", "--json").out)
    assert all(between == 0 for _, between in one_node["sent"].values())


def test_the_best_layouts_are_listed() -> None:
    told = planned("--ranks", "2", "--suggest")
    assert told.code == 0, told.err
    assert "shard:2" in told.out
    assert "tensor:2" in told.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--parallel", "tensor:2"], "--parallel is about several GPUs"),
        (["--suggest"], "--suggest is about several GPUs"),
        (["--ranks", "4", "--forward-only"], "leave out --forward-only"),
        (["--ranks", "4", "--record"], "leave out --record"),
        (["--ranks", "4", "--suggest", "--parallel", "tensor:2"], "leave out one of the two"),
        (["--ranks", "64"], "a batch has 16"),
        (["--ranks", "4", "--links", "speed:3"], "no figure called"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(arguments: list[str], said: str) -> None:
    told = planned(*arguments)
    assert told.code == 2
    assert said in told.complaint


def test_blocks_computed_twice_on_one_device() -> None:
    once, twice = (
        json.loads(qkv("cost", *SMALL, "--rows", "64", *more, "--json").out) for more in ([], ["--recompute"])
    )
    assert twice["flops_backward"] > once["flops_backward"]
    assert twice["memory"]["total"] < once["memory"]["total"]
