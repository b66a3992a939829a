"""What the guide to training shows works: its commands, the second after the run was cut short."""

import re
from pathlib import Path

from qkv.train.checkpoint import Checkpoints
from qkv.train.settings import TrainSettings
from qkv.train.spikes import LEAST, REMEMBERED, ROLL_BACKS
from tests.api.corpus import DOCUMENTS
from tests.cli.shell import commands, paste

GUIDE = (Path(__file__).resolve().parent.parent / "docs" / "training.md").read_text(encoding="utf-8")


def test_its_commands_work(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("\n\n".join(DOCUMENTS), encoding="utf-8")
    (block,) = re.findall(r"```sh\n(.*?)```", GUIDE, flags=re.DOTALL)
    first, second = commands(block)
    small = first.replace("--steps 200", "--steps 12").replace("--keep-every 100", "--keep-every 10")
    outcome = paste(small, tmp_path, "--hold-out", "0.3", "--batch-rows", "2", "--device", "cpu")
    assert outcome.code == 0, outcome
    checkpoints = Checkpoints(tmp_path / "runs" / "safe" / "checkpoints")
    assert checkpoints.steps()[-1] == 12
    checkpoints.forget_after(5)
    outcome = paste(second, tmp_path)
    assert outcome.code == 0, outcome
    assert "Resuming after step 5." in outcome.err
    assert checkpoints.steps() == [5, 10, 12]


def test_its_numbers_are_those_of_the_code() -> None:
    assert (REMEMBERED, LEAST, ROLL_BACKS, TrainSettings(steps=1).tolerate) == (8, 4, 5, 10)
