"""`qkv train lm` and `qkv train mlm`: models of running text."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.groups import flag, given, with_groups
from qkv.cli.train_attention import AttentionOptions, choice_of, swapped
from qkv.cli.train_corpus import CorpusOptions, LanguageOptions, corpus_to_train, read_corpus
from qkv.cli.train_experts import ExpertOptions, with_weights
from qkv.cli.train_options import (
    AdaptOptions,
    RunOptions,
    adapted,
    beginning,
    optimizer_of,
    quoted,
    report,
    schedule_of,
    settings_of,
    warmup_of,
    watched,
)
from qkv.cli.train_teacher import TeacherOptions, distillation_of, loaded_teacher, student_of_teacher
from qkv.cli.train_text_chosen import (
    LanguageRunOptions,
    new_recipe,
    sizes_in,
    tuning_recipe,
    verdict,
    with_lzma,
)
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.api.choices import Sizes

WORDS = 3  # of a text, to begin another with


@dataclass(frozen=True, kw_only=True)
class NewModelOptions:
    model: Annotated[str | None, typer.Option(help="Model to train further; by default a new one.")] = None
    family: Annotated[str | None, typer.Option(help="Family of a new model; `qkv models` lists them.")] = None
    size: Annotated[
        str | None, typer.Option(help="Of a new model: a named size or changes to the desk size: width=128,layers=2")
    ] = None
    tokenizer: Annotated[
        str | None, typer.Option(help="Of a new model: a kind, a kind and the most tokens, or a tokenizer.json.")
    ] = None


@with_groups
def lm(
    corpus: LanguageOptions,
    new: NewModelOptions,
    run: LanguageRunOptions,
    adapt: AdaptOptions,
    experts: ExpertOptions,
    attention: AttentionOptions,
    teaching: TeacherOptions,
) -> None:
    """Train a language model: it learns to go on with texts.

    Each file, row of a table or, with --blank-lines, paragraph is a document of its own. Without --model a new model is
    trained from random weights. What is not said of it and of its training is chosen by the bytes of text, the budget
    and the speed of the machine, and told in three lines. With --attention another attention stands in place of the
    model's own; what a trained model loses by that it can learn back from what it was: give that as --teacher. With
    --stream texts stay on disk and may be more than memory holds; several corpora are mixed by --weight.

    \b
    Example:
      printf 'In the beginning God created the heaven and the earth.\\n\\n' > verses.txt
      printf 'And God said, Let there be light: and there was light.\\n\\n' >> verses.txt
      printf 'And God saw the light, that it was good.\\n' >> verses.txt
      qkv train lm --data verses.txt --blank-lines --tokenizer bpe:300 \\
        --size width=32,hidden=64,layers=1 --length 32 --steps 60 --hold-out 0.3 --out runs/verses
      qkv train lm --model runs/verses --attention window:4 --teacher runs/verses --data verses.txt --blank-lines \\
        --length 32 --steps 10 --hold-out 0.3 --out runs/near
    """
    from qkv.api.language import train_language_model
    from qkv.api.language_data import TextsInMemory
    from qkv.api.training import read_result
    from qkv.cli.spellings import tokenizer_of
    from qkv.data.plan import RowCount
    from qkv.models.head_choice import HeadChoice
    from qkv.train.objectives.language import LanguageLoss
    from qkv.train.reporter import Reporter

    settings = settings_of(run)
    head = HeadChoice("language")
    teacher = loaded_teacher(teaching, run, head)
    model = further(new, run, adapt, head, attention, student_of_teacher(new.model, run, teaching, teacher))
    tokenizer = tokenizer_of(new.tokenizer) if new.tokenizer else None if teacher is None else teacher.tokenizer
    reporter = Reporter()
    read, valid, first = corpus_to_train(corpus, reporter)
    texts = TextsInMemory(read, valid, corpus.hold_out) if isinstance(read, list) else read
    if model is None:
        plain = attention.attention is not None or bool(run.parallel)
        recipe = new_recipe(new.family, new.size, tokenizer, run, settings, texts, plain=plain)
    else:
        recipe = tuning_recipe(tokenizer, run, settings)
    for line in recipe.messages:
        reporter.say(line)
    with watched(recipe.run):
        writer = train_language_model(
            texts,
            run.out,
            valid=valid,
            hold_out=corpus.hold_out,
            model=model,
            tokenizer=recipe.tokenizer,
            family=recipe.family,
            sizes=recipe.sizes,
            attention=None if model is not None else choice_of(attention),
            length=recipe.length,
            batching=RowCount(recipe.rows),
            settings=recipe.settings,
            objective=with_weights(LanguageLoss(), experts),
            distil=distillation_of(teaching, teacher),
            optimizer=optimizer_of(
                recipe.run, adapt, recipe.rate, betas=(0.9, 0.95), weight_decay=0.1, **recipe.optimizer_options
            ),
            schedule=recipe.schedule,
            evaluate=with_lzma(texts),
            chosen=recipe.chosen,
            reporter=reporter,
            resume=run.resume,
            overwrite=run.overwrite,
        )
    window = writer.model.longest or 256
    prompt = beginning(first, WORDS)
    most = max(1, min(60, window - len(writer.encode(prompt))))
    commands = [
        f"qkv run {quoted(run.out, prompt)} --max-tokens {most} --temperature 0.8",
        f"qkv look {quoted(run.out, beginning(first))} --html look.html",
    ]
    report(run.out, [], seen=True, commands=commands, verdict=verdict(read_result(run.out).figures))


@with_groups
def mlm(
    corpus: CorpusOptions,
    new: NewModelOptions,
    run: RunOptions,
    adapt: AdaptOptions,
    attention: AttentionOptions,
    teaching: TeacherOptions,
    next_sentence: Annotated[
        bool, typer.Option("--next-sentence", help="Also learn whether one segment follows another, as BERT did.")
    ] = False,
    hidden: Annotated[float, typer.Option(help="Share of the tokens that are hidden.")] = 0.15,
    whole_words: Annotated[bool, typer.Option("--whole-words", help="Hide all pieces of a word at once.")] = False,
    cased: Annotated[
        bool, typer.Option("--cased", help="Of a new model: keep capitals; by default all letters become small.")
    ] = False,
) -> None:
    """Train a masked model as BERT was: it learns what hidden words were, and looks both ways for it.

    Each file, row of a table or, with --blank-lines, paragraph is a document of its own. Without --model a small BERT
    with 8,000 word pieces is trained from random weights. What comes of it can be fine-tuned: `qkv train sentiment`.

    \b
    Example (after the one that `qkv train lm --help` shows):
      qkv train mlm --data verses.txt --blank-lines --tokenizer wordpiece:200 \\
        --size width=32,hidden=64,layers=1 --length 32 --steps 60 --hold-out 0 --out runs/bert
      qkv run runs/bert 'and god saw the <mask>, that it was good.' --n-best 2
    """
    from dataclasses import replace

    from qkv.api.choices import NewTokenizer
    from qkv.api.encoders import Hiding, pretrain_encoder
    from qkv.cli.spellings import tokenizer_of
    from qkv.data.plan import RowCount
    from qkv.models.head_choice import HeadChoice
    from qkv.train.reporter import Reporter
    from qkv.train.schedules import Linear

    settings = settings_of(run)
    optimizer = optimizer_of(run, adapt, 5e-4 if new.model is None else 1e-4, betas=(0.9, 0.98))
    length = run.length or 128
    head = HeadChoice("pretraining" if next_sentence else "masked")
    teacher = loaded_teacher(teaching, run, head)
    model = further(new, run, adapt, head, attention, student_of_teacher(new.model, run, teaching, teacher))
    own = tokenizer_of("wordpiece:8000") if teacher is None else teacher.tokenizer
    tokenizer = tokenizer_of(new.tokenizer) if new.tokenizer else own
    if isinstance(tokenizer, NewTokenizer):
        tokenizer = replace(tokenizer, lowercase=not cased)
    if cased and (new.model is not None or not isinstance(tokenizer, NewTokenizer)):
        raise QkvError("--cased is for a new tokenizer: one that is there says itself what becomes of capitals.")
    sizes = new_sizes(new, "bert", length)
    reporter = Reporter()
    texts, valid = read_corpus(corpus, reporter)
    with watched(run):
        filler = pretrain_encoder(
            texts,
            run.out,
            next_sentence=next_sentence,
            valid=valid,
            hold_out=corpus.hold_out,
            model=model,
            tokenizer=tokenizer,
            family=new.family or "bert",
            sizes=sizes,
            attention=None if model is not None else choice_of(attention),
            length=length,
            hiding=Hiding(hidden, whole_words),
            batching=RowCount(run.batch_rows),
            settings=settings,
            distil=distillation_of(teaching, teacher),
            optimizer=optimizer,
            schedule=schedule_of(run, Linear(warmup=warmup_of(run))),
            reporter=reporter,
            resume=run.resume,
            overwrite=run.overwrite,
        )
    example = f"{beginning(texts[0])} {filler.tokenizer.roles['mask']}"
    commands = [
        f"qkv run {quoted(run.out, example)}",
        f"qkv look {quoted(run.out, beginning(texts[0]))} --html look.html",
    ]
    report(run.out, [], seen=True, commands=commands)


def further(
    new: NewModelOptions,
    run: RunOptions,
    adapt: AdaptOptions,
    head: Any,
    attention: AttentionOptions,
    student: Any = None,
) -> Any:
    """The model to train further, or a `student` that begins with layers of its teacher: with the attention, frozen or
    with updates as asked for. None where a new one is to be made."""
    import torch

    from qkv.api.loading import load
    from qkv.api.runs import check_folder

    check_folder(run.out, run.resume, run.overwrite)
    if new.model is None and student is None:
        if adapting := given(adapt):
            raise QkvError(f"{flag(adapting[0])} is for a model that knows something: name it with --model.")
        return None
    if own := [name for name in given(new) if name != "model"]:
        begun = "--model" if student is None else "--student-layers"
        raise QkvError(f"A model that is trained further keeps its {own[0]}: give {begun} or {flag(own[0])}.")
    found = student if new.model is None else load(new.model, run.device, head)
    torch.manual_seed(run.seed)  # low-rank updates and random features begin at random
    found = swapped(found, attention)
    adapted(found.model, adapt)
    return found


def new_sizes(new: NewModelOptions, family: str, length: int) -> "Sizes":
    """The sizes of a new model."""
    if new.model is not None or new.size is None:
        return "desk" if new.model is not None else {}
    return sizes_in(new.family or family, new.size, length)
