"""What carries tokens to their experts and back, as programs for a GPU. `routing.py` and `grouped.py` specify them.

In torch's operations a layer of experts asks for a hundred of them that do next to nothing each, and the host that
asks is slower than the GPU. All of these programs add up what they write by themselves, in an order that is fixed.

Shapes: T slots of a program's step, E experts, R rows and D columns of what is carried (all filled up).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _logits_of(logits, row, slot, slots, experts, E: tl.constexpr):
    """Those of some slots of a row; beyond the last slot 0, beyond the last expert -∞. [T E]"""
    expert = tl.arange(0, E)[None, :]
    places = logits + (row * slots + slot[:, None]) * experts + expert
    inside = (slot[:, None] < slots) & (expert < experts)
    found = tl.load(places, mask=inside, other=0.0)
    return tl.where(expert < experts, found, float("-inf"))


@triton.jit
def choose(
    logits, chosen, weights, number, kept, log_sum, sums, slots, experts, room,
    T: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """One row: each token's likeliest expert, how likely it is, and how many tokens before it chose the same one.

    `sums` is the row's part of a tally: tokens, how often each expert was chosen, the sum of its probabilities, that of
    the squares of log Σ exp, and how many found their expert full.
    """
    row, expert = tl.program_id(0).to(tl.int64), tl.arange(0, E)
    counts = tl.zeros([E], tl.int32)
    likely = tl.zeros([E], tl.float32)
    squares = tl.zeros([T], tl.float32)
    full = tl.zeros([T], tl.float32)
    for start in range(0, slots, T):
        slot = start + tl.arange(0, T)
        real = slot < slots
        x = _logits_of(logits, row, slot, slots, experts, E)
        largest = tl.max(x, 1)
        p = tl.exp(x - largest[:, None])
        total = tl.sum(p, 1)
        p = p / total[:, None]
        logarithm = largest + tl.log(total)
        best = tl.minimum(tl.argmax(p, 1), experts - 1)  # where logits are no numbers, too
        chose = ((best[:, None] == expert[None, :]) & real[:, None]).to(tl.int32)  # [T E]
        before = tl.sum(chose * (tl.cumsum(chose, 0) - 1 + counts[None, :]), 1)
        has_room = before < room
        place = row * slots + slot
        tl.store(chosen + place, best.to(tl.int64), mask=real)
        tl.store(weights + place, tl.where(has_room, tl.sum(chose.to(tl.float32) * p, 1), 0.0), mask=real)
        tl.store(number + place, before.to(tl.int64), mask=real)
        tl.store(kept + place, has_room.to(tl.int8), mask=real)
        tl.store(log_sum + place, logarithm, mask=real)
        counts += tl.sum(chose, 0)
        likely += tl.sum(tl.where(real[:, None], p, 0.0), 0)
        squares += tl.where(real, logarithm * logarithm, 0.0)
        full += tl.where(real & (before >= room), 1.0, 0.0)
    sums += row * (2 * experts + 3)
    tl.store(sums, 1.0 * slots)
    tl.store(sums + 1 + expert, counts.to(tl.float32), mask=expert < experts)
    tl.store(sums + 1 + experts + expert, likely, mask=expert < experts)
    tl.store(sums + 1 + 2 * experts, tl.sum(squares, 0))
    tl.store(sums + 2 + 2 * experts, tl.sum(full, 0))


@triton.jit
def choose_backward(
    logits, chosen, kept, log_sum, from_weights, from_sums, to_logits, slots, experts, sums_stride,
    WEIGHED: tl.constexpr, SUMMED: tl.constexpr, T: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """The gradient of the logits: of the probabilities chosen, of sums of all probabilities, and of the squares."""
    row, expert = tl.program_id(1).to(tl.int64), tl.arange(0, E)
    slot = tl.program_id(0) * T + tl.arange(0, T)
    real, place = slot < slots, row * slots + slot
    x = _logits_of(logits, row, slot, slots, experts, E)
    logarithm = tl.load(log_sum + place, mask=real, other=0.0)
    p = tl.exp(x - logarithm[:, None])
    above = tl.zeros([T, E], tl.float32)
    if WEIGHED:
        best = tl.load(chosen + place, mask=real, other=0).to(tl.int32)
        pull = tl.load(from_weights + place, mask=real, other=0.0)
        pull = tl.where(tl.load(kept + place, mask=real, other=0) != 0, pull, 0.0)
        above += tl.where(best[:, None] == expert[None, :], pull[:, None], 0.0)
    if SUMMED:
        from_sums += row * sums_stride
        above += tl.load(from_sums + 1 + experts + expert, mask=expert < experts, other=0.0)[None, :]
    gradient = p * (above - tl.sum(p * above, 1)[:, None])
    if SUMMED:
        gradient += p * (2.0 * tl.load(from_sums + 1 + 2 * experts) * logarithm)[:, None]
    places = to_logits + place[:, None] * experts + expert[None, :]
    tl.store(places, gradient, mask=real[:, None] & (expert[None, :] < experts))


@triton.jit
def places_of(
    chosen, number, sums, place, order, slots, experts, room,
    T: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """One row: the place of each token among `room` places that every expert has for every row, and who is where.

    -1: no place, and nobody.
    """
    row, rows, expert = tl.program_id(0).to(tl.int64), tl.num_programs(0), tl.arange(0, E)
    for start in range(0, slots, T):
        slot = start + tl.arange(0, T)
        token = row * slots + slot
        best = tl.load(chosen + token, mask=slot < slots, other=0)
        before = tl.load(number + token, mask=slot < slots, other=0)
        found, inside = (best * rows + row) * room + before, (before < room) & (slot < slots)
        tl.store(place + token, tl.where(inside, found, -1), mask=slot < slots)
        tl.store(order + found, token, mask=inside)
    counts = tl.load(sums + row * (2 * experts + 3) + 1 + expert, mask=expert < experts, other=0.0).to(tl.int32)
    for start in range(0, room, T):
        empty = start + tl.arange(0, T)[:, None]
        nobody = (empty >= counts[None, :]) & (empty < room) & (expert[None, :] < experts)
        tl.store(order + (expert[None, :] * rows + row) * room + empty, -1, mask=nobody)


@triton.jit
def sorted_places(
    chosen, number, sums, place, order, group, ends, slots, experts,
    T: tl.constexpr, E: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """One row: the place of each token where all tokens of all rows stand expert by expert, row by row. B rows."""
    row, rows, expert = tl.program_id(0).to(tl.int64), tl.num_programs(0), tl.arange(0, E)
    total = tl.zeros([E], tl.int32)
    before = tl.zeros([E], tl.int32)  # those of rows before this one
    for start in range(0, rows, B):
        other = start + tl.arange(0, B)
        inside = (other[:, None] < rows) & (expert[None, :] < experts)
        counts = tl.load(sums + other[:, None] * (2 * experts + 3) + 1 + expert[None, :], mask=inside, other=0.0)
        total += tl.sum(counts.to(tl.int32), 0)
        before += tl.sum(tl.where(other[:, None] < row, counts, 0.0).to(tl.int32), 0)
    last = tl.cumsum(total, 0)
    if row == 0:
        tl.store(ends + expert, last, mask=expert < experts)
    first = last - total + before
    for start in range(0, slots, T):
        slot = start + tl.arange(0, T)
        token, real = row * slots + slot, slot < slots
        best = tl.load(chosen + token, mask=real, other=0)
        found = tl.sum(tl.where(best[:, None] == expert[None, :], first[None, :], 0), 1)
        found = found + tl.load(number + token, mask=real, other=0)
        tl.store(place + token, found, mask=real)
        tl.store(order + found, token, mask=real)
        tl.store(group + found, best.to(group.dtype.element_ty), mask=real)


@triton.jit
def carry(
    x, index, weights, moved, rows, width, share,
    COPIES: tl.constexpr, OWN: tl.constexpr, THEIRS: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """moved[i] = Σ x[index[i·COPIES + c] / share] over c, each times its weight; an index of -1 is nothing.

    OWN weights are those of the rows of `moved`, THEIRS those of what an index says.
    """
    row = (tl.program_id(0) * R + tl.arange(0, R)).to(tl.int64)
    column = tl.program_id(1) * D + tl.arange(0, D)
    made = tl.zeros([R, D], tl.float32)
    for copy in tl.static_range(COPIES):
        source = tl.load(index + row * COPIES + copy, mask=row < rows, other=-1)
        inside = (source[:, None] >= 0) & (column[None, :] < width)
        found = tl.load(x + source[:, None] // share * width + column[None, :], mask=inside, other=0.0).to(tl.float32)
        if THEIRS:
            found *= tl.load(weights + source, mask=source >= 0, other=0.0)[:, None]
        made += found
    if OWN:
        made *= tl.load(weights + row, mask=row < rows, other=0.0)[:, None]
    inside = (row[:, None] < rows) & (column[None, :] < width)
    tl.store(moved + row[:, None] * width + column[None, :], made.to(moved.dtype.element_ty), mask=inside)


@triton.jit
def products(x, index, other, made, rows, width, R: tl.constexpr, D: tl.constexpr):
    """made[i] = Σ other[i] · x[index[i]] over their columns; an index of -1 gives 0."""
    row = (tl.program_id(0) * R + tl.arange(0, R)).to(tl.int64)
    source = tl.load(index + row, mask=row < rows, other=-1)
    total = tl.zeros([R, D], tl.float32)
    for start in range(0, width, D):
        column = start + tl.arange(0, D)
        inside = (source[:, None] >= 0) & (column[None, :] < width)
        found = tl.load(x + source[:, None] * width + column[None, :], mask=inside, other=0.0).to(tl.float32)
        total += found * tl.load(other + row[:, None] * width + column[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(made + row, tl.sum(total, 1), mask=row < rows)
