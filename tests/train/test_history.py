"""A run folder is read back whole, also of earlier versions and while it runs; a broken one is told in a sentence."""

import json
from pathlib import Path

import pytest

from qkv.errors import QkvError
from qkv.train.evaluation import ValidationLoss
from qkv.train.history import read_histories, read_history, run_folders
from qkv.train.objectives import SequenceToSequenceLoss
from qkv.train.run_state import write_state
from tests.train.tiny import TinyModel, make_batch, train_tiny

VALIDATION = ValidationLoss(SequenceToSequenceLoss(smoothing=0.0), [make_batch(77)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    train_tiny(folder, steps=6, evaluate=VALIDATION, evaluate_every=2, flops_per_token=2.0)
    return folder


def test_a_run_is_read_back(run: Path) -> None:
    history = read_history(run)
    assert history.state == ("finished", "")
    figures = [record["figures"]["loss"] for record in history.of_kind("evaluation")]
    assert len(figures) == 3
    assert (history.figure("best"), history.figure("last")) == (min(figures), figures[-1])
    assert history.parameters == sum(each.numel() for each in TinyModel().parameters())
    steps, losses = history.curve("train/loss", "step")
    assert steps == [1, 2, 3, 4, 5, 6]
    assert losses == [record["loss"] for record in history.of_kind("train")]
    assert history.curve("validation/loss", "tokens")[1] == figures
    assert history.middle("tokens_per_second") > 0
    assert "Started from Python" in history.repeat


def test_a_finished_run_that_goes_on_is_under_way(run: Path, tmp_path: Path) -> None:
    for name in ("run.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    assert read_history(tmp_path).state[0] == "finished"
    write_state(tmp_path, "running")
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"kind": "train", "step": 7}\n')
    assert read_history(tmp_path).state[0] == "running"


def test_more_may_be_better(run: Path, tmp_path: Path) -> None:
    described = json.loads((run / "run.json").read_text())
    described["settings"]["train"] |= {"watch": "perplexity", "better": "higher"}
    (tmp_path / "run.json").write_text(json.dumps(described))
    (tmp_path / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text())
    history = read_history(tmp_path)
    assert history.figure("best") == max(record["figures"]["perplexity"] for record in history.of_kind("evaluation"))


def test_a_run_of_an_earlier_version_under_way_is_read(run: Path, tmp_path: Path) -> None:
    described = json.loads((run / "run.json").read_text())
    described["sessions"] = [{"started": "2026-01-01T00:00:00+00:00", "command": ["train.py", "--fast"]}]
    (tmp_path / "run.json").write_text(json.dumps(described))
    line = {"kind": "train", "step": 5, "loss": 1.0, "seconds": 2.0, "tokens_per_second": 3.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + '\n{"kind": "tra')
    history = read_history(tmp_path)
    assert history.state == ("stopped", "")
    assert len(history.records) == 1
    assert history.figure("best") is None
    assert history.parameters is None
    assert history.latest("peak_memory") is None
    assert history.repeat == "train.py --fast"


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("run.json", "{", "not whole JSON"),
        ("run.json", "[]", "not the description"),
        ("run.json", '{"format": "qkv-run-1"}', "lacks the settings"),
        ("run.json", '{"format": "qkv-run-1", "settings": {}, "sessions": [3]}', "lacks the settings"),
        ("metrics.jsonl", "rubbish\n", "not JSON"),
        ("metrics.jsonl", "3\n", "no record"),
        ("metrics.jsonl", '{"kind": "train"}\n', "no record"),
        ("metrics.jsonl", '{"kind": "evaluation", "step": 1, "figures": 3}\n', "no record"),
        ("metrics.jsonl", b"\xff\n", "not JSON"),
        ("state.json", "[]", "state of a run"),
        ("train.toml", "= 3", "not whole TOML"),
    ],
)
def test_a_broken_folder_is_told_of_and_left_out(
    run: Path, tmp_path: Path, file: str, content: str | bytes, sentence: str
) -> None:
    for name in ("good", "broken"):
        (tmp_path / name).mkdir()
        for each in ("run.json", "metrics.jsonl", "state.json"):
            (tmp_path / name / each).write_bytes((run / each).read_bytes())
    (tmp_path / "broken" / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    found, broken = read_histories([tmp_path])
    assert [each.folder.name for each in found] == ["good"]
    assert len(broken) == 1
    assert sentence in broken[0]
    assert str(tmp_path / "broken") in broken[0]


def test_runs_are_found_beneath_and_not_in_checkpoints(run: Path, tmp_path: Path) -> None:
    for name in ("a/one", "b", ".hidden", "b/checkpoints/step"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").write_bytes((run / "run.json").read_bytes())
    assert [str(each.relative_to(tmp_path)) for each in run_folders(tmp_path)] == ["a/one", "b"]
    with pytest.raises(QkvError, match="no folder"):
        list(run_folders(tmp_path / "nowhere"))
