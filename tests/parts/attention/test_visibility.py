"""Rules as tables, by brute force; their composition and equality; and the forms a mask takes."""

import itertools

import pytest
import torch

from qkv.errors import QkvError
from qkv.parts.attention.visibility import (
    Both,
    Causal,
    Chunks,
    Everything,
    Fixed,
    GlobalTokens,
    Mask,
    NotPadding,
    Rule,
    SameDocument,
    Strided,
    Tokens,
    Window,
)
from tests.parts.attention.cases import LENGTHS, ROWS, SITUATIONS, documents, marks, mask, table, tokens


@pytest.mark.parametrize("size", [size for size in LENGTHS if size < 60])
@pytest.mark.parametrize("name", SITUATIONS)
def test_the_table_of_a_rule_is_what_it_says_of_each_pair(name: str, size: int) -> None:
    m = mask(SITUATIONS[name], size)
    assert torch.equal(m.dense.expand(ROWS, 1, size, size)[:, 0], table(SITUATIONS[name], m.query, m.key))


@pytest.mark.parametrize(("queries", "start", "keys", "key_start"), [(1, 7, 8, 0), (3, 5, 8, 0), (4, 2, 5, 3)])
@pytest.mark.parametrize("name", [name for name, situation in SITUATIONS.items() if situation.rows is None])
def test_a_table_counts_from_the_start_of_each_side(
    name: str, queries: int, start: int, keys: int, key_start: int
) -> None:
    m = Mask(SITUATIONS[name].rule, Tokens(queries, start), Tokens(keys, key_start), "cpu")
    assert torch.equal(m.dense.expand(ROWS, 1, queries, keys)[:, 0], table(SITUATIONS[name], m.query, m.key))


def test_the_tables_of_the_papers() -> None:
    """Rows written out by hand, for the eye."""

    def drawn(rule: Rule, size: int = 6) -> list[str]:
        dense = Mask(rule, Tokens(size), Tokens(size), "cpu").dense.expand(1, 1, size, size)[0, 0]
        return ["".join("x" if seen else "." for seen in row) for row in dense.tolist()]

    assert drawn(Causal() & Window(2)) == ["x.....", "xx....", ".xx...", "..xx..", "...xx.", "....xx"]
    assert drawn(Window(2, step=2)) == ["x.x...", ".x.x..", "x.x.x.", ".x.x.x", "..x.x.", "...x.x"]
    assert drawn(Causal() & Strided(3)) == ["x.....", ".x....", "..x...", "x..x..", ".x..x.", "..x..x"]
    assert drawn(Causal() & Fixed(3, 1)) == ["x.....", "xx....", "xxx...", "..xx..", "..xxx.", "..xxxx"]
    assert drawn(Causal() & Chunks(2)) == ["x.....", "xx....", "xxx...", "xxxx..", "..xxx.", "..xxxx"]
    assert drawn(Chunks(2, 0, 1), 5) == ["xxxx.", "xxxx.", "..xxx", "..xxx", "....x"]
    assert drawn(GlobalTokens(1), 3) == ["xxx", "x..", "x.."]


RULES = [situation.rule for situation in SITUATIONS.values()]


@pytest.mark.parametrize("rule", [Everything(), Causal(), Window(3), NotPadding(), SameDocument()], ids=str)
@pytest.mark.parametrize("other", [Everything(), Strided(2), NotPadding(), ~Causal()], ids=str)
def test_composition_is_that_of_the_tables(rule: Rule, other: Rule) -> None:
    side = tokens("packed", 9)

    def dense(composed: Rule) -> torch.Tensor:
        return Mask(composed, side, side, "cpu").dense.expand(ROWS, 1, 9, 9)

    assert torch.equal(dense(rule & other), dense(rule) & dense(other))
    assert torch.equal(dense(rule | other), dense(rule) | dense(other))
    assert torch.equal(dense(~rule), ~dense(rule))


def test_everything_and_repetition_vanish_from_a_conjunction() -> None:
    assert Everything() & Causal() == Causal()
    assert Causal() & Everything() == Causal()
    assert Causal() & Causal() == Causal()


def test_rules_are_values() -> None:
    """Equal rules are equal keys of a dictionary, different rules are different ones."""

    def fresh() -> list[Rule]:
        return [
            *(Everything(), Causal(), Window(3), Window(4), Window(3, 2), Strided(3), Strided(4), Fixed(3, 1)),
            *(Chunks(3), Chunks(3, 0), Chunks(3, 1, 1)),
            *(Fixed(3, 2), GlobalTokens(3), NotPadding(), SameDocument(), ~Causal(), ~Window(3)),
            *(Causal() & Window(3), Window(3) & Causal(), Causal() | Window(3), Causal() & (Window(3) | Strided(3))),
        ]

    names = {rule: number for number, rule in enumerate(fresh())}
    assert len(names) == len(fresh())
    assert [names[rule] for rule in fresh()] == list(range(len(names)))


def test_a_rule_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Window(3).size = 4  # type: ignore[misc]


@pytest.mark.parametrize("rule", RULES, ids=list(SITUATIONS))
def test_a_rule_that_does_not_read_the_query_shows_all_queries_the_same(rule: Rule) -> None:
    side = tokens("packed", 9, marked=True)
    query = Tokens(9, documents=torch.randint(0, 4, (ROWS, 9)), marks=torch.rand(ROWS, 9) < 0.5)
    dense = Mask(rule, query, side, "cpu").dense.expand(ROWS, 1, 9, 9)
    if not rule.reads_query:
        assert (dense == dense[:, :, :1]).all()
    else:
        assert (dense != dense[:, :, :1]).any()


def test_a_flag_is_true_to_the_table_whatever_the_sizes_and_starts() -> None:
    """`all` where the table is all true, `causal` where it is the lower triangle that torch calls causal."""
    flags = set()
    rules = [*RULES, NotPadding() & Causal(), Both(Everything(), NotPadding()), Both(Window(2), NotPadding())]
    rules = [rule for rule in rules if "SameDocument" not in str(rule)]
    starts, sizes = (0, 1, 2, 5), (1, 2, 3, 6)
    for rule, start, key_start, queries, keys in itertools.product(rules, starts, starts, sizes, sizes):
        for numbers in (None, documents("left", keys)):
            m = Mask(rule, Tokens(queries, start), Tokens(keys, key_start, numbers), "cpu")
            dense = m.dense.expand(-1, 1, queries, keys)
            flags.add(m.flag)
            if m.flag == "all":
                assert dense.all(), (rule, m.query, m.key)
            elif m.flag == "causal":
                assert queries == keys
                assert (dense == torch.ones(queries, keys, dtype=torch.bool).tril()).all(), (rule, m.query, m.key)
    assert flags == {"all", "causal", None}


@pytest.mark.parametrize(
    ("rule", "query", "key", "flag"),
    [
        (Everything(), Tokens(3), Tokens(5), "all"),
        (NotPadding(), Tokens(3), Tokens(5), "all"),
        (NotPadding(), Tokens(3), tokens("right", 5), None),
        (Causal(), Tokens(5), Tokens(5), "causal"),
        (Causal() & NotPadding(), Tokens(5), Tokens(5), "causal"),
        (Causal() & NotPadding(), tokens("right", 5), tokens("right", 5), None),
        (Causal(), Tokens(1, 4), Tokens(5), "all"),
        (Causal() & NotPadding(), Tokens(1, 4), Tokens(5), "all"),
        (Causal(), Tokens(2, 3), Tokens(5), None),
        (Causal() & Window(2), Tokens(5), Tokens(5), None),
        (~Causal(), Tokens(5), Tokens(5), None),
    ],
)
def test_the_common_masks_are_recognised_as_flags(rule: Rule, query: Tokens, key: Tokens, flag: str | None) -> None:
    assert Mask(rule, query, key, "cpu").flag == flag


def test_padded_tokens_are_numbered_up_to_their_length() -> None:
    side = Tokens.padded(torch.tensor([3, 0, 4]), 4)
    assert (side.size, side.start) == (4, 0)
    assert side.documents is not None
    assert side.documents.tolist() == [[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize("length", [5, -1])
def test_a_length_that_does_not_fit_its_row_is_refused(length: int) -> None:
    with pytest.raises(QkvError, match=f"row of 4 slots cannot hold {length} tokens"):
        Tokens.padded(torch.tensor([3, length]), 4)


def test_lengths_on_a_device_are_not_looked_at() -> None:
    """Looking would make it wait; `meta` stands for any device but the CPU and has no numbers to look at."""
    assert Tokens.padded(torch.tensor([5], device="meta"), 4).size == 4


def test_no_rows_have_no_lengths() -> None:
    assert Tokens.padded(torch.tensor([], dtype=torch.long), 4).size == 4


def test_selected_tokens_are_those_rows() -> None:
    side = Tokens(4, 2, documents("right", 4))
    chosen = side.select(torch.tensor([2, 0, 0]))
    assert (chosen.size, chosen.start) == (4, 2)
    assert chosen.documents is not None
    assert chosen.documents.tolist() == [[0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert Tokens(4, marks=marks(4)).select(torch.tensor([2, 1])).marks.tolist() == [
        [False, False, False, True],
        [False, False, True, False],
    ]
    plain = Tokens(4)
    assert plain.select(torch.tensor([1])) is plain


def test_same_document_without_documents_says_what_is_missing() -> None:
    with pytest.raises(QkvError, match="document numbers"):
        _ = Mask(SameDocument(), Tokens(3), Tokens(3), "cpu").dense


def test_marked_slots_are_named_row_by_row() -> None:
    slots, real = Tokens(9, marks=marks(9)).marked_slots()
    assert [row[kept].tolist() for row, kept in zip(slots, real, strict=True)] == [[], [2, 7], [8]]


def test_queries_that_see_nothing_are_known() -> None:
    m = mask(SITUATIONS["causal, padded left"], 4)
    assert m.sees_something[:, 0, :, 0].tolist() == [[True] * 4, [False, False, True, True], [False] * 4]
    assert m.without_empty_rows.any(-1).all()
    assert torch.equal(m.without_empty_rows & m.sees_something, m.dense)


def test_a_bias_is_masked_once_for_all_layers_that_share_it() -> None:
    side = Tokens.padded(torch.tensor([2, 3]), 3)
    m = Mask(NotPadding(), side, side, "cpu")
    bias, other = torch.randn(1, 2, 3, 3), torch.randn(1, 2, 3, 3)
    found = m.added_to(bias)
    assert m.added_to(bias) is found
    assert torch.equal(found, bias.expand(2, -1, -1, -1).masked_fill(~m.dense, -torch.inf))
    assert torch.equal(m.added_to(other), other.expand(2, -1, -1, -1).masked_fill(~m.dense, -torch.inf))
