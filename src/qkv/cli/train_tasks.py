"""`qkv train classify`, `sentiment`, `pairs` and `tag`: a loaded model learns labels."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.groups import with_groups
from qkv.cli.train_attention import AttentionOptions
from qkv.cli.train_options import (
    EXAMPLES_SHOWN,
    AdaptOptions,
    DataOptions,
    RunOptions,
    beginning,
    fine_tuning_of,
    parted,
    quoted,
    report,
    short,
    wanted,
    watched,
)
from qkv.cli.train_teacher import TeacherOptions, distillation_of, loaded_teacher, student_or_model, with_taught
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.data.labelled import LabelledTexts
    from qkv.data.tagged import TaggedWords
    from qkv.generate.reader import TextReader
    from qkv.train.reporter import Reporter

Model = Annotated[str | None, typer.Option(help="Model to fine-tune: a folder, or owner/name[@revision] on the hub.")]
Label = Annotated[str, typer.Option(help="Column with the labels.")]
Metric = Annotated[
    list[str] | None,
    typer.Option(help="accuracy, macro_f1 or matthews; may be repeated, the first one decides which weights are kept."),
]


@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    model: Model = None
    text: Annotated[str, typer.Option(help="Column with the texts.")] = "text"
    label: Label = "label"
    metric: Metric = None
    unlabelled: Annotated[
        str | None, typer.Option(help="Table of texts without labels, to which the --teacher gives them.")
    ] = None
    sure: Annotated[float, typer.Option(help="How sure of a label the teacher must be, from 0 to 1.")] = 0.0


@with_groups
def classify(
    data: DataOptions,
    run: RunOptions,
    adapt: AdaptOptions,
    attention: AttentionOptions,
    teaching: TeacherOptions,
    labels: LabelOptions,
) -> None:
    """Fine-tune a model to tell the label of a text.

    \b
    Example (after the one that `qkv train mlm --help` shows):
      printf 'text,label\\nlet there be light,light\\nthe evening,night\\n' > labels.csv
      printf 'he saw the light,light\\nthe darkness,night\\n' >> labels.csv
      qkv train classify --model runs/bert --data labels.csv --learning-rate 0.01 \\
        --steps 40 --hold-out 0 --out runs/labels
      qkv run runs/labels 'the light was good'
    """
    learn_labels(data, run, adapt, attention, teaching, labels)


@with_groups
def sentiment(
    data: DataOptions,
    run: RunOptions,
    adapt: AdaptOptions,
    attention: AttentionOptions,
    teaching: TeacherOptions,
    labels: LabelOptions,
) -> None:
    """Fine-tune a model to tell good reviews from bad ones, by the labels that your table gives them.

    The same as `qkv train classify`, under the name that people look for. With --teacher a small model learns from a
    large one that was fine-tuned before, and may begin with some of its layers.

    \b
    Example (after the one that `qkv train mlm --help` shows):
      printf 'text,label\\nit was good,positive\\nit was void,negative\\nvery good,positive\\n' > reviews.csv
      printf 'without form,negative\\nso good,positive\\nthe void,negative\\n' >> reviews.csv
      qkv train sentiment --model runs/bert --data reviews.csv --learning-rate 0.01 \\
        --steps 40 --hold-out 0.2 --out runs/sentiment
      qkv run runs/sentiment 'it was very good' --json
      qkv train sentiment --teacher runs/sentiment --student-layers 1 --match-states 1 --data reviews.csv \\
        --steps 10 --hold-out 0.2 --out runs/student
    """
    learn_labels(data, run, adapt, attention, teaching, labels)


@with_groups
def pairs(
    data: DataOptions,
    run: RunOptions,
    adapt: AdaptOptions,
    attention: AttentionOptions,
    teaching: TeacherOptions,
    model: Model = None,
    first: Annotated[str, typer.Option(help="Column with the first texts.")] = "first",
    second: Annotated[str, typer.Option(help="Column with the second texts.")] = "second",
    label: Label = "label",
    metric: Metric = None,
) -> None:
    """Fine-tune a model to tell how two texts stand to each other: a paraphrase, an entailment, an answer.

    \b
    Example (after the one that `qkv train mlm --help` shows):
      printf 'first\\tsecond\\tlabel\\nthe light\\tlight\\tsame\\nthe light\\tnight\\tother\\n' > pairs.tsv
      printf 'the earth\\tearth\\tsame\\nthe earth\\tthe deep\\tother\\n' >> pairs.tsv
      qkv train pairs --model runs/bert --data pairs.tsv --learning-rate 0.01 \\
        --steps 40 --hold-out 0 --out runs/pairs
      qkv run runs/pairs 'the earth' --second 'the light'
    """
    labels = LabelOptions(model=model, text=first, label=label, metric=metric)
    learn_labels(data, run, adapt, attention, teaching, labels, second)


@with_groups
def tag(
    data: DataOptions,
    run: RunOptions,
    adapt: AdaptOptions,
    attention: AttentionOptions,
    teaching: TeacherOptions,
    model: Model = None,
    words: Annotated[str, typer.Option(help="Column with the words: a list, or with spaces between.")] = "words",
    tags: Annotated[str, typer.Option(help="Column with as many tags.")] = "tags",
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="accuracy, or of whole entities f1, precision or recall; may be repeated, the first decides."
        ),
    ] = None,
) -> None:
    """Fine-tune a model to tag every word: names, parts of speech.

    \b
    Example (after the one that `qkv train mlm --help` shows):
      printf 'words\\ttags\\nAnd God said\\tO B-PER O\\nGod saw the light\\tB-PER O O O\\n' > tags.tsv
      qkv train tag --model runs/bert --data tags.tsv --learning-rate 0.01 \\
        --steps 40 --hold-out 0 --out runs/tags
      qkv run runs/tags 'And God saw'
    """
    from qkv.api.figures import TAG_METRICS, TagFigures, check_metrics
    from qkv.api.fine_tuning import fine_tune_tagger
    from qkv.api.pairs import report_problems
    from qkv.cli.spellings import names_of
    from qkv.data.tagged import read_tagged
    from qkv.train.reporter import Reporter

    reporter = Reporter()
    metrics = check_metrics(metric or [], TAG_METRICS)
    teacher = loaded_teacher(teaching, run)
    how = fine_tuning_of(run, adapt, metrics[0] if metrics else None, reporter, distillation_of(teaching, teacher))

    def read(path: str, format: str | None, classes: tuple[str, ...] | None) -> "TaggedWords":
        found = read_tagged(
            path, words_column=words, tags_column=tags, classes=classes, names=names_of(data.names), format=format
        )
        report_problems(found.problems, reporter.say)
        return found

    known = read(data.data, data.format, labels_of(teacher))
    if data.valid is not None:
        held = read(data.valid, None, known.names)
    else:
        known, held = parted(known, ("words", "tags"), data.hold_out, key=lambda row: " ".join(row[0]))
    needs_held(metrics, held.words)
    reader = student_or_model(model, run, teaching, teacher, attention)
    with watched(run):
        tagger = fine_tune_tagger(
            reader, known, run.out, valid=held, how=how, evaluate=TagFigures(held, metrics) if metrics else None
        )
    shown = [" ".join(row) for row in (held.words or known.words)[:EXAMPLES_SHOWN]]
    examples = [" ".join(f"{one.word}/{one.label}" for one in found) for found in tagger.run(shown)]
    report(run.out, examples, not held.words, [f"qkv run {quoted(run.out, beginning(shown[0]))}"])


def learn_labels(
    data: DataOptions,
    run: RunOptions,
    adapt: AdaptOptions,
    attention: AttentionOptions,
    teaching: TeacherOptions,
    labels: LabelOptions,
    second: str | None = None,
) -> None:
    from qkv.api.figures import LABEL_METRICS, LabelFigures, check_metrics
    from qkv.api.fine_tuning import fine_tune_classifier
    from qkv.train.reporter import Reporter

    reporter = Reporter()
    metrics = check_metrics(labels.metric or [], list(LABEL_METRICS))
    teacher = loaded_teacher(teaching, run)
    how = fine_tuning_of(run, adapt, metrics[0] if metrics else None, reporter, distillation_of(teaching, teacher))
    known, held = read_labels(data, labels.text, second, labels.label, reporter, labels_of(teacher))
    known = with_taught(known, labels.unlabelled, labels.text, labels.sure, teacher, reporter)
    needs_held(metrics, held.texts)
    reader = student_or_model(labels.model, run, teaching, teacher, attention)
    with watched(run):
        classifier = fine_tune_classifier(
            reader, known, run.out, valid=held, how=how, evaluate=LabelFigures(held, metrics) if metrics else None
        )
    shown = held if held.texts else known
    seconds = None if shown.seconds is None else shown.seconds[:EXAMPLES_SHOWN]
    said = classifier.run(shown.texts[:EXAMPLES_SHOWN], seconds)
    beside = [""] * len(said) if seconds is None else [f" | {short(each)}" for each in seconds]
    examples = [
        f"{short(text)}{other} → {wanted(found.label, right)}"
        for text, other, found, right in zip(shown.texts, beside, said, shown.labels, strict=False)
    ]
    pair = "" if seconds is None else f" --second {quoted(beginning(seconds[0]))}"
    commands = [
        f"qkv run {quoted(run.out, beginning(shown.texts[0]))}{pair}",
        f"qkv look {quoted(run.out, beginning(shown.texts[0]))} --html look.html",
    ]
    report(run.out, examples, not held.texts, commands)


def labels_of(teacher: "TextReader | None") -> tuple[str, ...] | None:
    """The labels that a student must learn in the order of its teacher's."""
    return None if teacher is None else teacher.model.head_choice.labels or None


def read_labels(
    data: DataOptions,
    text: str,
    second: str | None,
    label: str,
    reporter: "Reporter",
    classes: tuple[str, ...] | None = None,
) -> tuple["LabelledTexts", "LabelledTexts"]:
    """(to train on, held out); the labels of both are those of the data to train on, or the `classes` of a teacher."""
    from qkv.api.pairs import report_problems
    from qkv.cli.spellings import names_of
    from qkv.data.labelled import read_labelled

    def read(path: str, format: str | None, classes: tuple[str, ...] | None) -> "LabelledTexts":
        found = read_labelled(
            path,
            text=text,
            second=second,
            label_column=label,
            classes=classes,
            names=names_of(data.names),
            format=format,
        )
        report_problems(found.problems, reporter.say)
        return found

    known = read(data.data, data.format, classes)
    if data.valid is not None:
        return known, read(data.valid, None, known.names)
    columns = ("texts", "seconds", "labels")
    return parted(known, columns, data.hold_out, key=lambda row: row[0], kind=lambda row: row[2])


def needs_held(metrics: list[str], held: list[object] | list[str] | list[list[str]]) -> None:
    if metrics and not held:
        raise QkvError("A metric needs data to be measured on: give --valid, or --hold-out above 0.")
