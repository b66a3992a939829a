"""What the guide to captions and boxes shows works as pasted."""

import re
from pathlib import Path

import pytest

from tests.cli.shell import commands, paste

GUIDE = (Path(__file__).resolve().parent.parent / "docs" / "captions-and-objects.md").read_text(encoding="utf-8")
CAPTIONS, BOXES = re.findall(r"```sh\n(.*?)```", GUIDE, flags=re.DOTALL)


@pytest.mark.slow
def test_captions_are_learned_and_classes_told_in_words(tmp_path: Path) -> None:
    said = pasted(CAPTIONS, tmp_path)
    assert said[-2].startswith("warm\t")
    warm, cold, file = said[-1].split("\t")
    assert float(warm) > float(cold)
    assert file.strip() == "warm3.ppm"


@pytest.mark.slow
def test_boxes_are_learned_and_drawn(tmp_path: Path) -> None:
    said = pasted(BOXES, tmp_path)
    assert said[-1].splitlines()[0].endswith("\tsea")
    assert list((tmp_path / "found").glob("*.png"))


def pasted(block: str, folder: Path) -> list[str]:
    said = []
    for line in commands(block):
        outcome = paste(line, folder)
        assert outcome.code == 0, (line, outcome)
        said.append(outcome.out)
    return said
