"""`qkv run` with a language model: how a text goes on, by any way of writing."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.groups import flag, given
from qkv.cli.inputs import Input, text_or_file
from qkv.cli.run_translator import BEAMS, DRAWING, SEARCHING, SHAPING, SearchOptions, in_line
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.generate.constrain import Form
    from qkv.generate.history import Shaper
    from qkv.generate.language import Options, Prompt, TextWriter, Writing
    from qkv.generate.speculative import Draft
    from qkv.generate.strategy import Strategy

MOST = 128  # new tokens, where a person does not say


@dataclass(frozen=True, kw_only=True)
class WritingOptions:
    """How a text goes on."""

    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Most new tokens; 128, fewer where the window ends, 50 more than a translator reads."),
    ] = None
    min_tokens: Annotated[int, typer.Option(min=0, help="New tokens before an end may come.")] = 0
    temperature: Annotated[
        float | None,
        typer.Option(help="Draw tokens by chance, as do the next six; 1 is as the model says, less is surer."),
    ] = None
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens.")] = None
    top_p: Annotated[float | None, typer.Option(help="Draw from the fewest tokens of this probability together.")] = (
        None
    )
    min_p: Annotated[float | None, typer.Option(help="Draw from tokens of this share of the likeliest's.")] = None
    typical: Annotated[float | None, typer.Option(help="Draw from tokens of typical surprise, up to this.")] = None
    samples: Annotated[int | None, typer.Option(help="Outputs for each prompt.")] = None
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same outputs.")] = None
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1: what was said is less likely.")] = None
    frequency_penalty: Annotated[float | None, typer.Option(help="Taken from a score for each time written.")] = None
    presence_penalty: Annotated[float | None, typer.Option(help="Taken from a score if written at all.")] = None
    no_repeat: Annotated[int | None, typer.Option(help="No run of so many tokens occurs twice.")] = None
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends an output before it; may be repeated.")] = None
    stream: Annotated[bool, typer.Option("--stream", help="Write pieces as they come.")] = False
    contrastive: Annotated[str | None, typer.Option(help="Contrastive search with k candidates: 4,0.6")] = None
    draft: Annotated[str | None, typer.Option(help="Smaller model that guesses ahead: the same text, sooner.")] = None
    prompt_lookup: Annotated[bool, typer.Option("--prompt-lookup", help="Guess ahead from the prompt.")] = False
    json_schema: Annotated[str | None, typer.Option(help="Write JSON of this schema: a file, or JSON itself.")] = None
    regex: Annotated[str | None, typer.Option(help="Write what this regular expression matches.")] = None
    chat: Annotated[bool, typer.Option("--chat", help="Each prompt is a person's message in a conversation.")] = False
    system: Annotated[str | None, typer.Option(help="With --chat: what stands before the conversation.")] = None
    slide: Annotated[bool, typer.Option("--slide", help="Past the window, forget what came first.")] = False
    log_probs: Annotated[bool, typer.Option("--log-probs", help="With --json: those of every token.")] = False
    alternatives: Annotated[int, typer.Option(min=0, help="With --log-probs: likeliest tokens beside each.")] = 0


GUESSING = ("draft", "prompt_lookup")


def write_texts(writer: "TextWriter", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    asked: WritingOptions = request.writing
    check_asked(asked, request)
    prompts = [prompt_of(text, asked) for text, _ in inputs]
    options = options_of(writer, asked, request)
    if asked.stream:
        for prompt in prompts:
            (most,) = mosts(writer, [prompt], asked, options)
            for piece in writer.stream(prompt, replace(options, most=most)):
                print(piece, end="", flush=True)
            yield ""
        return
    for number, ((text, _), outputs) in enumerate(zip(inputs, written(writer, prompts, asked, options), strict=True)):
        if options.form is not None and any(each.ended == "limit" for each in outputs):
            note = f"Output {before + number + 1} was cut off before it had its form: allow more with --max-tokens."
            typer.echo(note, err=True)
        if request.as_json:
            found = [described(writer, each, asked.log_probs) for each in outputs]
            yield json.dumps({"input": text, "outputs": found}, ensure_ascii=False)
        elif options.strategy.outputs == 1:
            yield outputs[0].text if request.alone else in_line(outputs[0].text)
        else:
            yield from (f"{before + number + 1}\t{each.score:.4f}\t{in_line(each.text)}" for each in outputs)


def check_asked(asked: WritingOptions, request: Any) -> None:
    """Options that would do nothing, or that contradict each other."""
    chosen = given(request.search, asked)
    for name, needs, fits in (
        ("system", "--chat", asked.chat),
        ("log_probs", "--json", request.as_json),
        ("alternatives", "--log-probs", asked.log_probs),
        ("length_penalty", "--beams", "beams" in chosen or "n_best" in chosen),
    ):
        if name in chosen and not fits:
            raise QkvError(f"{flag(name)} does nothing without {needs}: give both.")
    if asked.stream and request.as_json:
        raise QkvError("A stream is plain text: give --stream or --json.")
    if asked.json_schema is not None and asked.regex is not None:
        raise QkvError("An output has one form: give --json-schema or --regex.")
    ways = [
        next((flag(name) for name in names if name in chosen), None)
        for names in (SEARCHING, ("contrastive",), DRAWING + GUESSING)
    ]
    ways = [way for way in ways if way is not None]
    if len(ways) > 1:
        raise QkvError(f"{ways[0]} and {ways[1]} are two ways of writing: give one of the two.")
    if asked.draft is not None and asked.prompt_lookup:
        raise QkvError("Guesses come from one place: give --draft or --prompt-lookup.")


def prompt_of(text: str, asked: WritingOptions) -> "Prompt":
    if not asked.chat:
        return text
    from qkv.generate.chat import Message

    system = [] if asked.system is None else [Message("system", asked.system)]
    return [*system, Message("user", text)]


def options_of(writer: "TextWriter", asked: WritingOptions, request: Any) -> "Options":
    from qkv.generate.continuation import Slide
    from qkv.generate.language import Options

    return Options(
        strategy=strategy_of(writer, asked, request),
        shapers=tuple(shapers_of(asked)),
        most=asked.max_tokens or max(MOST, asked.min_tokens),
        least=asked.min_tokens,
        stop_texts=tuple(asked.stop or ()),
        form=form_of(asked),
        alternatives=asked.alternatives,
        slide=Slide() if asked.slide else None,
    )


def shapers_of(asked: WritingOptions) -> Iterator["Shaper"]:
    """Penalties come first: chance then draws among what they leave."""
    if not {*DRAWING, *SHAPING}.intersection(given(asked)):
        return
    from qkv.generate import shape

    for value, shaper in (
        (asked.repetition_penalty, shape.RepetitionPenalty),
        (asked.frequency_penalty, shape.FrequencyPenalty),
        (asked.presence_penalty, shape.PresencePenalty),
        (asked.no_repeat, shape.NoRepeat),
        (asked.temperature, shape.Temperature),
        (asked.top_k, shape.TopK),
        (asked.top_p, shape.TopP),
        (asked.min_p, shape.MinP),
        (asked.typical, shape.Typical),
    ):
        if value is not None:
            yield shaper(value)  # type: ignore[arg-type]  # each has its own number


def strategy_of(writer: "TextWriter", asked: WritingOptions, request: Any) -> "Strategy":
    from qkv.generate.strategy import Beams, Greedy, Sampling

    search: SearchOptions = request.search
    if search.beams is not None or search.n_best is not None:
        from qkv.generate.length_penalty import PowerPenalty

        best = 1 if search.n_best is None else search.n_best
        penalty = PowerPenalty(1.0 if search.length_penalty is None else search.length_penalty)
        return Beams(max(BEAMS, best) if search.beams is None else search.beams, best, penalty)
    if asked.contrastive is not None:
        from qkv.generate.contrastive import Contrastive

        return Contrastive(*contrast_of(asked.contrastive))
    drawn = any(name in given(asked) for name in DRAWING)
    by = Sampling(1 if asked.samples is None else asked.samples, asked.seed) if drawn else Greedy()
    draft = draft_of(writer, asked, request.device)
    if draft is None:
        return by
    from qkv.generate.speculative import Speculative

    return Speculative(draft, by=by)


def contrast_of(spelled: str) -> tuple[int, float]:
    count, _, weight = spelled.partition(",")
    try:
        return int(count), float(weight)
    except ValueError:
        raise QkvError(f"Contrastive search {spelled!r} should be spelled candidates,weight: 4,0.6") from None


def draft_of(writer: "TextWriter", asked: WritingOptions, device: str) -> "Draft | None":
    if asked.draft is None and not asked.prompt_lookup:
        return None
    from qkv.generate.speculative import DraftModel, PromptLookup

    if asked.draft is None:
        return PromptLookup()
    from qkv.api.loading import load
    from qkv.generate.language import TextWriter

    smaller = load(asked.draft, device)
    if not isinstance(smaller, TextWriter):
        raise QkvError(f"{asked.draft} is no language model, so it cannot guess how a text goes on.")
    if smaller.tokenizer.names() != writer.tokenizer.names():
        raise QkvError(f"{asked.draft} has other tokens than the model: a draft must share its tokenizer.")
    return DraftModel(smaller.model)


def form_of(asked: WritingOptions) -> "Form | None":
    if asked.regex is None and asked.json_schema is None:
        return None
    from qkv.generate.constrain import JsonSchema, Regex

    if asked.regex is not None:
        return Regex(asked.regex)
    assert asked.json_schema is not None
    spelled = asked.json_schema.strip()
    if not spelled.startswith(("{", "[", '"')) and spelled not in ("true", "false"):
        found = text_or_file(asked.json_schema)
        if found is asked.json_schema:
            raise QkvError(f"There is no file {spelled}: --json-schema is the name of a file, or JSON itself.")
        spelled = found
    return JsonSchema(spelled)


def written(
    writer: "TextWriter", prompts: list["Prompt"], asked: WritingOptions, options: "Options"
) -> list[list["Writing"]]:
    """The outputs of each prompt; where the window sets the limit, prompts of one limit are written together."""
    found: list[list[Writing]] = [[] for _ in prompts]
    limits = mosts(writer, prompts, asked, options)
    for limit in sorted(set(limits)):
        places = [place for place, most in enumerate(limits) if most == limit]
        some = writer.run_all([prompts[place] for place in places], replace(options, most=limit))
        for place, outputs in zip(places, some, strict=True):
            found[place] = outputs
    return found


def mosts(writer: "TextWriter", prompts: list["Prompt"], asked: WritingOptions, options: "Options") -> list[int]:
    """How many new tokens each prompt may get: what a person says, or what the window has room for."""
    window = writer.model.longest
    if asked.max_tokens is not None or asked.slide or window is None:
        return [options.most] * len(prompts)
    return [max(1, options.least, min(options.most, window - len(writer.encode(prompt)))) for prompt in prompts]


def described(writer: "TextWriter", output: "Writing", with_tokens: bool) -> dict[str, Any]:
    """An output with its score and what ended it: an end token, a stop text or the limit."""
    said: dict[str, Any] = {"text": output.text, "score": output.score, "ended": output.ended}
    if with_tokens:
        names: list[str | None] = list(writer.tokenizer.tokens(output.ids))
        names += [None] * (len(output.log_probabilities) - len(names))  # the end token, which is no text
        said["tokens"] = [
            {"token": name, "log_probability": value}
            for name, value in zip(names, output.log_probabilities, strict=True)
        ]
        for token, others in zip(said["tokens"], output.alternatives, strict=False):
            shown = writer.tokenizer.tokens([each.token for each in others])
            token["alternatives"] = [
                {"token": name, "log_probability": each.log_probability}
                for name, each in zip(shown, others, strict=True)
            ]
    return said
