"""Contrastive search against its equation, written out."""

import pytest
import torch
import torch.nn.functional as F

from qkv.errors import QkvError
from qkv.generate.continuation import Slide
from qkv.generate.contrastive import Contrastive
from qkv.generate.history import Forbidden
from tests.generate.language_models import END, MOST, PROMPTS, logits_after, plain_greedy, small_gpt, written


def plain_contrastive(model, prompt, k, alpha):
    """[su2022 eq.5] written out: every candidate is read in a pass of its own."""

    def states(ids):
        return model.states(torch.tensor([ids]), model.context(torch.tensor([ids])))[0]

    text = list(prompt)
    with torch.no_grad():
        while len(text) < len(prompt) + MOST:
            probabilities = logits_after(model, text).softmax(-1)
            scores = {}
            for token in probabilities.topk(k).indices.tolist():
                *past, last = states([*text, token])
                likeness = max(float(F.cosine_similarity(last, other, dim=0)) for other in past)
                scores[token] = (1 - alpha) * float(probabilities[token]) - alpha * likeness
            token = max(scores, key=lambda one: scores[one])
            if token == END:
                break
            text.append(token)
    return text[len(prompt) :]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("k", "alpha"), [(4, 0.6), (2, 0.3), (6, 1.0), (3, 0.0)])
def test_contrastive_search_is_its_equation(seed, k, alpha):
    model = small_gpt(seed=seed)
    lines = written(model, Contrastive(k, alpha))
    for line, prompt in zip(lines, PROMPTS, strict=True):
        assert line.ids == plain_contrastive(model, prompt, k, alpha)
        if alpha == 0:
            assert line.ids == plain_greedy(model, prompt, MOST)
        own = [float(logits_after(model, prompt + line.ids[:i]).log_softmax(-1)[t]) for i, t in enumerate(line.ids)]
        assert line.log_probabilities[: len(own)] == pytest.approx(own, abs=1e-4)


def test_contrastive_search_chooses_among_what_shapers_leave():
    model = small_gpt()
    free = written(model, Contrastive(3, 0.5))
    never = tuple({token for line in free for token in line.ids[:2]})
    held = written(model, Contrastive(3, 0.5), shapers=(Forbidden((*never, END)),))
    assert all(not set(line.ids) & {*never, END} and len(line.ids) == MOST for line in held)


def test_the_last_token_must_fit_into_the_window_too():
    model = small_gpt(positions=12)
    written(model, Contrastive(), [[3] * 3], most=9)
    with pytest.raises(QkvError, match="9 new ones do not fit"):
        written(model, Contrastive(), [[3] * 4], most=9)
    with pytest.raises(QkvError, match="cannot slide"):
        written(model, Contrastive(), [[3] * 4], slide=Slide())
