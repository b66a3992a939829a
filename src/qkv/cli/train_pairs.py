"""`qkv train text-to-text`: a model, new or loaded, learns to turn one text into another."""

from collections import Counter
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.groups import with_groups
from qkv.cli.train_attention import AttentionOptions, choice_of
from qkv.cli.train_options import (
    EXAMPLES_SHOWN,
    AdaptOptions,
    RunBasics,
    RunOptions,
    optimizer_of,
    quoted,
    report,
    schedule_of,
    settings_of,
    wanted,
    warmup_of,
    watched,
)
from qkv.cli.train_text import NewModelOptions, further
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.api.pairs import Pair
    from qkv.generate.text import TextToText

DECODED = 200  # held-out sources that are decoded for metrics at each evaluation


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    data: Annotated[
        str, typer.Option(help="TSV, CSV, JSONL or parquet: a file, a folder of files, or - for standard input.")
    ]
    source: Annotated[str, typer.Option(help="Column with the texts that go in.")]
    target: Annotated[str, typer.Option(help="Column with the texts that should come out.")]
    names: Annotated[str, typer.Option(help="Columns of a file without a header line: word,phonemes")] = ""
    format: Annotated[str | None, typer.Option(help="tsv, csv, jsonl or parquet, where no file name tells.")] = None
    prefix: Annotated[
        str, typer.Option(help="Put before every source, to name the task as T5 does: 'translate English to German: '")
    ] = ""
    valid: Annotated[str | None, typer.Option(help="Table to validate on, with the same columns.")] = None
    hold_out: Annotated[float, typer.Option(help="Share of the sources to validate on without --valid; 0: none.")] = (
        0.02
    )


@dataclass(frozen=True, kw_only=True)
class NewPairModelOptions(NewModelOptions):
    source_tokenizer: Annotated[
        str | None, typer.Option(help="Of a new model, for the source alone: characters | bpe:4000 | …")
    ] = None
    target_tokenizer: Annotated[
        str | None, typer.Option(help="Of a new model, for the target alone: symbols | word:5000 | …")
    ] = None
    dropout: Annotated[float | None, typer.Option(help="Of a new model, where not the size's own.")] = None


@dataclass(frozen=True, kw_only=True)
class PairRunOptions(RunBasics):
    batch_tokens: Annotated[int, typer.Option(help="Most tokens of a batch, padding counted.")] = 2048
    max_length: Annotated[int, typer.Option(help="Pairs with more tokens on a side are left out of training.")] = 256
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Peak of the learning rate; 0.001, or 0.0001 for a loaded model without --lora."),
    ] = None
    warmup: Annotated[
        int | None, typer.Option(help="Updates over which the rate rises; 100, or less for a loaded model.")
    ] = None
    subword_dropout: Annotated[float, typer.Option(help="Share of BPE merges left out, anew each epoch.")] = 0.0
    label_smoothing: Annotated[float, typer.Option(help="Share of each target spread over the vocabulary.")] = 0.1
    evaluate_every: Annotated[int, typer.Option(help="Steps between evaluations, each with a checkpoint.")] = 200

    def run(self) -> RunOptions:
        """What it shares with other trainings."""
        return RunOptions(**{each.name: getattr(self, each.name) for each in fields(RunBasics)})


@with_groups
def text_to_text(
    pairs: PairOptions,
    new: NewPairModelOptions,
    budget: PairRunOptions,
    adapt: AdaptOptions,
    attention: AttentionOptions,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="bleu, chrf, rouge1, rouge2, rougeL, wer, cer, per or ser; may be repeated, the first one decides."
        ),
    ] = None,
) -> None:
    """Train a model that turns the texts of one column into those of another.

    Translation, summarisation, paraphrase and pronunciation are all this, with other data. Without --model a small
    pre-norm Transformer with 8,000 byte-pair pieces is trained from random weights; with it a loaded T5, Marian or
    model of one's own is fine-tuned, with the tokenizers it has.

    It validates as it goes, keeps the best weights, can be stopped with Ctrl-C and resumed, and leaves a folder that
    `qkv run` and `qkv look` open. Bad rows are reported with their line and left out.

    \b
    Tokenizers: word, symbols (whatever stands between spaces), characters,
    bpe, wordpiece, unigram, bytes.

    \b
    Example:
      printf 'word\\tphonemes\\ncat\\tK AE T\\ndog\\tD AO G\\nact\\tAE K T\\ngod\\tG AA D\\n' > words.tsv
      qkv train text-to-text --data words.tsv --source word --target phonemes \\
        --source-tokenizer characters --target-tokenizer symbols \\
        --size width=32,hidden=64,layers=1 --steps 100 --hold-out 0.25 --out runs/words
      qkv train text-to-text --model runs/words --data words.tsv --source word --target phonemes \\
        --freeze 1 --steps 20 --hold-out 0 --out runs/words-further
    """
    from qkv.api.choices import DataSettings
    from qkv.api.pairs import hold_out, read_pairs
    from qkv.api.scores import Scores, find_metric
    from qkv.api.training import FAMILY, SIZES, TOKENIZER, read_result, train_text_to_text
    from qkv.cli.spellings import names_of, sizes_of, tokenizers_of
    from qkv.data.plan import TokenBudget
    from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss
    from qkv.train.reporter import Reporter
    from qkv.train.schedules import Cosine

    run = budget.run()
    settings = settings_of(run)
    if metric:
        settings = replace(settings, watch=metric[0], better=find_metric(metric[0]).better)
    whole = new.model is not None and adapt.lora is None  # of a model that knows something, all is changed
    warmup = 100 if new.model is None and run.warmup is None else warmup_of(run)
    optimizer = optimizer_of(run, adapt, 1e-4 if whole else 1e-3, betas=(0.9, 0.98))
    family = new.family or FAMILY
    model = loaded(new, run, adapt, attention)
    source_tokenizer, target_tokenizer, sizes = TOKENIZER, None, SIZES
    if model is None:
        spelled = new.tokenizer or "bpe:8000"
        source_tokenizer, target_tokenizer = tokenizers_of(spelled, new.source_tokenizer, new.target_tokenizer)
        sizes = sizes_of(family, new.size or "desk", new.dropout)
    reporter = Reporter()
    read = partial(
        read_pairs,
        source=pairs.source,
        target=pairs.target,
        names=names_of(pairs.names),
        prefix=pairs.prefix,
        say=reporter.say,
    )
    to_train = read(pairs.data, format=pairs.format)
    held: list[Pair] = []
    if pairs.valid is not None:
        held = read(pairs.valid)
    elif pairs.hold_out:
        to_train, held = hold_out(to_train, pairs.hold_out)
    if metric and not held:
        raise QkvError("A metric needs data to be measured on: give --valid, or --hold-out above 0.")
    scores = Scores(held, metric or ["cer"], limit=DECODED) if held else None
    with watched(run, f"{budget.batch_tokens} tokens", "give fewer with --batch-tokens, or a smaller --size"):
        trained = train_text_to_text(
            to_train,
            run.out,
            valid=held,
            model=model,
            tokenizer=source_tokenizer,
            target_tokenizer=target_tokenizer,
            family=family,
            sizes=sizes,
            attention=None if model is not None else choice_of(attention),
            data=DataSettings(
                batching=TokenBudget(budget.batch_tokens),
                max_length=budget.max_length,
                subword_dropout=budget.subword_dropout,
                hold_out=0.0,
            ),
            settings=settings,
            objective=SequenceToSequenceLoss(smoothing=budget.label_smoothing),
            optimizer=optimizer,
            schedule=schedule_of(run, Cosine(warmup=warmup, floor=0.02)),
            evaluate=scores,
            reporter=reporter,
            resume=run.resume,
            overwrite=run.overwrite,
        )
    if scores is not None:
        commonest = Counter(target for _, target in to_train).most_common(1)[0][0]
        others = {"the source as it is": scores.sources, "the commonest target": [commonest] * len(scores.sources)}
        learned, verdict = scores.verdict(read_result(run.out).figures, others)
        if not learned:
            reporter.say(verdict)
    references: dict[str, list[str]] = {}
    for source, target in held or to_train:
        references.setdefault(source, []).append(target)
    sources = list(references)[:EXAMPLES_SHOWN]
    examples = [
        f"{source} → {wanted(output.text, output.text if output.text in references[source] else references[source][0])}"
        for source, output in zip(sources, trained.run(sources), strict=True)
    ]
    commands = [f"qkv run {quoted(run.out, sources[0])}", f"qkv look {quoted(run.out, sources[0])} --html look.html"]
    report(run.out, examples, not held, commands)


def loaded(
    new: NewModelOptions, run: RunOptions, adapt: AdaptOptions, attention: AttentionOptions
) -> "TextToText | None":
    """The encoder-decoder to train further, adapted as asked for; None where a new one is to be made."""
    from qkv.generate.text import TextToText

    found = further(new, run, adapt, None, attention)
    if found is not None and not isinstance(found, TextToText):
        raise QkvError(
            f"{new.model} does not turn one text into another: this needs an encoder-decoder such as T5 or Marian."
        )
    return found
