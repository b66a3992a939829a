"""A run folder never loses a run by accident and never resumes another one."""

import json
from pathlib import Path

import pytest

from qkv.errors import QkvError, QkvWarning
from qkv.parts.agreement import say_refused
from qkv.train.optimizers import adamw
from qkv.train.provenance import describe
from tests.train.tiny import TinyModel, open_run

SESSION = {"started": "today"}


def begun(folder: Path, train: dict[str, object] | None = None, **options: object) -> None:
    open_run(folder, **options).begin({"train": train or {"steps": 5, "clip": 1.0}}, SESSION)


def test_an_existing_run_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    with pytest.raises(QkvError, match=r"already holds a run .*--resume.*--overwrite.*--out"):
        open_run(tmp_path / "run")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").touch()
    with pytest.raises(QkvError, match="already holds a run or a model"):
        open_run(tmp_path / "model")


def test_overwriting_removes_the_run_and_nothing_else(tmp_path: Path) -> None:
    begun(tmp_path)
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("mine")
    run = open_run(tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    run.begin({}, SESSION)
    assert len(json.loads((tmp_path / "run.json").read_text())["sessions"]) == 1


def test_a_folder_with_other_files_is_fine(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").touch()
    begun(tmp_path)


def test_there_must_be_something_to_resume(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="no run to resume"):
        open_run(tmp_path / "nothing", resume=True)
    with pytest.raises(QkvError, match="either resumed or overwritten"):
        open_run(tmp_path, resume=True, overwrite=True)
    (tmp_path / "file").touch()
    with pytest.raises(QkvError, match="is a file"):
        open_run(tmp_path / "file")


def test_resume_refuses_other_settings_and_names_each(tmp_path: Path) -> None:
    begun(tmp_path, {"steps": 5, "clip": 1.0}, settings={"model": {"layers": 2, "width": 8}}, data_fingerprint="abc")
    with pytest.raises(QkvError) as caught:
        begun(
            tmp_path,
            {"steps": 5, "clip": 2.0},
            settings={"model": {"layers": 3, "width": 8}},
            data_fingerprint="abd",
            resume=True,
        )
    message = str(caught.value)
    assert "model.layers (it was 2, now 3)" in message
    assert "train.clip (it was 1.0, now 2.0)" in message
    assert "data (it was abc, now abd)" in message
    assert "width" not in message


def test_another_learning_rate_is_told_in_one_sentence(tmp_path: Path) -> None:
    def begin(rate: float, resume: bool) -> None:
        optimizer = adamw(TinyModel(), learning_rate=rate)
        open_run(tmp_path, resume=resume).begin({"optimizer": describe(optimizer)}, SESSION)

    begin(1e-3, resume=False)
    with pytest.raises(QkvError, match=r"other settings: the learning rate \(it was 0.001, now 0.01\)\. Only"):
        begin(1e-2, resume=True)


def test_resume_allows_another_budget_and_notes_the_session(tmp_path: Path) -> None:
    begun(tmp_path, {"steps": 5, "minutes": None, "betas": (0.9, 0.98)})
    begun(tmp_path, {"steps": 9, "minutes": 2.0, "betas": (0.9, 0.98)}, resume=True)
    written = json.loads((tmp_path / "run.json").read_text())
    assert written["settings"]["train"]["steps"] == 9
    assert len(written["sessions"]) == 2
    # Only the loop's own budget may change: the caller's settings may use the same word for something else.
    begun(tmp_path / "other", settings={"steps": 1})
    with pytest.raises(QkvError, match="steps"):
        begun(tmp_path / "other", settings={"steps": 2}, resume=True)


def test_a_broken_description_is_reported(tmp_path: Path) -> None:
    begun(tmp_path)
    (tmp_path / "run.json").write_text('{"format": "qk')
    with pytest.raises(QkvError, match=r"run\.json is not whole JSON"):
        begun(tmp_path, resume=True)
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(QkvError, match="not the description of a qkv-run-1"):
        begun(tmp_path, resume=True)


def test_records_after_a_checkpoint_are_forgotten_and_a_cut_line_ignored(tmp_path: Path) -> None:
    run = open_run(tmp_path)
    run.begin({}, SESSION)
    assert run.records() == []
    assert run.records_end() == 0
    ends = []
    for step in (1, 2, 3):
        run.record({"step": step})
        ends.append(run.records_end())
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 4, "lo')
    assert [record["step"] for record in run.records()] == [1, 2, 3]
    run.forget_after(ends[1])
    run.record({"step": 3, "again": True})
    assert run.records() == [{"step": 1}, {"step": 2}, {"step": 3, "again": True}]
    run.forget_after(ends[0] + 3)  # in the middle of a line that someone else wrote
    assert run.records() == [{"step": 1}]
    (tmp_path / "metrics.jsonl").write_text("nonsense\n")
    with pytest.raises(QkvError, match=r"metrics\.jsonl holds a line"):
        run.records()


def test_the_model_is_saved_by_the_function_that_was_passed(tmp_path: Path) -> None:
    calls = []
    run = open_run(tmp_path, save_model=lambda model, folder: calls.append((model, folder)))
    model = TinyModel()
    run.write_model(model)
    assert calls == [(model, tmp_path)]


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = open_run(tmp_path / "file" / "run")
    with pytest.raises(QkvError, match="cannot be written"):
        run.begin({}, SESSION)
    with pytest.raises(QkvError, match=r"metrics\.jsonl cannot be written"):
        run.record({"step": 1})


def test_a_faster_way_that_was_refused_is_kept_with_the_session(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        run.begin({"train": {}}, SESSION)
        with pytest.warns(QkvWarning, match="this way is not used here: it was off"):
            say_refused("this way", "it was off")
        say_refused("this way", "it was off")  # said once
    (session,) = json.loads((tmp_path / "run.json").read_text())["sessions"]
    assert session == {
        **SESSION,
        "refused": ["this way is not used here: it was off; the model's own parts do its work."],
    }
