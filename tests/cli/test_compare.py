"""`qkv compare`: from a text file to a page, and one sentence for what is spelled wrong."""

from pathlib import Path

import pytest

from qkv.api.comparison import Comparison
from qkv.api.variants import Setup
from qkv.cli.compare import budget_of, variant_of
from qkv.errors import QkvError
from tests.api.corpus import DOCUMENTS
from tests.cli.command import Outcome, qkv

TINY = ["--size", "width=16,hidden=32,heads=2,layers=1,dropout=0", "--length", "32", "--device", "cpu"]


@pytest.fixture
def verses(tmp_path: Path) -> Path:
    (tmp_path / "verses.txt").write_text("\n\n".join(DOCUMENTS))
    return tmp_path / "verses.txt"


def compare(data: Path, out: Path, *more: str) -> Outcome:
    held = ["--blank-lines", "--hold-out", "0.3", "--batch-rows", "4", "--evaluations", "2"]
    return qkv("compare", "--data", data, *held, *TINY, "--out", out, *more)


def test_from_a_text_to_a_page(verses: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ["--budget", "4steps", "--variant", "dense", "--variant", "window:8"]
    done = compare(verses, out, *asked, "--variant", "deep: size=layers=2 learning-rate=3e-4")
    assert done.code == 0, done
    lines = done.out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| dense", "| window:8", "| deep"]
    assert done.out == (out / "table.md").read_text()
    found = Comparison.load(out)
    assert found.outcomes[1].setup["attention"] == "window:8"
    deep = found.outcomes[2].setup
    assert (deep["sizes"]["layers"], deep["sizes"]["width"], deep["learning_rate"]) == (2, 16, 3e-4)
    again = compare(verses, out, *asked, "--variant", "deep: size=layers=2 learning-rate=3e-4")
    assert again.out == done.out
    assert "is finished" in again.err
    assert "Trying" not in again.err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--variant", "linformer:4"], "The variant linformer:4 cannot be trained"),
        (["--variant", "windw:4"], "did you mean window?"),
        (["--variant", "a: atention=window:4"], "did you mean attention?"),
        (["--variant", "size=layers=2"], "needs a name before what it changes"),
        (["--variant", "a: size=layers=two"], "must be a number, but is 'two'"),
        (["--variant", "a: size=lairs=2"], "lairs"),
        (["--variant", "a: warmup=1.5"], "should be a whole number"),
        (["--variant", "a: attention"], "'attention' of the variant a should be spelled setting=value"),
        (["--variant", "a: warmup=1 warmup=2"], "changes warmup twice"),
        (["--variant", "dense", "--variant", "dense"], "is there twice"),
        (["--variant", "dense", "--budget", "4"], "a number and its unit"),
        (["--variant", "dense", "--budget", "0steps"], "steps must be above 0"),
        (["--variant", "dense", "--speed-lengths", "64,x"], "speed-lengths should be a whole number"),
        (["--variant", "dense", "--hold-out", "0"], "held-out text"),
        (["--variant", "dense", "--precision", "int4"], "precision"),
        ([], "Missing option '--variant'"),
    ],
)
def test_what_is_wrong_is_one_sentence(verses: Path, tmp_path: Path, given: list[str], told: str) -> None:
    outcome = compare(verses, tmp_path / "out", *["--budget", "2steps", *given])
    assert outcome.code == 2
    assert told in outcome.complaint
    assert not (tmp_path / "out" / "dense").exists()


@pytest.mark.parametrize(
    ("spelled", "means"),
    [
        ("200steps", {"steps": 200}),
        ("60s", {"minutes": 1.0}),
        ("1.5 min", {"minutes": 1.5}),
        ("2e15flops", {"flops": 2e15}),
        ("1h", {"minutes": 60.0}),
    ],
)
def test_how_budgets_are_spelled(spelled: str, means: dict[str, float]) -> None:
    assert budget_of(spelled) == means


@pytest.mark.parametrize("spelled", ["", "s", "1.2.3s", "2.5steps", "-3s", "3 parsecs", "1e999999flopss"])
def test_budgets_that_are_none(spelled: str) -> None:
    with pytest.raises(QkvError, match="budget"):
        budget_of(spelled)


def test_a_family_of_its_own_begins_with_its_own_sizes() -> None:
    common = Setup(sizes={"width": 16})
    found = variant_of("llama: family=llama size=layers=1 attention=dense", common, 32)
    assert (found.name, found.changes) == ("llama", {"family": "llama", "attention": None, "sizes": {"layers": 1}})
    named = variant_of("big: size=base", common, 2048)
    assert named.changes["sizes"]["positions"] == 2048
