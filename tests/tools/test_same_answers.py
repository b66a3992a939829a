"""Whether anything differs between two states of the repository; no command is run."""

import copy
import json
import math
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tools import same_answers
from tools.gpu_verify.working import Ended
from tools.same_answers import DRAWN, Answers, CommandError, answer_of, left_in, main, numbers, table, tensors

BEFORE: Answers = {
    "train lm": {"losses": ["0.1", "3.25"], "tensors": ["a", "b", "b"], "answers": []},
    "run lm": {"answers": ['{"text": "a fox", "score": -1.5}', '{"text": "an owl", "score": -2.5}']},
}
EQUAL = """\
| command | losses | tensors | answers | equal? |
|---|---|---|---|---|
| train lm | 2 | 3 | – | yes |
| run lm | – | – | 2 | yes |"""


@pytest.fixture
def now() -> Answers:
    return copy.deepcopy(BEFORE)


def test_equal_is_equal(now: Answers) -> None:
    assert table(BEFORE, now) == EQUAL


def test_one_changed_bit_of_a_loss_is_found(now: Answers) -> None:
    now["train lm"]["losses"] = [*numbers([{"loss": math.nextafter(0.1, 1)}, {"loss": 3.25}])]
    shown = table(BEFORE, now)
    assert "| train lm | 1 of 2 | 3 | – | no |\n| run lm | – | – | 2 | yes |" in shown
    assert shown.endswith("- train lm, losses: number 1 of 2 was `0.1`, now `0.10000000000000002`")


def test_a_changed_tensor_is_found_and_each_counts_as_often_as_it_is_there(now: Answers) -> None:
    now["train lm"]["tensors"] = ["a", "b", "c"]
    assert "| train lm | 2 | 2 of 3 | – | no |" in table(BEFORE, now)


def test_missing_answers_and_commands_are_found(now: Answers) -> None:
    del now["run lm"]["answers"][1], now["train lm"]
    shown = table(BEFORE, now)
    assert "| train lm | 0 of 2 | 0 of 3 | – | no |" in shown
    assert "| run lm | – | – | 1 of 2 | no |" in shown
    assert "- run lm, answers: 2 before, 1 now, the first 1 equal" in shown
    assert "| run lm | – | – | 1 of 2 | no |" in table(now, BEFORE)  # nor may any come to it


def test_of_a_long_answer_the_place_is_shown_where_it_differs(now: Answers) -> None:
    now["run lm"]["answers"][1] = '{"text": "an owl", "score": -2.75}'
    assert "number 2 of 2 was `" in table(BEFORE, now)
    assert '"score": -2.75}`' in table(BEFORE, now)


def test_numbers_of_clocks_and_memory_are_left_out_and_names_do_not_count() -> None:
    record = {"step": 2, "loss": 0.5, "wall_seconds": 1.5, "data_wait": 0.1, "peak_memory": 7, "best": True}
    end = {"kind": "final", "figures": {"accuracy": 1.0}, "tokens_per_second": 3.0}
    assert [*numbers([record, end])] == ["2", "0.5", "1.0"]


def test_renamed_tensors_and_files_are_the_same_and_one_changed_bit_is_not(tmp_path: Path) -> None:
    weights = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}
    moved = {"second": weights["b"], "first": weights["a"]}
    changed = {**weights, "a": weights["a"].clone()}
    changed["a"][1, 2] = struct.unpack("<f", struct.pack("<I", struct.unpack("<I", struct.pack("<f", 5.0))[0] + 1))[0]
    reshaped = {**weights, "a": weights["a"].view(3, 2)}
    found = []
    for name, each in {"one": weights, "other": moved, "changed": changed, "reshaped": reshaped}.items():
        (tmp_path / name).mkdir()
        save_file(each, tmp_path / name / f"{name}.safetensors")
        found.append(left_in(tmp_path / name)["tensors"])
    one, other, different, turned = found
    assert one == other
    assert len(set(one) & set(different)) == len(set(one) & set(turned)) == 1
    assert [*tensors([])] == []


def test_of_a_page_what_is_drawn_counts_and_no_name_or_script() -> None:
    page = """script-src 'sha256-A'> <img src="data:image/png;base64,iVBO+/=="> {"name":"blocks.0","weights":"//8A="}"""
    assert DRAWN.findall(page) == ["iVBO+/==", "//8A="]


def test_a_command_that_fails_or_leaves_nothing_to_compare_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(same_answers, "ran", lambda command, seconds: Ended(2, "", "qkv: no such model"))
    with pytest.raises(CommandError, match="qkv run lm ended with 2: qkv: no such model"):
        answer_of("run lm", tmp_path)
    monkeypatch.setattr(same_answers, "ran", lambda command, seconds: Ended(0, "trained", ""))
    with pytest.raises(CommandError, match=r"left nothing to compare \(losses, tensors\)"):
        answer_of("train lm --out {work}/lm", tmp_path)
    assert answer_of("run {work}/lm", tmp_path) == {"answers": ["trained"]}


def test_the_exit_code_is_1_where_anything_differs_and_2_where_a_command_fails(
    tmp_path: Path, now: Answers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(same_answers, "ONE_THREAD", {})
    monkeypatch.setattr(same_answers, "answers_of_all", lambda work: now)
    file = tmp_path / "before.json"
    assert main(["--write", str(file)]) == 0
    assert json.loads(file.read_text(encoding="utf-8"))["commands"] == BEFORE
    assert main(["--compare", str(file)]) == 0
    assert capsys.readouterr().out == EQUAL + "\n"
    now["run lm"]["answers"].pop()
    assert main(["--compare", str(file)]) == 1

    def fail(work: Path) -> Answers:
        raise CommandError("qkv run ended with 2: why")

    monkeypatch.setattr(same_answers, "answers_of_all", fail)
    assert main(["--compare", str(file)]) == 2
    assert capsys.readouterr().err == "same-answers: qkv run ended with 2: why\n"
