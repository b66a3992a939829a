"""What a command says about a run is what its settings are."""

from pathlib import Path

import pytest

from qkv.cli.train_options import RunOptions, settings_of


@pytest.mark.parametrize(
    "said", [{"compile": True}, {"record": True}, {"recompute": True}, {"precision": "float8"}, {"keep": 5}]
)
def test_what_is_said_reaches_the_settings(said: dict[str, object]) -> None:
    plain = settings_of(RunOptions(out=Path("run"), device="cpu"))
    settings = settings_of(RunOptions(out=Path("run"), device="cpu", **said))  # type: ignore[arg-type]
    ((name, value),) = said.items()
    assert getattr(plain, name) != value
    assert getattr(settings, name) == value
