from itertools import product
from random import Random

import pytest
import torch

from qkv.errors import QkvError
from qkv.generate.continuation import Slide
from qkv.generate.shape import RepetitionPenalty, Temperature, TopK
from qkv.generate.speculative import DraftModel, Guess, PromptLookup, Speculative, checked
from qkv.generate.strategy import Greedy, Sampling
from tests.generate.language_models import PROMPTS, logits_after, small_gpt, written

REPETITIVE = [[3, 4, 5, 6, 3, 4, 5, 6, 3, 4], [7, 7, 7], [9, 8, 9, 8, 9]]


@pytest.mark.parametrize("ahead", [1, 3, 20])
@pytest.mark.parametrize("draft", ["the model itself", "another model", "look-up"])
@pytest.mark.parametrize("shapers", [(), (RepetitionPenalty(1.3),)], ids=["free", "shaped"])
def test_greedy_tokens_are_those_of_the_model_alone(draft, ahead, shapers):
    model = small_gpt(seed=2)
    drafts = {
        "the model itself": DraftModel(model),
        "another model": DraftModel(small_gpt(seed=5)),
        "look-up": PromptLookup(),
    }
    prompts = [*PROMPTS, *REPETITIVE]
    alone = written(model, Greedy(), prompts, most=12, shapers=shapers, alternatives=2)
    found = written(model, Speculative(drafts[draft], ahead), prompts, most=12, shapers=shapers, alternatives=2)
    for one, other in zip(found, alone, strict=True):
        assert (one.ids, one.ended) == (other.ids, other.ended)
        assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-4)
        assert [[a.token for a in step] for step in one.alternatives] == [
            [a.token for a in step] for step in other.alternatives
        ]


def test_right_guesses_save_passes():
    model, passes = small_gpt(seed=2), []
    model.stack.register_forward_hook(lambda module, given, answer: passes.append(given[0].shape[1]))
    (alone,) = written(model, Greedy(), [[3, 4, 5]], most=12, ends=())
    assert len(passes) == 12
    passes.clear()
    twin = small_gpt(seed=2)
    (found,) = written(model, Speculative(DraftModel(twin), 3), [[3, 4, 5]], most=12, ends=())
    assert found.ids == alone.ids
    assert passes == [3, 4, 4, 3]  # the prompt, then a token that was not read yet and three guesses after it


def test_a_guess_changes_nothing_of_what_is_drawn():
    """The frequencies of 6000 draws, for guesses made by another distribution and for sure ones."""
    torch.manual_seed(0)
    wanted, made = torch.randn(5).softmax(-1), torch.randn(5).softmax(-1)
    wanted[3] = 0
    wanted /= wanted.sum()
    chance = Random(1)
    for certain in (False, True):
        counts = torch.zeros(5)
        for _ in range(6000):
            token = 2 if certain else chance.choices(range(5), made.tolist())[0]
            guess = Guess(token, torch.empty(0) if certain else made)
            counts[checked(wanted, guess, chance)[0]] += 1
        torch.testing.assert_close(counts / 6000, wanted, atol=0.025, rtol=0)
        assert counts[3] == 0


@pytest.mark.parametrize("draft", ["model", "look-up"])
def test_sampling_keeps_the_distribution(draft):
    """Of whole outputs of three tokens from a vocabulary of three, against their exact probabilities."""
    model, shapers, prompt = small_gpt(3, seed=1), (Temperature(1.5), TopK(2)), [1, 2, 1, 2]
    expected = {}
    for ids in product(range(3), repeat=3):
        chance = 1.0
        for step, token in enumerate(ids):
            scores = logits_after(model, [*prompt, *ids[:step]])[None] / 1.5
            scores = scores.masked_fill(scores < scores.topk(2).values[:, -1:], -torch.inf)
            chance *= float(scores.softmax(-1)[0, token])
        expected[ids] = chance
    drafts = {"model": DraftModel(small_gpt(3, seed=7)), "look-up": PromptLookup()}
    strategy = Speculative(drafts[draft], 2, Sampling(samples=400, seed=11))
    found = [tuple(line.ids) for line in written(model, strategy, [prompt], most=3, shapers=shapers, ends=())]
    for ids, chance in expected.items():
        assert found.count(ids) / 400 == pytest.approx(chance, abs=4 * (chance * (1 - chance) / 400) ** 0.5 + 1e-9)
    assert len(set(found)) > 4


def test_samples_are_the_same_alone_and_in_any_company():
    model, strategy = small_gpt(), Speculative(DraftModel(small_gpt(seed=3)), 3, Sampling(samples=2, seed=4))
    together = [line.ids for line in written(model, strategy)]
    for place, prompt in enumerate(PROMPTS):
        assert [line.ids for line in written(model, strategy, [prompt])] == together[2 * place : 2 * place + 2]


@pytest.mark.parametrize(
    ("text", "run", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], 3, [3, 4, 1, 2]),
        ([1, 2, 3, 9, 2, 4, 1, 2], 3, [3, 9, 2, 4, 1, 2]),
        ([1, 2, 3, 9, 2, 4, 1, 2], 1, [4, 1, 2]),
        ([5, 5, 5], 2, [5]),
        ([1, 2, 3], 3, []),
        ([1], 3, []),
    ],
)
def test_what_followed_before_is_found(text, run, expected):
    assert PromptLookup(run).found(text) == expected


@pytest.mark.parametrize(
    ("strategy", "more", "said"),
    [
        (Speculative(DraftModel(small_gpt(24))), {}, "share one vocabulary"),
        (Speculative(PromptLookup()), {"slide": Slide()}, "cannot slide"),
        (Speculative(PromptLookup()), {"shapers": (Temperature(2.0),)}, "Temperature never changes"),
        (Speculative(DraftModel(small_gpt(positions=9))), {}, "window of 9"),
    ],
)
def test_what_cannot_be_done_is_said(strategy, more, said):
    with pytest.raises(QkvError, match=said):
        written(small_gpt(), strategy, **more)
    with pytest.raises(QkvError, match="not 0"):
        Speculative(PromptLookup(), 0)
    with pytest.raises(QkvError, match="not 0"):
        PromptLookup(0)
