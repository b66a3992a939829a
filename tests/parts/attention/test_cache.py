"""Decoding step by step with a cache gives what decoding at once gives, for both caches and every kind of row."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention, CrossAttention
from qkv.parts.attention.cache import Cache, PreallocatedCache
from qkv.parts.attention.visibility import Causal, Everything, NotPadding, Rule, SameDocument, Tokens, Window
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.norm import LayerNorm
from qkv.parts.position import ALiBi, Rotary, positions_in_documents, rotary_rates
from qkv.parts.residual import PreNorm
from qkv.parts.stack import Stack
from tests.parts.attention.cases import documents

WIDTH, HEADS, SIZE = 8, 2, 11
STEPS = [(1,) * SIZE, (3, 1, 5, 2), (4, 7), (SIZE,)]
CACHES: dict[str, Callable[[], Cache]] = {"growing": Cache, "preallocated": lambda: PreallocatedCache(SIZE)}


def decoder() -> Stack:
    """Two layers that would notice every wrong index: rotary positions, a biased score, a window, a memory."""

    def block(visibility: Rule) -> Block:
        attention = Attention(WIDTH, HEADS, visibility=visibility, rotary=Rotary(rotary_rates(4)), key_value_heads=1)
        return Block(
            attention=PreNorm(LayerNorm(WIDTH), attention),
            cross=PreNorm(LayerNorm(WIDTH), CrossAttention(WIDTH, HEADS)),
        )

    return Stack([block(Causal()), block(Causal() & Window(4))], bias=ALiBi(HEADS)).eval()


def decode(
    stack: Stack,
    x: Tensor,
    memory: Tensor,
    *,
    steps: tuple[int, ...] = (SIZE,),
    cache: Cache | None = None,
    numbers: Tensor | None = None,
    visibility: Rule = Everything(),
) -> Tensor:
    """All steps one after another, each with the tokens of its own slots."""
    outputs, start = [], 0 if cache is None else cache.length
    for size, part in zip(steps, x.split(steps, 1), strict=True):
        end = start + size
        tokens = Tokens(size, start, None if numbers is None else numbers[:, start:end])
        positions = None if numbers is None else positions_in_documents(numbers)[:, start:end]
        ctx = Context(tokens=tokens, visibility=visibility, positions=positions, memory=memory, cache=cache)
        if numbers is not None:
            ctx = Context(
                **{**vars(ctx), "memory_tokens": Tokens(memory.shape[1], documents=torch.ones(memory.shape[:2]))}
            )
        outputs.append(stack(part, ctx))
        if cache is not None:
            cache.advance(tokens)
        start = end
    return torch.cat(outputs, 1)


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize("kind", CACHES)
@torch.no_grad()
def test_steps_of_any_size_give_what_one_pass_gives(kind: str, steps: tuple[int, ...]) -> None:
    stack, x, memory = decoder(), torch.randn(3, SIZE, WIDTH), torch.randn(3, 5, WIDTH)
    cache = CACHES[kind]()
    assert_close(decode(stack, x, memory, steps=steps, cache=cache), decode(stack, x, memory))
    assert cache.length == SIZE


@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("rows", ["left", "right"])
@torch.no_grad()
def test_steps_remember_which_slots_were_padding(kind: str, steps: tuple[int, ...], rows: str) -> None:
    stack, x, memory = decoder(), torch.randn(3, SIZE, WIDTH), torch.randn(3, 5, WIDTH)
    given = {"numbers": documents(rows, SIZE), "visibility": NotPadding()}
    found = decode(stack, x, memory, steps=steps, cache=CACHES[kind](), **given)
    assert_close(found, decode(stack, x, memory, **given))
    assert found.isfinite().all()


@pytest.mark.parametrize("kind", CACHES)
@torch.no_grad()
def test_a_row_padded_on_the_left_decodes_as_it_would_alone(kind: str) -> None:
    stack, x, memory = decoder(), torch.randn(3, SIZE, WIDTH), torch.randn(3, 5, WIDTH)
    numbers = documents("left", SIZE)
    assert numbers is not None
    length = int(numbers[1].sum())
    found = decode(
        stack, x, memory, steps=(2, 6, 1, 1, 1), cache=CACHES[kind](), numbers=numbers, visibility=NotPadding()
    )
    alone = decode(stack, x[1:2, -length:], memory[1:2], steps=(length,))
    assert_close(found[1:2, -length:], alone)


@pytest.mark.parametrize("kind", CACHES)
@torch.no_grad()
def test_documents_of_a_packed_row_stay_apart_over_steps(kind: str) -> None:
    stack, x, memory = decoder(), torch.randn(3, SIZE, WIDTH), torch.randn(3, 5, WIDTH)
    numbers = torch.ones(3, SIZE, dtype=torch.long)
    numbers[:, 6:] = 2
    # The memory is of one document; cross-attention would hide it from the second, so only self-attention is looked at.
    mixers = nn.ModuleList(Block(attention=block.attention) for block in stack.blocks)
    stack = Stack(mixers, bias=stack.bias)
    given = {"numbers": numbers, "visibility": SameDocument()}
    found = decode(stack, x, memory, steps=(4, 1, 1, 5), cache=CACHES[kind](), **given)
    assert_close(found, decode(stack, x, memory, **given))
    assert_close(found[:, 6:], decode(stack, x[:, 6:], memory, steps=(5,)))


@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 1], [0, 2], [0, 0, 1, 2, 2]], ids=str)
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_selected_rows_go_on_as_if_they_had_always_stood_there(kind: str, rows: list[int], padded: bool) -> None:
    stack, x, memory = decoder(), torch.randn(3, SIZE, WIDTH), torch.randn(3, 5, WIDTH)
    numbers, chosen = documents("left", SIZE) if padded else None, torch.tensor(rows)
    visibility = NotPadding() if padded else Everything()
    cache = CACHES[kind]()
    decode(stack, x[:, :4], memory, steps=(4,), cache=cache, numbers=numbers, visibility=visibility)
    cache.select(chosen, chosen)
    numbers = None if numbers is None else numbers[chosen]
    later = torch.randn(len(rows), SIZE - 4, WIDTH)
    found = decode(stack, later, memory[chosen], steps=(3, 4), cache=cache, numbers=numbers, visibility=visibility)
    whole = torch.cat((x[chosen, :4], later), 1)
    expected = decode(stack, whole, memory[chosen], numbers=numbers, visibility=visibility)
    assert_close(found, expected[:, 4:])


@pytest.mark.parametrize("kind", CACHES)
@torch.no_grad()
def test_beams_are_reordered_within_a_memory_row_that_stays(kind: str) -> None:
    stack, memory, cache = decoder(), torch.randn(2, 5, WIDTH), CACHES[kind]()
    x, later = torch.randn(4, 3, WIDTH), torch.randn(4, 2, WIDTH)  # two beams for each of two rows
    decode(stack, x, memory, steps=(3,), cache=cache)
    order = torch.tensor([1, 1, 2, 3])
    cache.select(order)
    found = decode(stack, later, memory, steps=(1, 1), cache=cache)
    copies = memory.repeat_interleave(2, 0)
    assert_close(found, decode(stack, torch.cat((x[order], later), 1), copies, steps=(5,))[:, 3:])


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [0, 1, 5, 7])
@torch.no_grad()
def test_a_cut_cache_goes_on_as_if_the_rest_had_never_been_decoded(kind: str, padded: bool, length: int) -> None:
    stack, x, memory = decoder(), torch.randn(3, SIZE, WIDTH), torch.randn(3, 5, WIDTH)
    given = {"numbers": documents("left", SIZE), "visibility": NotPadding()} if padded else {}
    cache = CACHES[kind]()
    wrong = torch.cat((x[:, :length], torch.randn(3, 7 - length, WIDTH)), 1)
    decode(stack, wrong, memory, steps=(7,), cache=cache, **given)
    cache.truncate(length)
    assert cache.length == length
    found = decode(stack, x[:, length:], memory, steps=(1,) * (SIZE - length), cache=cache, **given)
    assert_close(found, decode(stack, x, memory, **given)[:, length:])


@pytest.mark.parametrize("length", [-1, 3])
@pytest.mark.parametrize("kind", CACHES)
@torch.no_grad()
def test_a_cache_cannot_be_cut_to_what_it_does_not_hold(kind: str, length: int) -> None:
    cache = CACHES[kind]()
    decode(decoder(), torch.randn(1, 2, WIDTH), torch.randn(1, 5, WIDTH), steps=(2,), cache=cache)
    with pytest.raises(QkvError, match=f"cut to {length}"):
        cache.truncate(length)


@torch.no_grad()
def test_the_memory_is_read_once() -> None:
    stack, x, memory, cache = decoder(), torch.randn(1, SIZE, WIDTH), torch.randn(1, 5, WIDTH), Cache()
    calls = []
    cross = stack.blocks[0].cross.mixer
    cross.project.register_forward_hook(lambda *_: calls.append(1))
    decode(stack, x, memory, steps=(1,) * SIZE, cache=cache)
    assert len(calls) == 1


@torch.no_grad()
def test_a_preallocated_cache_never_shows_a_slot_it_has_not_written() -> None:
    """Its memory is not cleared: what happens to lie there must not matter."""
    stack, x, memory = decoder(), torch.randn(1, 4, WIDTH), torch.randn(1, 5, WIDTH)
    cache = PreallocatedCache(SIZE)
    decode(stack, x[:, :1], memory, steps=(1,), cache=cache)
    for k, v in cache._steps.values():
        k[:, :, 1:], v[:, :, 1:] = torch.nan, torch.nan
    found = decode(stack, x[:, 1:], memory, steps=(2, 1), cache=cache)
    assert_close(found, decode(stack, x, memory, steps=(4,))[:, 1:])


@torch.no_grad()
def test_a_preallocated_cache_writes_in_place() -> None:
    stack, x, memory, cache = decoder(), torch.randn(2, 4, WIDTH), torch.randn(2, 5, WIDTH), PreallocatedCache(SIZE)
    decode(stack, x[:, :1], memory, steps=(1,), cache=cache)
    cache.select(torch.tensor([1, 0]))
    before = [tensor.data_ptr() for pair in cache._steps.values() for tensor in pair]
    decode(stack, x[:, 1:], memory, steps=(1, 2), cache=cache)
    assert [tensor.data_ptr() for pair in cache._steps.values() for tensor in pair] == before


@torch.no_grad()
def test_a_note_is_kept_while_keys_and_values_stay_where_they_are() -> None:
    stack, x, memory, cache = decoder(), torch.randn(2, 4, WIDTH), torch.randn(2, 5, WIDTH), PreallocatedCache(SIZE)
    rows, other = torch.tensor([1, 0]), Attention(WIDTH, HEADS)
    assert cache.noted(stack) is None

    def moves(change: Callable[[], object]) -> bool:
        cache.note(stack, "seen")
        change()
        return cache.noted(stack) is None

    assert moves(lambda: decode(stack, x[:, :1], memory, steps=(1,), cache=cache))  # rooms are made
    assert not moves(lambda: decode(stack, x[:, 1:], memory, steps=(1, 2), cache=cache))
    assert not moves(lambda: cache.truncate(2))
    assert moves(lambda: cache.select(rows))  # these are few: into new rooms
    assert moves(lambda: cache.select(rows, rows))
    assert moves(lambda: cache.extend(other, torch.zeros(2, HEADS, 1, 4), torch.zeros(2, HEADS, 1, 4)))


@torch.no_grad()
def test_a_full_cache_says_so() -> None:
    stack, x, memory = decoder(), torch.randn(1, 4, WIDTH), torch.randn(1, 5, WIDTH)
    with pytest.raises(QkvError, match="holds 3 slots and slot 4"):
        decode(stack, x, memory, steps=(2, 2), cache=PreallocatedCache(3))


@pytest.mark.parametrize("first", [True, False], ids=["forgotten", "too late"])
@torch.no_grad()
def test_documents_are_given_at_every_step_or_at_none(first: bool) -> None:
    """Otherwise a later step would take the padding of an earlier one for words."""
    stack, x, memory, cache = decoder(), torch.randn(3, 4, WIDTH), torch.randn(3, 5, WIDTH), Cache()
    given = {"numbers": documents("left", 4), "visibility": NotPadding()}
    decode(stack, x[:, :2], memory, steps=(2,), cache=cache, **(given if first else {}))
    with pytest.raises(QkvError, match="every step"):
        decode(stack, x[:, 2:], memory, steps=(2,), cache=cache, **({} if first else given))


@pytest.mark.parametrize("kind", CACHES)
@torch.no_grad()
def test_a_step_that_does_not_start_where_the_cache_ends_is_said(kind: str) -> None:
    """Its queries would stand at the wrong place: here the second token would not see the first."""
    attention, x, cache = Attention(WIDTH, HEADS, visibility=Causal()), torch.randn(1, 2, WIDTH), CACHES[kind]()
    first = Tokens(1)
    attention(x[:, :1], Context(tokens=first, cache=cache))
    cache.advance(first)
    with pytest.raises(QkvError, match=r"start=cache\.length"):
        attention(x[:, 1:], Context(tokens=Tokens(1), cache=cache))
