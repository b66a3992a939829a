"""Hidden tokens: the shares are BERT's, special tokens are left alone, and words can stay whole."""

import numpy as np
import pytest

from qkv.data.batches import Batches
from qkv.data.masking import MaskedRows, Masking, continuations
from qkv.data.plan import FixedShapes, PlannedBatch, TokenBudget
from qkv.data.text_rows import TextRows
from qkv.data.token_rows import TokenRows
from qkv.errors import QkvError

PAD, CLS, SEP, MASK = 0, 1, 2, 3
VOCABULARY = 100


def masking(**changes) -> Masking:
    return Masking(**{"mask": MASK, "vocabulary": VOCABULARY, "special": [PAD, CLS, SEP], **changes})


def some_texts(count=200, longest=60, seed=0) -> TextRows:
    generator = np.random.default_rng(seed)
    rows = [[CLS, *generator.integers(4, VOCABULARY, generator.integers(1, longest)), SEP] for _ in range(count)]
    return TextRows(TokenRows.from_lists(rows, PAD), None, np.arange(count))


def everything(rows: MaskedRows):
    return rows.batch(PlannedBatch(np.arange(len(rows)), int(rows.texts.tokens.lengths.max()), 1))


def test_the_shares_are_those_of_the_paper():
    texts = some_texts(2000)
    batch = everything(MaskedRows(texts, masking()))
    original = texts.batch(PlannedBatch(np.arange(len(texts)), batch.ids.shape[1], 1)).ids
    seen = batch.ids.flatten()[batch.places]
    assert (batch.wanted == original.flatten()[batch.places]).all()
    ordinary = int((original > MASK).sum())
    assert len(batch.places) == pytest.approx(0.15 * ordinary, rel=0.03)
    # [devlin2019 §3.1]: 80% masks, 10% random tokens (a hundredth of which are right by chance), 10% as they were
    assert float((seen == MASK).float().mean()) == pytest.approx(0.8, abs=0.02)
    assert float((seen == batch.wanted).float().mean()) == pytest.approx(0.1, abs=0.02)
    untouched = np.setdiff1d(np.arange(original.numel()), batch.places.numpy())
    assert (batch.ids.flatten()[untouched] == original.flatten()[untouched]).all()


def test_special_tokens_are_neither_hidden_nor_put_in():
    batch = everything(MaskedRows(some_texts(2000), masking(masked=0.0, random=1.0)))
    assert batch.wanted.min() > MASK
    assert batch.ids.flatten()[batch.places].min() > MASK


def test_every_text_has_something_hidden():
    texts = some_texts(300, longest=4)
    batch = everything(MaskedRows(texts, masking()))
    rows = np.unique(batch.places.numpy() // batch.ids.shape[1])
    assert rows.tolist() == list(range(300))
    nothing = TextRows(TokenRows.from_lists([[CLS, SEP]], PAD), None, np.arange(1))
    assert len(everything(MaskedRows(nothing, masking())).places) == 0


def test_words_stay_whole():
    continues = np.zeros(VOCABULARY, bool)
    continues[50:] = True  # ids of 50 and more are pieces inside words
    texts = some_texts(500)
    batch = everything(MaskedRows(texts, masking(continues=continues)))
    width = batch.ids.shape[1]
    hidden = set(batch.places.tolist())
    for row in range(len(texts)):
        ids = texts.tokens[row]
        for slot in range(2, len(ids) - 1):
            if continues[ids[slot]]:
                assert (row * width + slot in hidden) == (row * width + slot - 1 in hidden)
    # A word that would go past the budget is left out, but one word is always hidden.
    assert 0.1 < len(hidden) / sum(len(texts.tokens[row]) - 2 for row in range(500)) < 0.16


def test_epochs_differ_and_a_position_repeats():
    def rows(epoch):
        return MaskedRows(some_texts(), masking(), seed=(5, epoch))

    one, two = Batches(rows, TokenBudget(512), seed=5), Batches(rows, TokenBudget(512), seed=5)
    first, second = list(one), list(one)
    assert all((a.ids == b.ids).all() for a, b in zip(first, two, strict=True))
    assert sum(len(batch.places) for batch in first) == sum(len(batch.places) for batch in second)
    assert not np.array_equal(everything(rows(0)).places, everything(rows(1)).places)
    after = Batches(rows, TokenBudget(512), seed=5)
    after.load_state_dict({**after.state_dict(), "epoch": 1, "index": 2})
    assert (next(iter(after)).ids == second[2].ids).all()


def test_filler_rows_hide_nothing():
    (batch,) = Batches(MaskedRows(some_texts(3, 10), masking()), FixedShapes(33 * 8, (32,)))
    assert batch.ids.shape == (8, 32)
    assert int(batch.places.max()) < 3 * 32


def test_words_are_told_by_the_marks_of_the_tokenizer():
    assert continuations(["[CLS]", "play", "##ing", "."]).tolist() == [False, False, True, False]
    assert continuations(["<s>", "▁play", "ing", ".", "’s"]).tolist() == [True, False, True, False, True]
    assert continuations(["Ġplay", "ing"]).tolist() == [False, True]
    with pytest.raises(QkvError, match="does not mark"):
        continuations(["a", "b"])


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(QkvError, match="between 0 and 1"):
        masking(rate=0.0)
    with pytest.raises(QkvError, match="at most 1"):
        masking(masked=0.8, random=0.3)
    with pytest.raises(QkvError, match="flags"):
        masking(continues=np.zeros(3, bool))
    with pytest.raises(QkvError, match="nothing to hide"):
        masking(special=range(VOCABULARY))
