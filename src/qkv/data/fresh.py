"""Training pairs cut anew for every epoch, in processes of their own. [provilkov2020 §3.1]"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from qkv.data.pairs import Pairs
from qkv.data.tokenizer import TextTokenizer


class FreshPairs:
    """A function from epoch to `Pairs` for `Batches`: the same texts, each time cut with other subword dropout.

    Cutting hundreds of thousands of texts holds Python's lock for seconds, which would stall a loop that feeds a GPU;
    so other processes do it, each a whole epoch, while the loop trains on an epoch cut before.
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
        workers: int = 1,
    ) -> None:
        texts = (list(sources), list(targets), source_tokenizer, target_tokenizer)
        options = {"subword_dropout": subword_dropout, "max_length": max_length}
        self._workers = ProcessPoolExecutor(workers, get_context("spawn"), _prepare, (texts, options))
        self._coming: deque[Future[Pairs]] = deque(self._workers.submit(_cut) for _ in range(workers))

    def __call__(self, epoch: int) -> Pairs:
        self._coming.append(self._workers.submit(_cut))
        return self._coming.popleft().result()


_work: dict[str, Any] = {}  # in a worker process: what to cut, and how


def _prepare(texts: tuple[list[str], list[str], TextTokenizer, TextTokenizer], options: dict[str, Any]) -> None:
    _work["texts"], _work["options"] = texts, options


def _cut() -> Pairs:
    return Pairs.from_texts(*_work["texts"], **_work["options"])
