"""The texts of a training: read into memory, or left on disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.groups import flag, given
from qkv.cli.train_options import short
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.api.streamed_texts import StreamedTexts
    from qkv.train.reporter import Reporter

LARGE = 2e9  # bytes of text, which take several times as many of memory


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    data: Annotated[
        str,
        typer.Option(help="A .txt file or a table: a file, a folder of files, or - for standard input."),
    ]
    text: Annotated[str, typer.Option(help="Column with the texts, where the data is a table.")] = "text"
    format: Annotated[
        str | None, typer.Option(help="tsv, csv, jsonl or parquet, where no file name tells; - is plain text without.")
    ] = None
    blank_lines: Annotated[
        bool, typer.Option("--blank-lines", help="Blank lines divide a text file into documents.")
    ] = False
    valid: Annotated[str | None, typer.Option(help="Text to validate on, of the same form.")] = None
    hold_out: Annotated[float, typer.Option(help="Share to validate on without --valid; 0: none.")] = 0.05


@dataclass(frozen=True, kw_only=True)
class LanguageOptions(CorpusOptions):
    data: Annotated[  # type: ignore[assignment]  # several where others take one
        list[str],
        typer.Option(
            help="A .txt file or a table: a file, a folder of files, or - for standard input. With --stream also tar "
            "shards and saved data sets; may be repeated with --weight."
        ),
    ]
    stream: Annotated[
        bool, typer.Option("--stream", help="Read texts from disk while training: more than fits in memory.")
    ] = False
    weight: Annotated[
        list[float] | None,
        typer.Option(help="With --stream: of rows, how many come from each --data beside the others; once for each."),
    ] = None
    window: Annotated[int | None, typer.Option(min=1, help="With --stream: shards that are shuffled together; 4.")] = (
        None
    )
    tokens: Annotated[
        Path | None, typer.Option(help="With --stream: folder for tokenised texts; by default in the cache.")
    ] = None
    workers: Annotated[
        int | None, typer.Option(min=0, help="With --stream: processes that make rows; one where there is a GPU.")
    ] = None


def corpus_to_train(
    corpus: LanguageOptions, reporter: "Reporter"
) -> "tuple[list[str] | StreamedTexts, list[str] | None, str]":
    """(texts to train on, texts to validate on, the first of them); None: some are held out, or none."""
    if corpus.stream:
        texts = streamed(corpus)
        return texts, None if corpus.valid is None else texts_in(corpus.valid, corpus, reporter), texts.first
    for name in ("weight", "window", "tokens", "workers"):
        if name in given(corpus):
            raise QkvError(f"{flag(name)} is for texts that are read from disk: give --stream too, or leave it out.")
    if len(corpus.data) > 1:
        raise QkvError("Several corpora are mixed as they are read from disk: give --stream, and --weight for each.")
    size = size_of(corpus.data[0])
    if size > LARGE:
        reporter.say(f"{corpus.data[0]} has {size / 1e9:.1f} GB, all of which is read into memory: see --stream.")
    read, valid = read_corpus(corpus, reporter)
    return read, valid, read[0]


def streamed(corpus: LanguageOptions) -> "StreamedTexts":
    """Texts that stay on disk, mixed where there are several."""
    from qkv.api.streamed_texts import stream_texts
    from qkv.data.streaming import WINDOW

    weights, several = corpus.weight or [], len(corpus.data) > 1
    if len(set(corpus.data)) < len(corpus.data):
        raise QkvError("A --data is given twice: give each once, with its --weight.")
    if several and len(weights) != len(corpus.data):
        raise QkvError(f"{len(corpus.data)} --data need {len(corpus.data)} --weight, but there are {len(weights)}.")
    if weights and not several:
        raise QkvError("A single --data is not mixed with anything: leave out --weight.")
    return stream_texts(
        dict(zip(corpus.data, weights, strict=True)) if several else corpus.data[0],
        column=corpus.text,
        format=corpus.format,
        blank_lines_divide=corpus.blank_lines,
        cache=corpus.tokens,
        window=corpus.window or WINDOW,
        workers=corpus.workers,
    )


def size_of(path: str) -> int:
    """Bytes of a file or folder; 0 where nobody knows."""
    found = Path(path)
    files = found.rglob("*") if found.is_dir() else [found]
    return sum(file.stat().st_size for file in files if file.is_file())


def read_corpus(corpus: CorpusOptions, reporter: "Reporter") -> tuple[list[str], list[str] | None]:
    """(documents to train on, documents to validate on); None: some are held out, or none."""
    data = corpus.data if isinstance(corpus.data, str) else corpus.data[0]
    texts = texts_in(data, corpus, reporter)
    if corpus.valid is not None:
        return texts, texts_in(corpus.valid, corpus, reporter)
    if corpus.hold_out and len(set(texts)) < 2:
        raise QkvError(
            f"{data} is a single document ({short(texts[0], 30)!r}), of which none can be held out: divide it "
            "with --blank-lines, give --valid, or --hold-out 0."
        )
    return texts, None


def texts_in(path: str, corpus: CorpusOptions, reporter: "Reporter") -> list[str]:
    """The documents of a path; problems are told."""
    from qkv.api.pairs import report_problems
    from qkv.data.documents import read_documents

    found = read_documents(path, column=corpus.text, format=corpus.format, blank_lines_divide=corpus.blank_lines)
    report_problems(found.problems, reporter.say)
    return found.texts
