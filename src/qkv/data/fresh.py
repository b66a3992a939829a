"""Training pairs cut anew for every epoch, in a process of their own. [provilkov2020 §3.1]"""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qkv.data.pairs import Pairs
from qkv.data.tokenizer import TextTokenizer


class FreshPairs:
    """A function from epoch to `Pairs` for `PairBatches`: the same texts, each time cut with other subword dropout.

    Cutting hundreds of thousands of texts holds Python's lock for seconds, which would stall a loop that feeds a GPU;
    so another process does it while the loop trains on the epoch before.
    """

    def __init__(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        source_tokenizer: TextTokenizer,
        target_tokenizer: TextTokenizer,
        *,
        subword_dropout: float,
        max_length: int | None = None,
    ) -> None:
        with TemporaryDirectory() as folder:
            source_file, target_file = Path(folder, "source.json"), Path(folder, "target.json")
            source_tokenizer.save(source_file)
            target_tokenizer.save(target_file)
            work = (list(sources), list(targets), str(source_file), str(target_file), subword_dropout, max_length)
            self._worker = ProcessPoolExecutor(1, get_context("spawn"), _prepare, (work,))
            self._worker.submit(_ready).result()  # it has read the tokenizers before their folder goes

    def __call__(self, epoch: int) -> Pairs:
        return self._worker.submit(_cut).result()


_work: dict[str, Any] = {}  # in the worker process: what to cut


def _prepare(work: tuple[list[str], list[str], str, str, float, int | None]) -> None:
    sources, targets, source_file, target_file, subword_dropout, max_length = work
    tokenizers = TextTokenizer.load(Path(source_file)), TextTokenizer.load(Path(target_file))
    _work["texts"] = (sources, targets, *tokenizers)
    _work["options"] = {"subword_dropout": subword_dropout, "max_length": max_length}


def _ready() -> None:
    pass


def _cut() -> Pairs:
    return Pairs.from_texts(*_work["texts"], **_work["options"])
