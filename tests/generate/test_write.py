import pytest

from qkv.generate.choose import Drawn, TheLikeliest, chance_of
from qkv.generate.continuation import FromPrompts
from qkv.generate.line import Line
from qkv.generate.shape import TopK
from qkv.generate.write import write
from tests.generate.language_models import END, PROMPTS, logits_after, plain_greedy, small_gpt


def lines_for(prompts, most, samples=1, seed=0):
    return [
        Line(prompt, most, frozenset([END]), chance=chance_of(seed, prompt, number))
        for prompt in prompts
        for number in range(samples)
    ]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_greedy_batches_write_what_each_prompt_gets_alone_without_a_cache(seed):
    model = small_gpt(seed=seed)
    lines = lines_for(PROMPTS, 12)
    for _ in write(FromPrompts(model, PROMPTS, most=12), lines, TheLikeliest()):
        pass
    for line, prompt in zip(lines, PROMPTS, strict=True):
        expected = plain_greedy(model, prompt, 12)
        assert line.ids == expected
        assert line.ended == ("limit" if len(expected) == 12 else "end")
        ids = [*expected, END] if line.ended == "end" else expected
        own = [float(logits_after(model, prompt + ids[:i]).log_softmax(-1)[ids[i]]) for i in range(len(ids))]
        assert line.log_probabilities == pytest.approx(own, abs=1e-4)


def test_samples_are_the_same_alone_and_in_any_company():
    model = small_gpt()

    def sample(prompts, samples):
        lines = lines_for(prompts, 12, samples, seed=7)
        for _ in write(FromPrompts(model, prompts, most=12), lines, Drawn(), (TopK(9),)):
            pass
        return [line.ids for line in lines]

    together = sample(PROMPTS, 3)
    for place, prompt in enumerate(PROMPTS):
        assert sample([prompt], 3) == together[3 * place : 3 * place + 3]
        assert sample([prompt], 1) == together[3 * place : 3 * place + 1]
    assert len({tuple(ids) for ids in together}) == len(together)
