"""Models by their name on the hub, without a network: what is asked of its library, what its errors become."""

import huggingface_hub
import pytest
from huggingface_hub import errors

import qkv
from qkv.data.pronunciation import pronunciation_splits
from qkv.errors import QkvError
from qkv.files import read_json
from qkv.weights import hub
from qkv.weights.hub import PACKAGED, local_folder, packaged
from qkv.weights.load import load_model
from tests.weights.folders import write_gpt2

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """What was asked of the hub, which has one model."""
    folder = write_gpt2(tmp_path / COMMIT)
    calls = []

    def snapshot_download(repository, **options):
        calls.append((repository, options))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    return calls


def test_a_name_is_fetched_and_its_revision_said(asked, capsys):
    assert load_model("someone/gpt2").family == "gpt2"
    assert f"someone/gpt2@{COMMIT} gives the same again" in capsys.readouterr().err
    ((repository, options),) = asked
    assert repository == "someone/gpt2"
    assert options["revision"] is None


def test_a_revision_is_asked_for(asked):
    local_folder(f"someone/gpt2@{COMMIT}")
    assert asked[0][0] == "someone/gpt2"
    assert asked[0][1]["revision"] == COMMIT


def test_only_what_is_needed_is_fetched_and_never_a_program(asked):
    from fnmatch import fnmatch

    local_folder("someone/gpt2")
    patterns = asked[0][1]["allow_patterns"]

    def wanted(name):
        return any(fnmatch(name, pattern) for pattern in patterns)

    for name in ("config.json", "model.safetensors", "model-00001-of-00002.safetensors", "tokenizer.json",
                 "model.safetensors.index.json", "vocab.txt", "modules.json", "1_Pooling/config.json"):  # fmt: skip
        assert wanted(name), name
    for name in ("pytorch_model.bin", "modeling_gpt2.py", "tf_model.h5", "flax_model.msgpack", "training_args.bin",
                 "onnx/model.onnx", "rust_model.ot"):  # fmt: skip
        assert not wanted(name), name
    local_folder("someone/gpt2", pickles=True)
    patterns = asked[1][1]["allow_patterns"]
    assert wanted("pytorch_model.bin")
    assert not wanted("training_args.bin")


@pytest.mark.parametrize("offline", [True, False])
def test_offline_is_passed_on(asked, offline):
    load_model("someone/gpt2", offline=offline)
    assert asked[0][1]["local_files_only"] is offline


@pytest.mark.parametrize("environment", [True, False])
def test_the_environment_may_say_offline(asked, monkeypatch, environment):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", environment)
    local_folder("someone/gpt2")
    assert asked[0][1]["local_files_only"] is environment


def test_what_is_here_is_not_looked_for_elsewhere(asked, tmp_path):
    (tmp_path / "runs" / "words").mkdir(parents=True)
    for name in ("runs/words", "runs/wrods", tmp_path / "absent", "absent", "./a/b", "a/b/c"):
        assert str(local_folder(name)) == str(name).removeprefix("./")
    assert asked == []


def raising(kind):
    error = kind.__new__(kind)
    Exception.__init__(error, "said by the hub")
    return error


@pytest.mark.parametrize(
    ("kind", "offline", "said"),
    [
        (errors.RepositoryNotFoundError, False, "no folder someone/gpt2@v1, and no model someone/gpt2 on the hub"),
        (errors.GatedRepoError, False, "only to those who accepted its terms"),
        (errors.RevisionNotFoundError, False, "someone/gpt2 has no revision v1"),
        (errors.LocalEntryNotFoundError, False, "the hub cannot be reached"),
        (errors.LocalEntryNotFoundError, True, "told to stay offline"),
        (OSError, False, "cannot be fetched: said by the hub"),
    ],
)
def test_what_goes_wrong_is_said(monkeypatch, kind, offline, said):
    def fails(*_, **__):
        raise raising(kind)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(QkvError, match=said):
        local_folder("someone/gpt2@v1", offline=offline)


def test_a_model_without_safetensors_leads_to_convert(asked, tmp_path):
    (tmp_path / COMMIT / "model.safetensors").unlink()
    with pytest.raises(QkvError, match="`qkv convert someone/gpt2 NEW`"):
        local_folder("someone/gpt2")


def test_the_library_is_imported_only_for_a_name():
    assert "huggingface_hub" not in vars(hub)


def test_a_packaged_model_answers_by_its_name_as_well_as_is_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = qkv.load("pronounce", "cpu")
    assert capsys.readouterr().err == "pronounce: the model of this name that is packaged with qkv.\n"
    made = read_json(PACKAGED / "pronounce" / "made.json")
    splits = pronunciation_splits()
    assert made["held_out_words"] == len(qkv.Scores(splits.test, ["per"], limit=None).sources)
    some = qkv.Scores(splits.test[::25], ["per", "ser"])
    figures = some.of([result.text for result in model.run(some.sources, beams=1)])
    assert figures["per"] == pytest.approx(made["phoneme_error_rate"], abs=0.03)
    assert figures["ser"] == pytest.approx(made["word_error_rate"], abs=0.1)
    assert model.run(["knight"])[0].text == "N AY T"


def test_packaged_models_are_small_and_hold_nothing_but_a_model():
    assert packaged() == ["pronounce"]
    files = {file.name: file.stat().st_size for file in (PACKAGED / "pronounce").iterdir()}
    sides = {f"{side}_tokenizer{kind}.json" for side in ("source", "target") for kind in ("", "_config")}
    assert set(files) == {"config.json", "made.json", "model.safetensors", *sides}
    assert sum(files.values()) < 3e6


def test_a_folder_of_ones_own_comes_before_a_packaged_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_gpt2(tmp_path / "pronounce")
    assert load_model("pronounce").family == "gpt2"
    assert capsys.readouterr().err == ""
