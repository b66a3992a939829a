"""From a name to a model that is ready to use."""

from pathlib import Path

import pytest

from qkv.api.loading import load
from qkv.errors import QkvError


def test_offline_only_what_was_fetched_before_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QkvError, match="told to stay offline"):
        load("nobody-at-all/nothing", "cpu", offline=True)
