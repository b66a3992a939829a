"""`qkv train answer` and `qkv train embed`: where answers stand, and which texts are alike."""

from typing import Annotated

import typer

from qkv.cli.groups import with_groups
from qkv.cli.train_attention import AttentionOptions, swapped
from qkv.cli.train_options import (
    EXAMPLES_SHOWN,
    AdaptOptions,
    DataOptions,
    RunOptions,
    beginning,
    divide,
    fine_tuning_of,
    loaded_reader,
    quoted,
    report,
    short,
    wanted,
    watched,
)
from qkv.cli.train_tasks import Model, needs_held
from qkv.cli.train_teacher import TeacherOptions, distillation_of, loaded_teacher, student_or_model
from qkv.errors import QkvError

NONE = "(none)"  # how a missing answer is shown


@with_groups
def answer(
    data: DataOptions,
    run: RunOptions,
    adapt: AdaptOptions,
    attention: AttentionOptions,
    teaching: TeacherOptions,
    model: Model = None,
    question: Annotated[str, typer.Option(help="Column with the questions.")] = "question",
    context: Annotated[str, typer.Option(help="Column with the texts that may hold the answer.")] = "context",
    answer: Annotated[str, typer.Option(help="Column with the answer as it stands there; blank: none.")] = "answer",
    start: Annotated[str, typer.Option(help="Column with its first character, if there is one.")] = "answer_start",
    metric: Annotated[
        list[str] | None, typer.Option(help="exact_match or f1, which are both told; the first one given decides.")
    ] = None,
) -> None:
    """Fine-tune a model to find the answer to a question in a text, or to say that there is none.

    The data is a table, or a .json file as SQuAD has it.

    \b
    Example (after the one that `qkv train mlm --help` shows):
      printf '{"question": "what was?", "context": "and there was light", "answer": "light"}\\n' > asked.jsonl
      printf '{"question": "who saw?", "context": "and God saw the light", "answer": "God"}\\n' >> asked.jsonl
      qkv train answer --model runs/bert --data asked.jsonl --learning-rate 0.01 \\
        --steps 40 --hold-out 0 --out runs/answers
      qkv run runs/answers 'who said?' --context 'And God said, Let there be light' --json
    """
    from qkv.api.figures import ANSWER_METRICS, AnswerFigures, check_metrics
    from qkv.api.fine_tuning import fine_tune_answerer
    from qkv.api.pairs import report_problems
    from qkv.cli.spellings import names_of
    from qkv.data.questions import Question, read_questions
    from qkv.train.reporter import Reporter

    reporter = Reporter()
    metrics = check_metrics(metric or [], ANSWER_METRICS)
    teacher = loaded_teacher(teaching, run)
    how = fine_tuning_of(run, adapt, metrics[0] if metrics else None, reporter, distillation_of(teaching, teacher))

    def read(path: str, format: str | None) -> list[Question]:
        found = read_questions(
            path,
            question=question,
            context=context,
            answer=answer,
            start=start,
            names=names_of(data.names),
            format=format,
        )
        report_problems(found.problems, reporter.say)
        return found.questions

    known = read(data.data, data.format)
    if data.valid is not None:
        held = read(data.valid, None)
    else:
        known, held = divide(known, data.hold_out, key=lambda one: one.context)
    needs_held(metrics, [one.question for one in held])
    reader = student_or_model(model, run, teaching, teacher, attention)
    figures = AnswerFigures(held, ANSWER_METRICS) if held else None
    with watched(run):
        answerer = fine_tune_answerer(reader, known, run.out, valid=held, how=how, evaluate=figures)
    shown = (held or known)[:EXAMPLES_SHOWN]
    said = answerer.run([one.question for one in shown], [one.context for one in shown])
    right = [short(one.answers[0].text) if one.answers else NONE for one in shown]
    examples = [
        f"{short(one.question)} → {wanted(short(found.text) or NONE, answer)}"
        for one, found, answer in zip(shown, said, right, strict=True)
    ]
    command = f"qkv run {quoted(run.out, shown[0].question)} --context {quoted(beginning(shown[0].context, 40))}"
    report(run.out, examples, not held, [command])


@with_groups
def embed(
    model: Annotated[str, typer.Option(help="Model to fine-tune: a folder, or owner/name[@revision] on the hub.")],
    data: DataOptions,
    run: RunOptions,
    adapt: AdaptOptions,
    attention: AttentionOptions,
    first: Annotated[str, typer.Option(help="Column with the first texts.")] = "first",
    second: Annotated[str, typer.Option(help="Column with texts like the first.")] = "second",
    unlike: Annotated[str | None, typer.Option(help="Column with texts that are not like the first.")] = None,
    value: Annotated[
        str | None, typer.Option(help="Column with numbers from -1 to 1 that say how alike the two texts are.")
    ] = None,
    pooling: Annotated[str, typer.Option(help="How vectors of tokens become one: mean, first or last.")] = "mean",
    metric: Annotated[
        list[str] | None, typer.Option(help="With --value: spearman or pearson; the first one given decides.")
    ] = None,
) -> None:
    """Fine-tune a model to give like texts like vectors.

    Without --value the two texts of a row are alike, and all others of a batch are not: take large batches.

    \b
    Example (after the one that `qkv train mlm --help` shows):
      printf 'first\\tsecond\\nthe light\\tlight\\nthe earth\\tearth\\nthe deep\\tdeep\\n' > alike.tsv
      qkv train embed --model runs/bert --data alike.tsv --learning-rate 0.01 \\
        --steps 40 --hold-out 0 --out runs/vectors
      qkv run runs/vectors light earth --similar 'the light'
    """
    from qkv.api.figures import SIMILARITY_METRICS, SimilarityFigures, check_metrics
    from qkv.api.fine_tuning import fine_tune_embeddings
    from qkv.api.pairs import report_problems
    from qkv.cli.spellings import names_of
    from qkv.data.columns import number
    from qkv.data.table import read_table
    from qkv.train.objectives.embeddings import ContrastiveLoss, CosineLoss
    from qkv.train.reporter import Reporter

    reporter = Reporter()
    metrics = check_metrics(metric or [], list(SIMILARITY_METRICS))
    if metrics and value is None:
        raise QkvError("A correlation needs numbers to be compared with: name their column with --value.")
    if unlike is not None and value is not None:
        raise QkvError("Pairs have a number, triplets a text that is not alike: give --value or --unlike.")
    how = fine_tuning_of(run, adapt, metrics[0] if metrics else None, reporter)
    columns = [first, second, *([unlike] if unlike else [])]

    def read(path: str, format: str | None) -> list[tuple[list[str], float]]:
        wanted = [*columns, *([value] if value else [])]
        if len(set(wanted)) < len(wanted):
            raise QkvError(f"The columns {', '.join(wanted)} are not all different: name different ones.")
        kinds = {value: number} if value else {}
        table = read_table(path, wanted, kinds=kinds, names=names_of(data.names), format=format)
        report_problems(table.problems, reporter.say)
        return [([row[name] for name in columns], row[value] if value else 1.0) for row in table.rows]

    known = read(data.data, data.format)
    if data.valid is not None:
        held = read(data.valid, None)
    else:
        known, held = divide(known, data.hold_out, key=lambda row: row[0][0])
    needs_held(metrics, [row[0][0] for row in held])
    reader = swapped(loaded_reader(model, run), attention)
    pairs_held, values_held = [row[0] for row in held], [row[1] for row in held]
    measured = metrics or (["spearman"] if len(held) > 1 else [])
    figures = SimilarityFigures(pairs_held, values_held, measured) if value and held and measured else None
    with watched(run):
        encoder = fine_tune_embeddings(
            reader,
            [row[0] for row in known],
            run.out,
            valid=pairs_held,
            pooling=pooling,
            values=[row[1] for row in known] if value else None,
            valid_values=values_held if value else None,
            objective=CosineLoss() if value else ContrastiveLoss(),
            how=how,
            evaluate=figures,
        )
    shown = [row[0] for row in (held or known)[:EXAMPLES_SHOWN]]
    cosines = encoder.similarities([one[0] for one in shown], [one[1] for one in shown]).diagonal().tolist()
    examples = [f"{short(one[0])} | {short(one[1])} → {cosine:.3f}" for one, cosine in zip(shown, cosines, strict=True)]
    command = f"qkv run {quoted(run.out, beginning(shown[0][0]))} --similar {quoted(beginning(shown[0][1]))}"
    report(run.out, examples, not held, [command])
