"""Every shaper against the reference library's processor, on random scores, exactly."""

import pytest
import torch
from transformers.generation import logits_process as reference

from qkv.errors import QkvError
from qkv.generate.history import Forbidden, History, NotBefore, shaped
from qkv.generate.shape import (
    FrequencyPenalty,
    MinP,
    NoRepeat,
    PresencePenalty,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
    Typical,
)

V = 40


def scores(seed: int, holes: bool = False) -> torch.Tensor:
    torch.manual_seed(seed)
    made = 3 * torch.randn(6, V)
    made[1, :7] = made[1, 7]  # equals
    made[2, 3] += 30  # one token that is all but certain
    if holes:
        made[:, 5:30] = -torch.inf
    return made


def history(seed: int, slots: int = 25, vocabulary: int = 6) -> History:
    torch.manual_seed(seed)
    return History(torch.randint(0, vocabulary, (6, slots)), prompt=10)


CASES = {
    "temperature": (Temperature(0.7), reference.TemperatureLogitsWarper(0.7)),
    "hot": (Temperature(1.9), reference.TemperatureLogitsWarper(1.9)),
    "top-k 1": (TopK(1), reference.TopKLogitsWarper(1)),
    "top-k 5": (TopK(5), reference.TopKLogitsWarper(5)),
    "top-k all": (TopK(500), reference.TopKLogitsWarper(500)),
    "top-p 0.01": (TopP(0.01), reference.TopPLogitsWarper(0.01)),
    "top-p 0.9": (TopP(0.9), reference.TopPLogitsWarper(0.9)),
    "top-p 1": (TopP(1.0), reference.TopPLogitsWarper(1.0)),
    "min-p 0.05": (MinP(0.05), reference.MinPLogitsWarper(0.05)),
    "min-p 1": (MinP(1.0), reference.MinPLogitsWarper(1.0)),
    "typical 0.2": (Typical(0.2), reference.TypicalLogitsWarper(0.2)),
    "typical 0.95": (Typical(0.95), reference.TypicalLogitsWarper(0.95)),
    "repetition": (RepetitionPenalty(1.3), reference.RepetitionPenaltyLogitsProcessor(1.3)),
    "repetition wanted": (RepetitionPenalty(0.8), reference.RepetitionPenaltyLogitsProcessor(0.8)),
    "no token twice": (NoRepeat(1), reference.NoRepeatNGramLogitsProcessor(1)),
    "no two twice": (NoRepeat(2), reference.NoRepeatNGramLogitsProcessor(2)),
    "no three twice": (NoRepeat(3), reference.NoRepeatNGramLogitsProcessor(3)),
    "no long run twice": (NoRepeat(60), reference.NoRepeatNGramLogitsProcessor(60)),
    "forbidden": (Forbidden((3, 8)), reference.SuppressTokensLogitsProcessor([3, 8])),
    "too early": (NotBefore(16, (2, 4)), reference.MinNewTokensLengthLogitsProcessor(10, 16, [2, 4])),
    "late enough": (NotBefore(15, (2, 4)), reference.MinNewTokensLengthLogitsProcessor(10, 15, [2, 4])),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("holes", [False, True])
def test_scores_are_shaped_as_the_reference_shapes_them(case, seed, holes):
    ours, theirs = CASES[case]
    before = history(seed)
    given = scores(seed, holes)
    kept = given.clone()
    found = ours(given, before)
    assert torch.equal(found, theirs(before.ids, kept.clone()))
    assert torch.equal(given, kept)  # what is given stays as it is


def test_shapers_are_applied_in_order():
    ours = (RepetitionPenalty(1.2), Temperature(0.5), TopK(9), TopP(0.8), MinP(0.02))
    theirs = [
        reference.RepetitionPenaltyLogitsProcessor(1.2),
        reference.TemperatureLogitsWarper(0.5),
        reference.TopKLogitsWarper(9),
        reference.TopPLogitsWarper(0.8),
        reference.MinPLogitsWarper(0.02),
    ]
    before = history(3)
    expected = scores(3)
    for one in theirs:
        expected = one(before.ids, expected)
    assert torch.equal(shaped(scores(3), before, ours), expected)
    assert not torch.equal(shaped(scores(3), before, ours[::-1]), expected)


def test_penalties_count_what_was_written_and_not_the_prompt():
    before = History(torch.tensor([[1, 1, 2, 3, 3, 3, 4]]), prompt=3)  # written: 3 3 3 4
    flat = torch.zeros(1, 6)
    assert FrequencyPenalty(0.5)(flat, before).tolist() == [[0, 0, 0, -1.5, -0.5, 0]]
    assert PresencePenalty(0.5)(flat, before).tolist() == [[0, 0, 0, -0.5, -0.5, 0]]
    assert FrequencyPenalty(-1.0)(flat, before).tolist() == [[0, 0, 0, 3, 1, 0]]


@pytest.mark.parametrize("shaper", [RepetitionPenalty(1.5), NoRepeat(1), NoRepeat(2), NoRepeat(3), FrequencyPenalty(1)])
def test_a_row_is_shaped_the_same_in_any_company(shaper):
    """Padding stands as token 0 before the shorter rows, and must not count as written."""
    torch.manual_seed(0)
    prompts = [[3, 0, 3, 0], [5], [1, 2, 1, 2, 1, 2, 1], [0, 0]]
    written = torch.tensor([[3, 0, 0], [5, 0, 0], [0, 1, 2], [0, 0, 0]])
    together = History.of_prompts(prompts)
    for step in range(3):
        together.append(written[:, step])
    given = torch.randn(4, 8)
    found = shaper(given, together)
    for row, prompt in enumerate(prompts):
        alone = History.of_prompts([prompt])
        for step in range(3):
            alone.append(written[row : row + 1, step])
        assert torch.equal(found[row : row + 1], shaper(given[row : row + 1], alone))
    together.select(torch.tensor([2, 0]))
    assert torch.equal(shaper(given[[2, 0]], together), found[[2, 0]])


@pytest.mark.parametrize(
    ("make", "value", "said"),
    [
        (Temperature, 0.0, "above 0"),
        (Temperature, float("nan"), "nan"),
        (TopK, 0, "1 token at least"),
        (TopP, 0.0, "above 0"),
        (TopP, 1.1, "not 1.1"),
        (MinP, -0.1, "not -0.1"),
        (Typical, 1.0, "between 0 and 1"),
        (RepetitionPenalty, 0.0, "above 0"),
        (NoRepeat, 0, "1 token at least"),
        (FrequencyPenalty, float("inf"), "finite"),
        (PresencePenalty, float("nan"), "finite"),
    ],
)
def test_what_makes_no_sense_is_said(make, value, said):
    with pytest.raises(QkvError, match=said):
        make(value)


def test_only_tokens_of_the_vocabulary_are_forbidden():
    with pytest.raises(QkvError, match="Token 40"):
        Forbidden((3, 40))(scores(0), history(0))
