"""Bytes that ranks of a ring send, where they go, and how long that takes."""

import pytest

from qkv.errors import QkvError
from qkv.train.cost.ranks_links import EXCHANGE, GATHER, SCATTER, SUM, Links, Message

SIZE = 1_000_000


@pytest.mark.parametrize(("how", "times"), [(GATHER, 1), (SCATTER, 1), (SUM, 2)])
def test_a_rank_of_a_ring_sends_what_it_must(how: str, times: int) -> None:
    within, across = Message("any", how, 8, 1, SIZE).sent(per_node=8)
    assert (within, across) == (times * SIZE * 7 / 8, 0)
    # Two nodes: one of eight neighbours is on the other one.
    within, across = Message("any", how, 16, 1, SIZE).sent(per_node=8)
    assert within + across == pytest.approx(times * SIZE * 15 / 16)
    assert across == pytest.approx(within / 7)


def test_ranks_that_are_apart_meet_over_the_network() -> None:
    assert Message("any", GATHER, 4, 8, SIZE).sent(per_node=8) == (0, SIZE * 3 / 4)
    near, far = Message("any", GATHER, 4, 4, SIZE).sent(per_node=8)  # two of them on each node
    assert near == far == SIZE * 3 / 8
    assert Message("any", GATHER, 4, 2, SIZE).sent(per_node=8) == (SIZE * 3 / 4, 0)


def test_an_exchange_goes_to_each_alike() -> None:
    near, far = Message("any", EXCHANGE, 16, 1, SIZE).sent(per_node=8)
    assert near == SIZE * 7 / 16
    assert far == SIZE * 8 / 16


def test_the_slower_link_sets_the_pace_and_hops_take_time() -> None:
    links = Links(within=400.0, between=50.0, hop_within=0.0, hop_between=0.0)
    message = Message("any", GATHER, 16, 1, SIZE, times=3)
    within, across = message.sent(per_node=8)
    assert across / 50e9 > 0
    assert message.seconds(links, 8) == pytest.approx(max(within / 400e9, across / 50e9))
    far = Message("any", SUM, 4, 8, SIZE)
    hops = Links(within=400.0, between=50.0, hop_within=1.0, hop_between=10.0)
    assert far.seconds(hops, 8) - far.seconds(links, 8) == pytest.approx(2 * 2 * 10e-6)  # by a tree of four
    near = Message("any", GATHER, 16, 1, SIZE)
    assert near.seconds(hops, 8) - near.seconds(links, 8) == pytest.approx(10e-6 + 14 * 1e-6)
    assert Message("any", SUM, 1, 1, SIZE).seconds(hops, 8) == 0


def test_links_are_spelled() -> None:
    assert Links.parse("") == Links()
    assert Links.parse("between:25, within:300") == Links(within=300.0, between=25.0)
    for wrong, said in (("betwen:3", "between"), ("between", "no figure"), ("between:0", "above 0"),
                        ("hop_within:-1", "0 or more")):  # fmt: skip
        with pytest.raises(QkvError, match=said):
            Links.parse(wrong)
