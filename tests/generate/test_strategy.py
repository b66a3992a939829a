"""Beams and greedy decoding of language models against plain searches and against the reference library."""

import pytest
import torch
import transformers

from qkv.errors import QkvError
from qkv.generate.continuation import Slide
from qkv.generate.contrastive import Contrastive
from qkv.generate.history import Forbidden, History, NotBefore, shaped
from qkv.generate.length_penalty import GooglePenalty, PowerPenalty, penalty
from qkv.generate.shape import NoRepeat, RepetitionPenalty, Temperature, TopK
from qkv.generate.strategy import Beams, Greedy, Sampling
from qkv.weights.load import load_model
from tests.generate.language_models import END, MOST, PROMPTS, logits_after, small_gpt, written


def plain_beams(model, prompt, beams, best, divide, shapers=(), ends=(END,)):
    """Beam search as a sentence describes it: no batch, no cache, and always on to the limit."""
    live, whole = [([], 0.0)], []
    for length in range(1, MOST + 1):
        candidates = []
        for ids, total in live:
            scores = logits_after(model, prompt + ids).log_softmax(-1)[None]
            scores = shaped(scores, History(torch.tensor([prompt + ids]), len(prompt)), shapers)[0]
            candidates += [(total + score, ids, token) for token, score in enumerate(scores.tolist())]
        candidates.sort(key=lambda candidate: -candidate[0])
        whole += [(s / divide(length), ids, True) for s, ids, token in candidates[:beams] if token in ends]
        live = [([*ids, token], s) for s, ids, token in candidates if token not in ends][:beams]
    whole += [(s / divide(MOST), ids, False) for ids, s in live]
    return sorted(whole, key=lambda hypothesis: -hypothesis[0])[:best]


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize(
    ("strategy", "ends", "shapers"),
    [
        (Beams(2, 1, PowerPenalty(0.0)), (END,), ()),
        (Beams(3, 3, PowerPenalty(1.0)), (END,), ()),
        (Beams(4, 2, GooglePenalty(0.6)), (END, 5), ()),
        (Beams(3, 3, PowerPenalty(2.0)), (END, 5, 7), (NoRepeat(2), RepetitionPenalty(1.2))),
        (Beams(1, 1, PowerPenalty(1.0)), (END,), (NotBefore(4, (END,)),)),
    ],
    ids=str,
)
def test_beams_of_a_batch_are_those_of_each_prompt_alone_without_a_cache(seed, strategy, ends, shapers):
    model = small_gpt(seed=seed)
    lines = written(model, strategy, ends=ends, shapers=shapers)
    for place, prompt in enumerate(PROMPTS):
        found = lines[place * strategy.best : (place + 1) * strategy.best]
        expected = plain_beams(model, prompt, strategy.count, strategy.best, strategy.penalty, shapers, ends)
        if strategy.count == 1:  # greedy: it stops at its first end
            expected = [max((one for one in expected), key=lambda one: one[2])] if expected[0][2] else expected
        assert [(line.ids, line.ended == "end") for line in found] == [(ids, ended) for _, ids, ended in expected]
        assert [line.score for line in found] == pytest.approx([score for score, _, _ in expected], abs=1e-4)
        for line in found:
            assert line.score == pytest.approx(
                line.log_probability / strategy.penalty(len(line.ids) + (line.ended == "end")), abs=1e-4
            )


def test_penalties():
    assert [PowerPenalty(0.0)(7), PowerPenalty(1.0)(7), PowerPenalty(2.0)(3)] == [1, 7, 9]
    assert GooglePenalty(0.7)(9) == penalty(9, 0.7)
    with pytest.raises(QkvError, match="length penalty"):
        PowerPenalty(-1.0)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A reference with noise on every parameter, and ours as read from its folder."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=29, n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=END, pad_token_id=0
    )
    reference = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    folder = tmp_path_factory.mktemp("reference")
    reference.save_pretrained(folder)
    return load_model(folder), reference


def reference_ids(reference, prompts=PROMPTS, **options):
    """What the reference generates for prompts padded on the left, up to the end token."""
    slots = max(map(len, prompts))
    ids = torch.tensor([[0] * (slots - len(prompt)) + prompt for prompt in prompts])
    real = torch.tensor([[0] * (slots - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    found = reference.generate(ids, attention_mask=real, **{"max_new_tokens": MOST, "do_sample": False, **options})
    rows = [row[slots:] for row in found.tolist()]
    return [row[: row.index(END)] if END in row else row for row in rows]


@pytest.mark.parametrize(
    ("shapers", "options"),
    [
        ((), {}),
        ((NotBefore(6, (END,)),), {"min_new_tokens": 6}),
        ((NoRepeat(2),), {"no_repeat_ngram_size": 2}),
        ((Forbidden((4, 9)),), {"suppress_tokens": [4, 9]}),
    ],
    ids=str,
)
def test_greedy_writes_what_the_reference_writes(pair, shapers, options):
    ours, reference = pair
    for prompts in (PROMPTS[:1], PROMPTS[1:2]) if shapers else (PROMPTS,):  # it counts padding as written
        assert [line.ids for line in written(ours, Greedy(), prompts, shapers=shapers)] == reference_ids(
            reference, prompts, **options
        )


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("beams", [2, 4])
def test_beams_write_what_the_reference_writes(pair, beams, exponent):
    """`early_stopping="never"` is the reference's exact search; its default stops by a rule of thumb."""
    ours, reference = pair
    lines = written(ours, Beams(beams, beams, PowerPenalty(exponent)))
    theirs = reference_ids(
        reference, num_beams=beams, num_return_sequences=beams, length_penalty=exponent, early_stopping="never"
    )
    assert [line.ids for line in lines] == theirs


@pytest.mark.parametrize("strategy", [Greedy(), Beams(3), Contrastive(), Sampling(seed=1)], ids=str)
def test_a_model_that_only_repeats_one_token_is_no_trouble(strategy):
    model = small_gpt(5)
    lines = written(model, strategy, [[3], [4, 4]], shapers=(Forbidden((0, 1, 2, 3)),))
    assert [line.ids for line in lines[:: strategy.outputs]] == [[4] * MOST] * 2


@pytest.mark.parametrize(
    ("strategy", "more", "said"),
    [
        (Greedy(), {"shapers": (Temperature(0.5),)}, "Temperature never changes"),
        (Greedy(), {"shapers": (NoRepeat(2), TopK(5))}, "TopK never changes"),
        (Beams(3), {"alternatives": 2}, "no alternatives"),
        (Contrastive(), {"slide": Slide()}, "cannot slide"),
        (Greedy(), {"shapers": (Forbidden(tuple(range(23))),)}, "No token is left"),
        (Sampling(), {"shapers": (Forbidden(tuple(range(23))),)}, "No token is left"),
        (Beams(3), {"shapers": (Forbidden(tuple(range(23))),)}, "No token is left"),
        (Contrastive(), {"shapers": (Forbidden(tuple(range(23))),)}, "No token is left"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_said(strategy, more, said):
    with pytest.raises(QkvError, match=said):
        written(small_gpt(), strategy, **more)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Sampling(samples=0), "not 0"),
        (lambda: Beams(2, 3), "not 3"),
        (lambda: Contrastive(0), "1 candidate"),
        (lambda: Contrastive(4, 1.5), "1.5"),
    ],
)
def test_what_makes_no_sense_is_said(make, said):
    with pytest.raises(QkvError, match=said):
        make()


def test_alternatives_are_the_likeliest_tokens_whatever_was_chosen():
    model = small_gpt()
    for strategy in (Greedy(), Sampling(seed=3), Contrastive()):
        for line in written(model, strategy, alternatives=3):
            assert len(line.alternatives) == len(line.log_probabilities)
            for step, told in enumerate(line.alternatives):
                best = logits_after(model, line.prompt + line.ids[:step]).log_softmax(-1).topk(3)
                assert [one.token for one in told] == best.indices.tolist()
                assert [one.log_probability for one in told] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_beams_slide_with_their_window():
    model = small_gpt(positions=8)
    (free,) = written(model, Beams(2), [[3, 4, 5]], most=12, ends=(), slide=Slide(4))
    assert len(free.ids) == 12
    assert [line.ids for line in written(model, Beams(2), [[6] * 8, [3, 4, 5]], most=12, ends=(), slide=Slide(4))][
        1
    ] == free.ids
