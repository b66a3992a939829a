"""The run folder as ranks other than the first see it: what is written there is the first one's business."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from qkv.train.run_folder import RunFolder


class FollowedRun(RunFolder):
    """Reads and writes nothing of the history; checkpoints and the model are still written by all ranks together."""

    def _make_way(self, resume: bool, overwrite: bool) -> None:
        """The first rank sees to it."""

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        """The first rank says what became of the run."""

    def begin(self, settings: Mapping[str, Any], session: Mapping[str, Any]) -> None:
        """The first rank describes the run."""

    def record(self, record: Mapping[str, Any]) -> None:
        """The first rank writes records."""

    def records(self) -> list[dict[str, Any]]:
        return []

    def records_end(self) -> int:
        return 0

    def forget_after(self, end: int) -> None:
        """The first rank cuts its records."""
