"""Learning from a teacher: the options that the tasks share, and how they become values."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.groups import flag, given
from qkv.cli.train_attention import AttentionOptions, swapped
from qkv.cli.train_options import RunOptions, loaded_reader
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.api.distilling import Distillation
    from qkv.data.labelled import LabelledTexts
    from qkv.generate.reader import TextReader
    from qkv.models.head_choice import HeadChoice
    from qkv.train.reporter import Reporter


@dataclass(frozen=True, kw_only=True)
class TeacherOptions:
    teacher: Annotated[
        str | None, typer.Option(help="Model that knows the task already, to learn from beside the right answers.")
    ] = None
    student_layers: Annotated[
        int | None, typer.Option(min=1, help="Begin with so many of the teacher's layers, in place of --model.")
    ] = None
    soft: Annotated[float, typer.Option(help="Share of the loss that comes from the teacher's predictions.")] = 0.5
    temperature: Annotated[float, typer.Option(help="By which these predictions are softened.")] = 2.0
    match_states: Annotated[
        float, typer.Option(min=0, help="Weight of the distance between the streams of student and teacher.")
    ] = 0.0
    match_attention: Annotated[
        float, typer.Option(min=0, help="Weight of the distance between their attention weights.")
    ] = 0.0


def loaded_teacher(options: TeacherOptions, run: RunOptions, head: "HeadChoice | None" = None) -> "TextReader | None":
    """The teacher, where one is named; without one nothing that needs it may be asked for.

    With a `head` it must have that one, or one that holds it.
    """
    from qkv.api.loading import load

    if options.teacher is None:
        if other := given(options):
            raise QkvError(f"{flag(other[0])} is about learning from a teacher: name it with --teacher.")
        return None
    found = loaded_reader(options.teacher, run)
    if head is None or found.model.head_choice == head:
        return found
    if (found.model.head_choice.kind, head.kind) != ("pretraining", "masked"):
        raise QkvError(
            f"The teacher {options.teacher} has a {found.model.head_choice.kind} head, from which a {head.kind} one "
            "cannot learn: name a model that was trained as this one will be."
        )
    taught: TextReader = load(options.teacher, run.device, head)
    return taught


def student_of_teacher(
    model: str | None, run: RunOptions, options: TeacherOptions, teacher: "TextReader | None"
) -> "TextReader | None":
    """A model that begins with layers of its teacher, where that is asked for."""
    import torch

    from qkv.api.distilling import student_of

    if options.student_layers is None or teacher is None:
        return None
    if model is not None:
        raise QkvError("A student begins as --model or with --student-layers of its teacher: give one of the two.")
    torch.manual_seed(run.seed)
    return student_of(teacher, options.student_layers)


def student_or_model(
    model: str | None,
    run: RunOptions,
    options: TeacherOptions,
    teacher: "TextReader | None",
    attention: AttentionOptions,
) -> "TextReader":
    """The model to train: the one that is named, or one that begins with layers of its teacher."""
    student = student_of_teacher(model, run, options, teacher)
    if student is None:
        if model is None:
            raise QkvError("Name the model to fine-tune with --model, or take --student-layers of a --teacher.")
        student = loaded_reader(model, run)
    return swapped(student, attention)


def distillation_of(options: TeacherOptions, teacher: "TextReader | None") -> "Distillation | None":
    from qkv.api.distilling import Distillation

    if teacher is None:
        return None
    return Distillation(
        teacher, options.temperature, options.soft, states=options.match_states, attention=options.match_attention
    )


def with_taught(
    known: "LabelledTexts",
    path: str | None,
    column: str,
    sure: float,
    teacher: "TextReader | None",
    reporter: "Reporter",
) -> "LabelledTexts":
    """The labelled texts, and texts without a label with those that the teacher gives them."""
    from qkv.api.pairs import report_problems
    from qkv.api.teaching import labels_of
    from qkv.data.table import read_table
    from qkv.generate.readers import Classifier

    if path is None:
        return known
    if not isinstance(teacher, Classifier):
        raise QkvError("--unlabelled texts get their labels from a classifier: name it with --teacher.")
    table = read_table(path, [column])
    report_problems(table.problems, reporter.say)
    made = labels_of(teacher, table.column(column), sure=sure)
    reporter.say(f"The teacher labels {len(made.texts):,} of {len(table.rows):,} texts.")
    return replace(known, texts=[*known.texts, *made.texts], labels=[*known.labels, *made.labels])
