"""What ranks say to each other in a step, and how long it takes on the links between them.

A group of r ranks gathers, scatters or sums as a ring: every rank sends its neighbour (r - 1)/r of the bytes, twice
that for a sum of which all get the whole [patarasuk2009]. Of a ring's m members on one node, one sends to another
node at any time, on a link of its own: 1/m of the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from qkv.errors import QkvError, nearest_or_all

GATHER, SCATTER, SUM, EXCHANGE = "gather", "scatter", "sum", "exchange"

# What a message is about, in the order in which a person reads them.
FORWARD_PARAMETERS = "parameters, forward"
BACK_PARAMETERS = "parameters, back"
GRADIENTS = "gradients"
BETWEEN_GROUPS = "gradients of replicas"
TENSOR_FORWARD = "tensor sums, forward"
TENSOR_BACK = "tensor sums, back"
KEYS_FORWARD = "keys and values"
KEYS_BACK = "their gradients"
TOKENS_FORWARD = "tokens to experts, forward"
TOKENS_BACK = "tokens to experts, back"
FIGURES = "figures"
HIDDEN_FORWARD = (FORWARD_PARAMETERS,)  # while the block before them is computed
HIDDEN_BACK = (BACK_PARAMETERS, GRADIENTS, BETWEEN_GROUPS)
WAITED_FORWARD = (TENSOR_FORWARD, KEYS_FORWARD, TOKENS_FORWARD)  # what a rank can only wait for
WAITED_BACK = (TENSOR_BACK, KEYS_BACK, TOKENS_BACK)
KINDS = (FORWARD_PARAMETERS, BACK_PARAMETERS, GRADIENTS, BETWEEN_GROUPS, TENSOR_FORWARD, TENSOR_BACK, KEYS_FORWARD,
         KEYS_BACK, TOKENS_FORWARD, TOKENS_BACK, FIGURES)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Links:
    """What joins GPUs. The figures that stand here are promised by makers, and not measured by us.

    NVLink 4, as in nodes of H100 and H200: 900 GB/s for each GPU, half of it each way. InfiniBand NDR with an adapter
    for each GPU: 400 Gb/s each way. The time of a hop is what NCCL's own choice of algorithm reckons with for rings
    (`hwLatencies` in its table of constants).
    """

    within: float = 450.0  # GB/s that a GPU sends to others of its node
    between: float = 50.0  # GB/s that a GPU sends to other nodes
    hop_within: float = 3.4  # µs from one GPU to the next
    hop_between: float = 14.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            least = "0 or more" if each.name.startswith("hop") else "above 0"
            if not (value >= 0 if each.name.startswith("hop") else value > 0):
                raise QkvError(f"The figure {each.name} of the links must be {least}, but is {value}.")

    @staticmethod
    def parse(text: str) -> Links:
        """`within:450,between:50`, as it is spelled on the command line; what is not named stays."""
        names = [each.name for each in fields(Links)]
        links = Links()
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, number = part.partition(":")
            if name not in names:
                raise QkvError(f"Links have no figure called {name!r}: {nearest_or_all(name, names)}")
            try:
                links = replace(links, **{name: float(number)})
            except ValueError:
                raise QkvError(f"{part!r} is no figure of links: give one, such as between:50.") from None
        return links


@dataclass(frozen=True)
class Message:
    """One of the things that a rank takes part in, so many times in a step."""

    kind: str  # one of `KINDS`
    how: str  # GATHER, SCATTER, SUM or EXCHANGE
    ranks: int
    apart: int  # between the numbers of neighbouring ranks of the group: 1 means next to each other
    bytes: int  # of the whole: what all have gathered, what is to be scattered or summed, what one sends to all
    times: int = 1

    def on_a_node(self, per_node: int) -> int:
        """How many ranks of the group are on one node."""
        return max(1, min(self.ranks, per_node // self.apart))

    def sent(self, per_node: int) -> tuple[float, float]:
        """Bytes that a rank sends in a step: (within its node, to other nodes)."""
        near = self.on_a_node(per_node)
        whole = float(self.bytes * self.times)
        if self.how == EXCHANGE:
            return whole * (near - 1) / self.ranks, whole * (self.ranks - near) / self.ranks
        whole *= (2 if self.how == SUM else 1) * (self.ranks - 1) / self.ranks
        return (whole, 0.0) if near == self.ranks else (whole * (near - 1) / near, whole / near)

    def seconds(self, links: Links, per_node: int) -> float:
        """Of all times: the slower of both kinds of links, and the hops that the first byte takes."""
        if self.ranks == 1:
            return 0.0
        within, across = self.sent(per_node)
        hops = 1e-6 * self.times * self._hops(links, per_node)
        return max(within / (1e9 * links.within), across / (1e9 * links.between)) + hops

    def _hops(self, links: Links, per_node: int) -> float:
        """µs of those that one after the other take. Sums go by a tree where a ring would be long, as NCCL has them."""
        near = self.on_a_node(per_node)
        nodes = -(-self.ranks // near)
        if self.how == EXCHANGE:  # all at once
            return links.hop_between if nodes > 1 else links.hop_within
        ring = links.hop_between * (nodes - 1) + links.hop_within * (self.ranks - nodes)
        if self.how != SUM:
            return ring
        tree = links.hop_between * math.ceil(math.log2(nodes)) + links.hop_within * (near - 1)
        return 2 * min(ring, tree)


def seconds_of(messages: Iterable[Message], kinds: Iterable[str], links: Links, per_node: int) -> float:
    """Of all messages of these kinds, one after the other."""
    wanted = set(kinds)
    return sum(each.seconds(links, per_node) for each in messages if each.kind in wanted)
