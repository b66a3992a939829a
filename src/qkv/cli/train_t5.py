"""`qkv train t5`: a model of gaps in running text."""

from typing import Annotated

import typer

from qkv.cli.groups import with_groups
from qkv.cli.train_attention import AttentionOptions, choice_of
from qkv.cli.train_corpus import CorpusOptions, read_corpus
from qkv.cli.train_experts import ExpertOptions, with_weights
from qkv.cli.train_options import (
    EXAMPLES_SHOWN,
    AdaptOptions,
    RunOptions,
    optimizer_of,
    quoted,
    report,
    schedule_of,
    settings_of,
    short,
    warmup_of,
    watched,
)
from qkv.cli.train_pairs import loaded
from qkv.cli.train_text import NewModelOptions, new_sizes


@with_groups
def t5(
    corpus: CorpusOptions,
    new: NewModelOptions,
    run: RunOptions,
    adapt: AdaptOptions,
    experts: ExpertOptions,
    attention: AttentionOptions,
    cut_out: Annotated[float, typer.Option(help="Share of the tokens that are cut out.")] = 0.15,
    stretch: Annotated[float, typer.Option(help="Tokens that are cut out together, on average.")] = 3.0,
) -> None:
    """Train an encoder-decoder as T5 was: it reads texts with gaps and learns to write what stood there.

    Each file, row of a table or, with --blank-lines, paragraph is a document of its own. Without --model a small T5
    with 8,000 unigram pieces is trained from random weights. In a text the gaps are <extra_id_0>, <extra_id_1> and so
    on, and outputs name them. What comes of it can be fine-tuned: `qkv train text-to-text --model`.

    \b
    Example (after the one that `qkv train lm --help` shows):
      qkv train t5 --data verses.txt --blank-lines --tokenizer bpe:300 \\
        --size width=32,key_width=16,hidden=64,heads=2,layers=1 --length 32 --steps 60 --hold-out 0 --out runs/t5
      qkv run runs/t5 'And God saw <extra_id_0> that it was good.' --max-tokens 10
    """
    from qkv.api.span_filling import FAMILY, TOKENIZER, CuttingOut, pretrain_text_to_text
    from qkv.cli.spellings import tokenizer_of
    from qkv.data.plan import RowCount
    from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss
    from qkv.train.reporter import Reporter
    from qkv.train.schedules import Linear

    settings = settings_of(run)
    whole = new.model is not None and adapt.lora is None
    optimizer = optimizer_of(run, adapt, 1e-4 if whole else 1e-3)
    reporter = Reporter()
    tokenizer = tokenizer_of(new.tokenizer) if new.tokenizer else TOKENIZER
    length = run.length or 128
    sizes = new_sizes(new, FAMILY, length)
    model = loaded(new, run, adapt, attention)
    texts, valid = read_corpus(corpus, reporter)
    with watched(run):
        filler = pretrain_text_to_text(
            texts,
            run.out,
            valid=valid,
            hold_out=corpus.hold_out,
            model=model,
            tokenizer=tokenizer,
            family=new.family or FAMILY,
            sizes=sizes,
            attention=None if model is not None else choice_of(attention),
            length=length,
            cutting_out=CuttingOut(cut_out, stretch),
            batching=RowCount(run.batch_rows),
            settings=settings,
            objective=with_weights(SequenceToSequenceLoss(smoothing=0.0), experts),
            optimizer=optimizer,
            schedule=schedule_of(run, Linear(warmup=warmup_of(run))),
            reporter=reporter,
            resume=run.resume,
            overwrite=run.overwrite,
        )
    gapped = [with_gap(text) for text in texts[:EXAMPLES_SHOWN]]
    examples = [f"{source} → {short(found.text)}" for source, found in zip(gapped, filler.run(gapped), strict=True)]
    commands = [f"qkv run {quoted(run.out, gapped[0])}", f"qkv look {quoted(run.out, gapped[0])} --html look.html"]
    report(run.out, examples, seen=True, commands=commands)


def with_gap(text: str, words: int = 8) -> str:
    """The beginning of a text, with a gap in the place of its third and fourth word."""
    some = text.split()[:words]
    return " ".join([*some[:2], "<extra_id_0>", *some[4:]])
