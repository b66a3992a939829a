import pytest
import torch

from qkv.errors import QkvError
from qkv.generate import continuation
from qkv.generate.choose import TheLikeliest
from qkv.generate.continuation import FromPrompts, FromSource, Slide
from qkv.generate.line import Line
from qkv.generate.write import write
from qkv.models.catalogue import FAMILIES, build
from tests.generate.language_models import PROMPTS, logits_after, small_gpt
from tests.generate.models import START, small_model, sources
from tests.models.small import perturb, shrunk


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_unequal_prompts_go_on_as_each_would_alone():
    model = small_gpt()
    rows = FromPrompts(model, PROMPTS, most=6)
    texts = [list(prompt) for prompt in PROMPTS]
    found = rows.begin()
    for new in ([3], [4, 5], [6], [8]):
        assert_close(found, torch.stack([logits_after(model, text) for text in texts]))
        texts = [text + new for text in texts]
        found = rows.advance(torch.tensor([new] * len(texts)))
        if new == [4, 5]:
            rows.select(torch.tensor([3, 0, 0]))
            texts, found = [texts[3], texts[0], list(texts[0])], found[[3, 0, 0]]
    assert_close(found, torch.stack([logits_after(model, text) for text in texts]))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@torch.inference_mode()
def test_prompts_of_very_unequal_lengths_are_read_without_padding(family, monkeypatch):
    torch.manual_seed(0)
    model = build(family, shrunk(next(iter(FAMILIES[family].published.values())), vocabulary=23)).eval()
    perturb(model)
    prompts, read = [[5], [3, 1, 4, 1, 5, 9, 2], [6, 5, 3]], []
    model.embed.register_forward_pre_hook(lambda module, given: read.append(tuple(given[0].shape)))
    found = []
    for filled_up in (0.0, continuation.FILLED_UP):
        monkeypatch.setattr(continuation, "FILLED_UP", filled_up)
        rows = FromPrompts(model, prompts, most=3)
        states, real = rows.prompt_states()
        found.append((states[real], rows.advance(torch.tensor([[7], [8], [9]]))))
    assert read == [(3, 7), (3, 1), (1, 11), (3, 1)]
    for padded, in_line in zip(*found, strict=True):
        assert_close(in_line, padded)


@torch.inference_mode()
def test_the_head_sees_the_last_state_alone():
    model = small_gpt()
    seen = []
    model.head.register_forward_hook(lambda module, given, answer: seen.append(tuple(given[0].shape)))
    rows = FromPrompts(model, PROMPTS, most=3)
    rows.begin()
    rows.advance(torch.ones(5, 2, dtype=torch.long))
    assert seen == [(5, 1, 16), (5, 1, 16)]


@pytest.mark.parametrize("prompts", [PROMPTS, [PROMPTS[0]] * 2], ids=["unequal", "equal"])
@torch.inference_mode()
def test_rows_go_back(prompts):
    model = small_gpt()
    rows = FromPrompts(model, prompts, most=8)
    rows.begin()
    rows.advance(torch.full((len(prompts), 3), 5))
    before = rows.length
    rows.advance(torch.full((len(prompts), 2), 9))
    rows.truncate(before)
    found = rows.advance(torch.full((len(prompts), 1), 4))
    assert_close(found, torch.stack([logits_after(model, [*prompt, 5, 5, 5, 4]) for prompt in prompts]))


@torch.inference_mode()
def test_a_model_that_keeps_nothing_reads_its_rows_anew():
    """Hashed attention sorts a row with every token that comes: beams, going back and padding are as if it kept it."""
    torch.manual_seed(0)
    sizes = shrunk(FAMILIES["reformer"].published["crime-and-punishment"], lsh_chunk=4, local_chunk=4, seed=1)
    model = build("reformer", sizes).eval()
    perturb(model)
    rows = FromPrompts(model, [prompt[:5] for prompt in PROMPTS], most=12)
    texts = [prompt[:5] for prompt in PROMPTS]
    assert not model.keeps
    rows.begin()
    rows.select(torch.tensor([2, 2, 3]))  # of five tokens each, which need no padding any more
    texts = [list(texts[row]) for row in (2, 2, 3)]
    for new in ([3], [4, 5], [6]):
        texts = [text + new for text in texts]
        found = rows.advance(torch.tensor([new] * 3))
        assert_close(found, torch.stack([logits_after(model, text) for text in texts]))
    rows.truncate(6)
    found = rows.advance(torch.tensor([[9]] * 3))
    assert_close(found, torch.stack([logits_after(model, [*text[:6], 9]) for text in texts]))


@torch.inference_mode()
def test_a_source_goes_on_as_it_would_without_a_cache():
    model = small_model()
    source, lengths = sources([4, 2, 6])
    rows = FromSource(model, source, lengths, start=START, most=5)
    assert_close(rows.begin(), model(source, lengths, torch.full((3, 1), START))[:, -1])
    found = rows.advance(torch.tensor([[4], [5], [6]]))
    assert_close(found, model(source, lengths, torch.tensor([[1, 4], [1, 5], [1, 6]]))[:, -1])
    kept = torch.tensor([2, 0])
    rows.select(kept, kept)
    found = rows.advance(torch.tensor([[7], [8]]))
    assert_close(found, model(source[kept], lengths[kept], torch.tensor([[1, 6, 7], [1, 4, 8]]))[:, -1])


def families():
    """Every family that writes text."""
    return [name for name, family in FAMILIES.items() if family.heads[:1] == ("language",)]


@pytest.mark.parametrize("family", families())
@torch.inference_mode()
def test_every_family_goes_on_with_unequal_prompts_as_with_each_alone(family):
    torch.manual_seed(0)
    model = build(family, shrunk(next(iter(FAMILIES[family].published.values())), vocabulary=23)).eval()
    perturb(model)
    rows = FromPrompts(model, PROMPTS, most=4)
    found = rows.begin()
    texts = [list(prompt) for prompt in PROMPTS]
    for new in (5, 9, 3):
        assert_close(found, torch.stack([logits_after(model, text) for text in texts]))
        texts = [[*text, new] for text in texts]
        found = rows.advance(torch.full((len(texts), 1), new))


@pytest.mark.parametrize("keep", [None, 1, 5, 10])
def test_a_window_slides_as_it_says_alone_and_in_any_company(keep):
    """Written out: a text with a token more than the window holds is read anew from its last tokens on."""
    model, window = small_gpt(positions=10), 10
    prompts = [*PROMPTS, [3] * 10, list(range(3, 22))]
    lines = [Line(prompt, 25, frozenset()) for prompt in prompts]
    for _ in write(FromPrompts(model, prompts, most=25, slide=Slide(keep)), lines, TheLikeliest()):
        pass
    for prompt, line in zip(prompts, lines, strict=True):
        text, written = list(prompt), []
        for _ in range(25):
            if len(text) > window:
                text = text[-(keep or 5) :]
            written.append(int(logits_after(model, text).argmax()))
            text.append(written[-1])
        assert line.ids == written


def test_a_window_that_would_be_passed_is_an_error_from_the_start():
    model = small_gpt(positions=10)
    FromPrompts(model, [[3] * 4], most=7)  # the last token is not read any more
    with pytest.raises(QkvError, match=r"4 tokens and 8 new ones do not fit .* window of 10"):
        FromPrompts(model, [[3] * 4], most=8)
    with pytest.raises(QkvError, match="cannot go back"):
        FromPrompts(model, [[3] * 4], most=8, slide=Slide()).truncate(0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompts": [[3], []]}, "empty prompt"),
        ({"prompts": [[3], [23]]}, "vocabulary has 23"),
        ({"prompts": [[-1]]}, "vocabulary has 23"),
        ({"model": small_gpt(head="states")}, "states head"),
        ({"model": small_gpt().train()}, r"model\.eval"),
        ({"slide": Slide(65)}, "not 65"),
    ],
)
def test_what_cannot_be_carried_on_is_said(change, said):
    arguments = {"model": small_gpt(), "prompts": [[3]], "most": 5} | change
    with pytest.raises(QkvError, match=said):
        FromPrompts(arguments.pop("model"), arguments.pop("prompts"), **arguments)
