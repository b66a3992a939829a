"""`qkv tokenize`: a corpus larger than memory, cut into tokens before anything is trained on it."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.data.making_tokens import Made
    from qkv.data.source import Source
    from qkv.data.tokenizer import TextTokenizer

LEARNED_FROM = 16 << 20  # bytes of text, for a new tokenizer
TENTHS = 10  # of the work, each told with a line where there is no terminal


def tokenize(
    data: Annotated[
        str, typer.Option(help="A .txt file, a table, a tar shard, a folder of such files, or a saved data set.")
    ],
    tokenizer: Annotated[
        str,
        typer.Option(help="A tokenizer.json, a model folder, owner/name on the hub; or a new one: bpe:8000"),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the tokens; what it holds already is kept.")],
    text: Annotated[str, typer.Option(help="Column with the texts, where the data is a table.")] = "text",
    format: Annotated[
        str | None, typer.Option(help="tsv, csv, jsonl, parquet or tar, where no file name tells.")
    ] = None,
    blank_lines: Annotated[
        bool, typer.Option("--blank-lines", help="Blank lines divide a text file into documents.")
    ] = False,
    shard_size: Annotated[str, typer.Option(help="About so much text in a shard, such as 64MB.")] = "64MB",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; 1: this one, on all its cores. By default one for each core.")
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="As a Ray Data job, on all machines of a cluster.")] = False,
) -> None:
    """Cut a corpus into tokens, shard by shard, for trainings that read them from disk.

    Nothing is read whole, so the corpus may be larger than memory. What is made stays: after Ctrl-C, a full disk or a
    new file in the corpus the same command goes on. Each shard's file says which texts and which tokenizer it came from
    and is checked whenever it is opened. With --ray the same work is done by a cluster that shares its files.

    \b
    Example (after the one that `qkv train lm --help` shows):
      qkv tokenize --data verses.txt --blank-lines --tokenizer runs/verses --out tokens/verses
    """
    from qkv.cli.export import bytes_of
    from qkv.data.ray_tokens import tokenize_with_ray
    from qkv.data.sources import sources_of
    from qkv.data.token_folder import write_list
    from qkv.data.token_shards import TokenShards

    if ray and workers is not None:
        raise QkvError("--workers is for one machine: with --ray the cluster decides how many there are.")
    size = bytes_of(shard_size)
    sources = sources_of(data, column=text, format=format, blank_lines_divide=blank_lines, shard_bytes=size)
    shards = TokenShards(sources, tokenizer_at(tokenizer, sources, out), out)
    stale = write_list(shards)
    with told_when_stopped(), Shown([source.size for source in sources]) as shown:
        if ray:
            tokenize_with_ray(shards, shown.made)
        else:
            shards.prepare(workers=workers or cores(), made=shown.made)
    shown.report_problems()
    if stale:
        typer.echo(f"{stale:,} shards of an earlier corpus are still in {out}, and are no longer used.", err=True)
    typer.echo(
        f"{shown.documents:,} documents of {shown.tokens:,} tokens in {len(shards):,} shard{'s'[: len(shards) > 1]}, "
        f"fingerprint {shards.fingerprint}. Written: {out}"
    )


def tokenizer_at(place: str, sources: Sequence["Source"], out: Path) -> "TextTokenizer":
    """The tokenizer of a file, a folder or the hub, or a new one that learns from the first texts.

    One that was learned is in the folder of the tokens, and is taken from there when the command is given again.
    """
    from qkv.api.choices import NewTokenizer
    from qkv.api.streamed_texts import beginning
    from qkv.cli.spellings import tokenizer_of
    from qkv.data.published_tokenizer import read_tokenizer
    from qkv.data.token_folder import is_token_folder, open_tokens
    from qkv.data.token_kinds import KINDS
    from qkv.weights.hub import local_folder

    if not place.endswith(".json") and (Path(place).is_dir() or place.partition(":")[0] not in KINDS):
        return read_tokenizer(local_folder(place))
    found = tokenizer_of(place)
    if not isinstance(found, NewTokenizer):
        return found
    if is_token_folder(out):
        return open_tokens(out).tokenizer
    texts = beginning(sources, LEARNED_FROM)
    if not texts:
        raise QkvError("There is no document to learn a tokenizer from.")
    return found.train(texts)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Shown:
    """What a person sees meanwhile: a bar in a terminal, now and then a line elsewhere."""

    def __init__(self, sizes: list[int]) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        from qkv.train.reporter import Reporter

        self.documents = self.tokens = self.shards = self.problems = 0
        self._sizes = sizes
        self._first: list[Any] = []  # problems
        self._began, self._done, self._told = time.monotonic(), 0, 0
        self._reporter = Reporter()
        self._bar = Progress(
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.description}", markup=False),
            TimeRemainingColumn(),
            console=self._reporter.console,
            transient=True,
            disable=not self._reporter.console.is_terminal,
        )
        self._task = self._bar.add_task(f"0 of {len(sizes):,} shards", total=max(1, sum(sizes)))

    def __enter__(self) -> "Shown":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def made(self, number: int, made: "Made") -> None:
        """A shard is there."""
        self.documents += made.documents
        self.tokens += made.tokens
        self.problems += made.problem_count
        self._first += made.problems
        self.shards += 1
        self._done += self._sizes[number]
        speed = self.tokens / max(1e-9, time.monotonic() - self._began)
        line = f"{self.shards:,} of {len(self._sizes):,} shards  {self.tokens:,} tokens  {speed:,.0f} tokens/s"
        self._bar.update(self._task, completed=self._done, description=line)
        tenth = TENTHS * self.shards // len(self._sizes)
        if not self._reporter.console.is_terminal and tenth > self._told and len(self._sizes) > 1:
            self._told = tenth
            self._reporter.say(line)

    def report_problems(self) -> None:
        from qkv.api.pairs import PROBLEMS_SHOWN

        for problem in self._first[:PROBLEMS_SHOWN]:
            self._reporter.say(f"Left out: {problem}")
        if self.problems > PROBLEMS_SHOWN:
            self._reporter.say(f"Left out: {self.problems:,} bad rows in all; the first {PROBLEMS_SHOWN} are shown.")


@contextmanager
def told_when_stopped() -> Iterator[None]:
    """After Ctrl-C or SIGTERM within the block a line says how to go on; the exit code is 130 or 143."""
    ours = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # ignored, where nohup or another program wants it so
    if ours:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        typer.echo("Stopped. What is made stays: give the same command again to go on.", err=True)
        raise
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
