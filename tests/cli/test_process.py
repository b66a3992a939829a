"""A command gets to work without delay: it opens no file that it does not need. Nothing is timed here."""

import gc
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qkv.api.loading import USES
from qkv.cli.main import VERBS, main
from qkv.cli.process import ALONE, WAITING, cores_are_shared, ending, loads, opening, share_cores
from qkv.models.families import FAMILIES
from qkv.weights.export import export
from tests.cli.command import qkv
from tests.cli.text_models import save_writer

RUN = """
import gc, json, sys, torch
known = set(sys.modules)  # what torch itself imports, it may
from qkv.cli.main import main
sys.argv = ["qkv", "run", sys.argv[1], "light", "--max-tokens", "2", "--device", "cpu"]
code = main()
new = sorted(set(sys.modules) - known)
print(json.dumps({"code": code, "new": new, "collects": gc.isenabled(), "frozen": gc.get_freeze_count()}))
"""
NEVER = (
    "torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torch.onnx", "sympy", "PIL", "huggingface_hub",
    "rich", "transformers", "qkv.api.training", "qkv.cli.train", "qkv.data.images", "qkv.data.sound", "qkv.look",
    "qkv.models.attention_choice", "qkv.train", "qkv.weights.gguf", "qkv.weights.export", "pydantic", "numpy.random",
    "qkv.data.batches", "qkv.generate.beam", "qkv.generate.constrain", "qkv.generate.contrastive", "qkv.generate.fused",
    "qkv.generate.score", "qkv.generate.shape", "qkv.generate.speculative", "qkv.parts.attention.kernels.flash",
    "qkv.parts.routing", "qkv.parts.sum_norm",
)  # fmt: skip


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_writer(tmp_path_factory.mktemp("own") / "writer")


@pytest.mark.parametrize("published", [False, True])
def test_a_language_model_that_is_run_needs_little(own: Path, published: bool, tmp_path: Path) -> None:
    folder = export(own, tmp_path / "published") if published else own
    done = subprocess.run([sys.executable, "-c", RUN, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["code"] == 0
    assert [name for name in told["new"] if f"{name}.".startswith(tuple(f"{each}." for each in NEVER))] == []
    opened = {name for name, file in FAMILIES.homes.items() if f"qkv.models.{file}" in told["new"]}
    assert opened == {"gpt2"}
    assert told["collects"]
    assert told["frozen"] > 10_000  # what was made by opening files is no longer looked at


def test_nothing_of_a_process_that_goes_on_is_frozen() -> None:
    before = gc.get_freeze_count()
    assert main(["models", "nothing"]) == 2
    with opening():
        assert gc.isenabled()
    ending()
    assert gc.get_freeze_count() == before


def test_a_process_that_ends_looks_for_garbage_after_files_were_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    collects: list[bool] = []

    def fail() -> None:
        with opening():
            collects.append(gc.isenabled())
            raise ValueError("stop")

    monkeypatch.setattr(gc, "freeze", lambda: collects.append(gc.isenabled()))
    alone = ALONE.set(True)
    try:
        with pytest.raises(ValueError, match="stop"):
            fail()
    finally:
        ALONE.reset(alone)
    assert gc.isenabled()
    assert collects == [False, False]


def test_every_verb_has_its_file_and_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, verb in VERBS.items():
        assert f"  {name} " in shown
        assert verb.summary.split()[0] in shown
    assert main(["convert", "--help"]) == 0
    assert "Usage: qkv convert" in capsys.readouterr().out


def test_what_uses_a_model_says_so_itself() -> None:
    assert all(kind in use.kinds for kind, use in USES.items())
    assert {kind for use in USES.values() for kind in use.kinds} == set(USES)


def test_a_limit_in_which_torch_does_not_load_is_named() -> None:
    if shutil.which("bash") is None or sys.platform != "linux":
        pytest.skip("there is no such limit here")
    command = f"ulimit -v 400000 && exec {sys.executable} -m qkv run nothing text"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("qkv: PyTorch does not load in 0.4 GiB of address space")
    assert done.stderr.count("\n") == 1


def test_memory_that_ends_within_a_limit_is_said_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("qkv.cli.main.app_for", full)
    monkeypatch.setattr("qkv.cli.main.address_space", lambda: None)
    assert "GiB" not in qkv("models").complaint
    monkeypatch.setattr("qkv.cli.main.address_space", lambda: 3 * 2**30)
    assert qkv("models").complaint.endswith("smaller batches. (This process may have 3.0 GiB of addresses: ulimit -v.)")


SEEN = """
import json, os, sys
from importlib.abc import MetaPathFinder
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
class Watching(MetaPathFinder):
    seen = None
    def find_spec(self, name, path, target=None):
        if name == "torch" and self.seen is None:
            self.seen = {each: os.environ[each] for each in WAITING if each in os.environ}
sys.meta_path.insert(0, watching := Watching())
"""


def at_import_of_torch(code: str, **environment: str) -> dict[str, str]:
    """What was settled about waiting when torch was first asked for, in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if name not in WAITING}
    done = subprocess.run(
        [sys.executable, "-c", f"{SEEN}{code}\nprint(json.dumps(watching.seen))"],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


COMMAND = "from qkv.cli.main import main; sys.argv = ['qkv', 'run', 'nowhere', 'text']; main()"
AS_A_LIBRARY = "import qkv; qkv.TrainSettings(steps=1)"
CALLED = "from qkv.cli.main import main; main(['run', 'nowhere', 'text'])"
SHARED = "import qkv.cli.process as process; process.loads = lambda: (9.0, 9)\n"
QUIET = "import qkv.cli.process as process; process.loads = lambda: (9.0, 0)\n"


@pytest.mark.parametrize(
    ("code", "settled"),
    [
        (SHARED + COMMAND, {"OMP_WAIT_POLICY": "PASSIVE"}),
        (QUIET + COMMAND, {"GOMP_SPINCOUNT": "3000"}),
        (SHARED + AS_A_LIBRARY, {}),
        (SHARED + CALLED, {}),  # the process is somebody else's
    ],
    ids=["shared", "quiet", "library", "called"],
)
def test_how_threads_wait_is_settled_before_torch_and_for_the_command_alone(code: str, settled: dict[str, str]) -> None:
    assert at_import_of_torch(code) == settled


def test_what_a_person_settled_about_waiting_stands() -> None:
    assert at_import_of_torch(SHARED + COMMAND, OMP_WAIT_POLICY="ACTIVE") == {"OMP_WAIT_POLICY": "ACTIVE"}


def test_where_torch_is_there_already_nothing_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    share_cores()
    assert not any(name in os.environ for name in WAITING)


@pytest.mark.parametrize(
    ("cores", "minute", "now", "shared"),
    [
        (2, 8.0, 8, True),
        (2, 0.6, 8, True),  # they began some seconds ago
        (2, 2.0, 0, False),  # the command before this one
        (2, 0.1, 3, False),  # over at once
        (16, 1.0, 1, False),
        (2, 1.5, None, False),  # a system that tells nothing of now
        (2, 8.0, None, True),
        (2, 0.0, None, False),
    ],
)
def test_cores_are_shared_where_others_want_them_for_longer(
    cores: int, minute: float, now: int | None, shared: bool
) -> None:
    assert cores_are_shared(cores, minute, now) is shared


def test_a_system_that_tells_no_load_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("qkv.cli.process.LOADS", tmp_path / "none")
    monkeypatch.setattr(os, "getloadavg", lambda: (3.5, 0.0, 0.0), raising=False)
    assert loads() == (3.5, None)
    (tmp_path / "none").write_text("3.50 2.00 1.00 5/321 4711\n")
    assert loads() == (3.5, 4)
    monkeypatch.delattr(os, "getloadavg")  # as on Windows
    assert loads() == (0.0, None)
