"""From a name to a model that is ready to use."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from qkv.api.loading import load
from qkv.errors import QkvError
from qkv.generate.language import Options
from qkv.weights.export import export
from tests.cli.text_models import save_writer


def test_offline_only_what_was_fetched_before_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QkvError, match="told to stay offline"):
        load("nobody-at-all/nothing", "cpu", offline=True)


def test_a_folder_may_name_more_tokens_that_end_an_output(tmp_path: Path) -> None:
    """As the reference library's `generate` does with the same folder."""
    save_writer(tmp_path / "own")
    folder = export(tmp_path / "own", tmp_path / "published")
    plain = load(folder, "cpu").run(["And God"], Options(most=12))[0]
    told = [plain.ids[5], 2]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": told}))
    writer = load(folder, "cpu")
    found = writer.run(["And God"], Options(most=12))[0]
    assert (found.ids, found.ended) == (plain.ids[: plain.ids.index(told[0])], "end")
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    prompt = torch.tensor([writer.encode("And God")])
    theirs = reference.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)[0, prompt.shape[1] :]
    assert theirs.tolist() == [*found.ids, told[0]]
    writer.save(tmp_path / "saved")
    assert load(tmp_path / "saved", "cpu").ends() == writer.ends() == frozenset(told)


@pytest.mark.parametrize(
    ("told", "complaint"),
    [(9999, "9999, the vocabulary has 300"), ([-1], "number of a token"), ("</s>", "number of a token")],
)
def test_an_end_that_is_no_token_is_refused(told: object, complaint: str, tmp_path: Path) -> None:
    save_writer(tmp_path / "own")
    folder = export(tmp_path / "own", tmp_path / "published")
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": told}))
    with pytest.raises(QkvError, match=complaint):
        load(folder, "cpu")
