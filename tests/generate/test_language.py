import pytest
import torch
from tokenizers import Tokenizer

from qkv.data.text_stream import UNFINISHED
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.chat import CLOSE, Message, chat_prompt
from qkv.generate.continuation import Slide
from qkv.generate.contrastive import Contrastive
from qkv.generate.language import Options, TextWriter
from qkv.generate.shape import NoRepeat, RepetitionPenalty, Temperature, TopK, TopP
from qkv.generate.speculative import DraftModel, Speculative
from qkv.generate.strategy import Beams, Greedy, Sampling
from tests.generate.language_models import plain_greedy, small_gpt, small_tokenizer, spaced_tokenizer
from tests.generate.test_chat import chat_tokenizer

PROMPTS = ["The quick brown", "", "Once upon a time there was", "1, 2, 3", "Żółć"]


def made(tokenizer=None, seed=0, spare=0, positions=128):
    tokenizer = tokenizer or small_tokenizer()
    return TextWriter(small_gpt(tokenizer.size + spare, seed, positions), tokenizer)


WRITER = made()
STRATEGIES = [
    Options(most=12),
    Options(most=12, shapers=(RepetitionPenalty(1.4), NoRepeat(2)), least=3),
    Options(most=12, strategy=Sampling(samples=3, seed=5), shapers=(Temperature(0.8), TopK(40), TopP(0.95))),
    Options(most=12, strategy=Beams(3, 2)),
    Options(most=12, strategy=Contrastive()),
    Options(most=12, strategy=Speculative(DraftModel(small_gpt(WRITER.model.vocabulary, 3, 128)), 3)),
]


def name(options):
    return type(options.strategy).__name__


@pytest.mark.parametrize("options", STRATEGIES, ids=name)
@pytest.mark.parametrize("kind", ["bpe", "spaced"])
def test_a_batch_of_unequal_prompts_is_written_as_each_alone(options, kind):
    if kind == "spaced":
        if isinstance(options.strategy, Speculative):
            return
        writer = made(spaced_tokenizer())
    else:
        writer = WRITER
    together = writer.run_all(PROMPTS, options)
    assert len(together) == len(PROMPTS)
    for prompt, found in zip(PROMPTS, together, strict=True):
        (alone,) = writer.run_all([prompt], options)
        assert [(one.text, one.ids, one.ended) for one in found] == [(one.text, one.ids, one.ended) for one in alone]
        for one, other in zip(found, alone, strict=True):
            assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-4)
    in_twos = writer.run_all(PROMPTS, options, rows=2)
    assert [[one.ids for one in found] for found in in_twos] == [[one.ids for one in found] for found in together]


def test_greedy_text_is_that_of_the_plain_tokens():
    for prompt, found in zip(PROMPTS, WRITER.run(PROMPTS, Options(most=12)), strict=True):
        ids = WRITER.encode(prompt)
        assert found.ids == plain_greedy(WRITER.model, ids, 12, WRITER.tokenizer.end)
        whole, before = (WRITER.tokenizer.decode(part, whole=True) for part in (ids + found.ids, ids))
        assert before + found.text == whole
        assert found.score == found.log_probability == sum(found.log_probabilities)


@pytest.mark.parametrize("options", [one for one in STRATEGIES if one.strategy.streams], ids=name)
def test_a_stream_adds_up_to_what_run_gives(options):
    if options.strategy.outputs > 1:
        options = Options(most=12, strategy=Sampling(seed=5), shapers=options.shapers)
    for prompt in PROMPTS:
        pieces = list(WRITER.stream(prompt, options))
        assert "".join(pieces) == WRITER.run([prompt], options)[0].text
        assert all(pieces)


def test_a_stream_gives_pieces_as_they_come_and_leaves_the_model_as_it_was():
    writer = made()
    writer.model.train()
    stream = writer.stream("The", Options(most=20))
    passes = []
    writer.model.stack.register_forward_hook(lambda *_: passes.append(1))
    next(stream)
    assert len(passes) < 20
    stream.close()
    assert writer.model.training


def test_a_seed_reproduces_and_another_does_not():
    def sample(seed):
        options = Options(most=12, strategy=Sampling(samples=2, seed=seed), shapers=(Temperature(1.5),))
        return [[one.ids for one in found] for found in WRITER.run_all(PROMPTS, options)]

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
    assert sample(None) != sample(None)
    assert all(first != second for first, second in sample(1))


def test_a_stop_text_that_spans_tokens_ends_the_output_before_it():
    (free,) = WRITER.run(["The quick"], Options(most=40))
    stop = next(free.text[i : i + 5] for i in range(5, len(free.text)) if UNFINISHED not in free.text[i : i + 5])
    cut = free.text[: free.text.index(stop)]
    (found,) = WRITER.run(["The quick"], Options(most=40, stop_texts=("never to be seen", stop)))
    assert (found.text, found.ended) == (cut, "stop")
    assert found.ids == free.ids[: len(found.ids)]
    assert stop in WRITER.tokenizer.decode(found.ids, whole=True)
    assert stop not in WRITER.tokenizer.decode(found.ids[:-1], whole=True)
    assert "".join(WRITER.stream("The quick", Options(most=40, stop_texts=(stop,)))) == cut


def test_stop_tokens_and_the_least_number_of_tokens():
    (free,) = WRITER.run(["The quick"], Options(most=20))
    stop = free.ids[6]
    first = free.ids.index(stop)
    (found,) = WRITER.run(["The quick"], Options(most=20, stop_tokens=(stop,)))
    assert (found.ids, found.ended) == (free.ids[:first], "end")
    assert len(found.log_probabilities) == first + 1
    (longer,) = WRITER.run(["The quick"], Options(most=20, stop_tokens=(stop,), least=first + 2))
    assert len(longer.ids) >= first + 2
    assert stop not in longer.ids


def test_rows_of_the_table_without_a_token_are_never_written():
    writer = made(spare=200)
    with torch.no_grad():
        writer.model.embed.tokens.weight[writer.tokenizer.size :] *= 5
    for found in writer.run_all(PROMPTS, Options(most=20, strategy=Sampling(seed=1, samples=2))):
        for one in found:
            assert max(one.ids, default=0) < writer.tokenizer.size


def test_prompts_may_be_ids_or_conversations():
    writer = made(chat_tokenizer())
    talk = [Message("user", "What is 2 + 2?")]
    ids = chat_prompt(writer.tokenizer, talk)
    assert writer.encode(talk) == writer.encode(ids) == ids
    by_talk, by_ids = writer.run([talk, ids], Options(most=9))
    assert by_talk == by_ids
    assert writer.tokenizer.id_of(CLOSE) in writer.ends()


def test_what_stands_before_a_text_stands_before_a_prompt_and_what_stands_behind_does_not():
    state = Tokenizer.from_str(small_tokenizer().library_state())
    from tokenizers.processors import TemplateProcessing

    state.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    writer = made(TextTokenizer(state))
    plain = WRITER.tokenizer.encode(["The dog"])[0]
    assert writer.encode("The dog") == [1, *plain]
    assert writer.encode("") == [1]
    assert WRITER.encode("The dog") == plain
    assert WRITER.encode("") == [1]


def test_an_empty_prompt_without_a_start_token_is_said():
    tokenizer = Tokenizer.from_str(small_tokenizer().library_state().replace('"<s>"', '"<begin>"'))
    writer = made(TextTokenizer(tokenizer))
    with pytest.raises(QkvError, match="no start token"):
        writer.run([""])


def test_the_window_is_an_error_or_slides():
    writer = made(positions=10)
    with pytest.raises(QkvError, match="let the window slide"):
        writer.run(["The quick brown fox"], Options(most=12))
    (found,) = writer.run(["The quick brown fox"], Options(most=12, slide=Slide()))
    assert len(found.log_probabilities) == 12 or found.ended == "end"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"most": 0}, "0 to 0"),
        ({"least": 9, "most": 4}, "9 to 4"),
        ({"alternatives": -1}, "not -1"),
        ({"stop_texts": "\n"}, "tuple"),
        ({"stop_texts": ("",)}, "not empty"),
    ],
)
def test_options_that_make_no_sense_are_said(change, said):
    with pytest.raises(QkvError, match=said):
        Options(**change)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: WRITER.run("The"), "list of prompts"),
        (lambda: WRITER.run(["The"], Options(strategy=Sampling(samples=2))), "run_all"),
        (lambda: WRITER.stream("The", Options(strategy=Beams(2))), "streamed"),
        (lambda: WRITER.run([[3, 10_000]]), "vocabulary has"),
        (lambda: WRITER.run([[3, -1]]), "vocabulary has"),
        (lambda: WRITER.run(["The"], Options(stop_tokens=(10_000,))), "vocabulary has"),
        (lambda: WRITER.run(["The"], Options(strategy=Beams(2), stop_texts=("x",))), "not at stop texts"),
        (lambda: WRITER.score("The"), "list of texts"),
        (lambda: WRITER.score([""]), "no score"),
        (lambda: WRITER.run([[Message("user", "hi")]]), "not made for conversations"),
        (lambda: TextWriter(small_gpt(WRITER.tokenizer.size, head="states"), WRITER.tokenizer), "states head"),
        (lambda: TextWriter(small_gpt(5), WRITER.tokenizer), "Mismatched tokenizer"),
    ],
)
def test_what_cannot_be_written_is_said(call, said):
    with pytest.raises(QkvError, match=said):
        call()


def test_no_prompts_give_no_outputs():
    assert WRITER.run([]) == []
    assert WRITER.score([]) == []


def test_greedy_is_the_default():
    assert Options().strategy == Greedy()


@pytest.mark.gpu
@pytest.mark.parametrize("options", STRATEGIES[:5], ids=name)
def test_a_gpu_writes_what_the_cpu_writes(options):
    on_gpu = TextWriter(small_gpt(WRITER.model.vocabulary, 0, 128).to("cuda"), WRITER.tokenizer)
    expected = WRITER.run_all(PROMPTS, options)
    found = on_gpu.run_all(PROMPTS, options)
    assert [[one.text for one in outputs] for outputs in found] == [
        [one.text for one in outputs] for outputs in expected
    ]
    assert on_gpu.score(["The dog"])[0].perplexity == pytest.approx(WRITER.score(["The dog"])[0].perplexity, rel=1e-3)
