import pytest
import torch

from qkv.errors import QkvError
from qkv.generate.choose import Drawn, TheLikeliest, chance_of, draw, likeliest


@pytest.mark.parametrize("vocabulary", [5, 1000, 5000, 5120])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_the_likeliest_tokens_are_those_of_the_whole_order(vocabulary, count):
    logits = torch.randn(7, vocabulary)
    logits[1, -count:] += 20  # the best are at the very end
    logits[2] = 0  # all are equally good
    forbidden = torch.tensor([0, vocabulary - 1])
    for never in (None, forbidden):
        expected = logits.log_softmax(-1)
        if never is not None:
            expected[:, never] = -torch.inf
        scores, tokens = likeliest(logits, count, never)
        best = expected.sort(-1, descending=True).values[:, :count]
        torch.testing.assert_close(scores, best)
        torch.testing.assert_close(expected.gather(1, tokens), best)
        assert all(len(set(row)) == len(row) for row in tokens.tolist())


def test_a_point_falls_into_the_share_of_one_token():
    probabilities = torch.tensor([[0.0, 0.5, 0.0, 0.25, 0.25, 0.0]] * 5)
    assert draw(probabilities, [0.0, 0.4999, 0.5, 0.75, 1 - 1e-16]).tolist() == [1, 1, 3, 4, 4]


def test_tokens_are_drawn_as_often_as_their_probability_says():
    scores = torch.tensor([[0.0, 1.0, -torch.inf, 2.0]])
    chance = chance_of(5, [1, 2], 0)
    tokens = torch.cat([Drawn().choose(scores, [chance]) for _ in range(4000)])
    found = torch.bincount(tokens, minlength=4) / 4000
    torch.testing.assert_close(found, scores[0].softmax(-1), atol=0.025, rtol=0)
    assert found[2] == 0


def test_chance_depends_on_seed_prompt_and_number_alone():
    assert chance_of(1, [4, 5], 0).random() == chance_of(1, (4, 5), 0).random()
    others = [chance_of(2, [4, 5], 0), chance_of(1, [45], 0), chance_of(1, [4, 5], 1), chance_of(1, [4, 5], 0)]
    assert len({other.random() for other in others}) == 4


@pytest.mark.parametrize("chooser", [Drawn(), TheLikeliest()])
def test_nothing_to_choose_from_is_said(chooser):
    chances = [chance_of(0, [1], 0)] * 2
    with pytest.raises(QkvError, match="No token is left"):
        chooser.choose(torch.tensor([[0.0, 1.0], [-torch.inf, -torch.inf]]), chances)
    with pytest.raises(QkvError, match="NaN"):
        chooser.choose(torch.tensor([[0.0, 1.0], [torch.nan, torch.nan]]), chances)


def test_the_likeliest_is_chosen_with_certainty():
    scores = torch.randn(3, 1000)
    assert TheLikeliest().distribution(scores).argmax(-1).tolist() == scores.argmax(-1).tolist()
    assert TheLikeliest().distribution(scores).sum(-1).tolist() == [1, 1, 1]
