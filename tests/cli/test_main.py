"""Help is there at once and true: every example in it works as pasted."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import qkv as package
from tests.cli.command import qkv
from tests.cli.shell import commands, paste

TASKS = ["text-to-text", "lm", "mlm", "classify", "sentiment", "pairs", "tag", "answer", "embed"]
VERBS = [
    ["train"],
    *(["train", task] for task in TASKS),
    ["tokenize"],
    ["run"],
    ["look"],
    ["runs"],
    ["compare"],
    ["models"],
]


def example(verb: list[str]) -> list[str]:
    """The indented lines under `Example` in the help of a verb."""
    text = qkv(*verb, "--help").out
    block = re.search(r"\n  Example.*:\n((?:    .*\n)+)", text)
    assert block, text
    return commands(block.group(1))


def test_every_example_works_as_pasted_in_the_order_of_a_first_visit(tmp_path: Path) -> None:
    for verb in VERBS:
        lines = example(verb)
        assert any("qkv " + " ".join(verb) in line for line in lines)
        for line in lines:
            outcome = paste(line, tmp_path)
            assert outcome.code == 0, (line, outcome)
            if verb == ["run"]:
                assert outcome.out.count("\n") == 2
    assert (tmp_path / "look.html").exists()
    assert (tmp_path / "verses.html").exists()
    assert (tmp_path / "look-2.png").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["train", "text-to-text", "--help"],
        ["train", "lm", "--help"],
        ["run", "-h"],
        ["runn"],
    ],
)
def test_what_needs_no_model_imports_no_torch(arguments: list[str]) -> None:
    code = f"import sys; from qkv.cli.main import main; main({arguments!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_the_version_is_the_package_s() -> None:
    assert qkv("--version").out == f"qkv {package.__version__}\n"


def test_an_unknown_verb_is_answered_with_the_nearest() -> None:
    outcome = qkv("modles")
    assert outcome.code == 2
    assert "models" in outcome.complaint


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "Missing argument"),
        (["models", "--nope"], "qkv: No such option: --nope. See qkv models --help."),
        (["train", "text-to-text"], "qkv: Missing option '--data'. See qkv train text-to-text --help."),
        (["run", "m", "--beams", "0"], "See qkv run --help."),
    ],
)
def test_a_mistyped_command_is_one_line_that_says_where_to_look(arguments: list[str], said: str) -> None:
    outcome = qkv(*arguments)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("qkv: ")
    assert said in outcome.err


@pytest.mark.parametrize(("verb", "usage"), [("run", "[TEXT]"), ("look", "TEXT")])
def test_the_usage_names_texts_once(verb: str, usage: str) -> None:
    first = qkv(verb, "--help").out.splitlines()[0]
    assert usage in first
    assert first.count("TEXT") == 1
    assert "......" not in first.replace(" ", "")


def test_without_a_verb_the_help_is_shown() -> None:
    outcome = qkv()
    assert "Commands:" in outcome.out + outcome.err


def test_what_no_room_foresaw_is_one_line_too() -> None:
    """Standard output on a full disk, for example."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    with full.open("w", encoding="utf-8") as nowhere:
        done = subprocess.run(
            [sys.executable, "-m", "qkv", "models", "rnn"],
            stdout=nowhere,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "qkv: No space left on device.\n"
