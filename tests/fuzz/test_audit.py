"""Loading runs no code, opens no socket and starts nothing: the hook that would see it, and loading under its eyes."""

import json
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.native import MACHINES, instructions

ROOT = Path(__file__).resolve().parents[2]
# In a process of its own, since a hook stays: each line does one thing, and the hook must stop it and remember it.
FORBIDDEN = {
    "a code object is run": "exec(code)",
    "text is compiled": "compile('1', 'x', 'eval')",
    "text is evaluated": "eval('1 + 1')",
    "a module is imported": "__import__('this')",
    "a pickle asks for a class": "pickle.loads(pickled)",
    "code is unpacked": "marshal.loads(marshalled)",
    "a socket is made": "socket.socket()",
    "a host is looked up": "socket.getaddrinfo('localhost', 1)",
    "an address is fetched": "urllib.request.urlopen('http://localhost:1')",
    "a process is started": "subprocess.run(['true'])",
    "a shell is started": "os.system('true')",
    "the process is replaced": "os.execv('/bin/true', ['true'])",
    "the process is doubled": "os.fork()",
    "a process is spawned": "os.posix_spawn('/bin/true', ['true'], {})",
    "a library is loaded": "ctypes.CDLL('libm.so.6')",
    "a file is written elsewhere": "open(outside, 'w')",
    "a file is added to elsewhere": "pathlib.Path(outside).open('ab')",
    "a file is made elsewhere": "os.open(outside, os.O_CREAT | os.O_RDWR)",
    "a link leads elsewhere": "open(link, 'w')",
    "a file is removed elsewhere": "os.remove(outside)",
    "a file is moved elsewhere": "os.rename(inside, outside)",
    "a folder is removed elsewhere": "shutil.rmtree(os.path.dirname(outside))",
    "the environment is changed": "os.environ.__setitem__('A', 'b')",
}
ALLOWED = {
    "a file is read": "open(inside).read()",
    "a file of elsewhere is read": "open(outside).read()",
    "a file is written here": "open(inside, 'w')",
    "a module that is there is imported": "__import__('json')",
    "JSON is parsed": "json.loads('[1]')",
}
SCRIPT = """
import ctypes, json, marshal, os, pathlib, pickle, shutil, socket, subprocess, sys, urllib.request
from tests.fuzz.audit import Forbidden, Hook
folder = sys.argv[1]
here, inside, link, outside = (folder + "/" + name for name in ("here", "here/inside", "here/link", "there/outside"))
code, pickled, marshalled = compile("1", "x", "exec"), pickle.dumps(Forbidden), marshal.dumps(1)
actions = {{{actions}}}
hook, told = Hook(pathlib.Path(here)), {{}}
for name, act in actions.items():
    try:
        with hook.watching():
            act()
        told[name] = "let through"
    except Forbidden:
        told[name] = hook.seen[-1]
    except Exception as error:
        told[name] = "let through, " + repr(error)
print(json.dumps(told))
"""
FILTERED = """
import os, socket, sys, threading
from tests.fuzz.native import give_up_sockets_and_processes
assert give_up_sockets_and_processes()
threading.Thread(target=open, args=(os.devnull,)).start()
print("so far", flush=True)
{does}
print("and on")
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("audit")
    for name in ("here", "there"):
        (folder / name).mkdir()
    (folder / "here" / "inside").write_text("x")
    (folder / "there" / "outside").write_text("x")
    (folder / "here" / "link").symlink_to(folder / "there" / "outside")
    lines = {**FORBIDDEN, **ALLOWED}
    done = run(
        SCRIPT.format(actions=", ".join(f"{what!r}: lambda: {line}" for what, line in lines.items())), str(folder)
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "there" / "outside").read_text() == "x"
    answer: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_hook_stops(told: dict[str, str], what: str) -> None:
    assert "let through" not in told[what]


@pytest.mark.parametrize("what", ALLOWED)
def test_the_hook_lets_through(told: dict[str, str], what: str) -> None:
    assert told[what] == "let through"


LINUX = pytest.mark.skipif(platform.system() != "Linux" or platform.machine() not in MACHINES, reason="is of Linux")
DOES = ["socket.socket()", "os.fork()", "os.execv('/bin/true', ['true'])", "os.system('true')"]


def filtered(does: str) -> subprocess.CompletedProcess[str]:
    done = run(FILTERED.format(does=does))
    if "AssertionError" in done.stderr:
        pytest.skip("the kernel takes no filter here")
    return done


@LINUX
@pytest.mark.parametrize("does", DOES)
def test_the_kernel_ends_a_process_that_does_it_in_any_language(does: str) -> None:
    done = filtered(does)
    assert (done.stdout, done.returncode) == ("so far\n", -signal.SIGSYS)


@LINUX
def test_the_kernel_lets_others_go_on() -> None:
    done = filtered("open(os.devnull).read()")
    assert (done.stdout, done.returncode) == ("so far\nand on\n", 0)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_path_through_the_filter_ends_in_an_answer(machine: str) -> None:
    program = instructions(machine)
    assert len(program) < 256
    for place, (operation, if_so, if_not, _) in enumerate(program):
        if operation in (0x15, 0x45):
            assert place + 1 + max(if_so, if_not) < len(program)
    assert program[-1][0] == 0x06


@pytest.mark.slow
@LINUX
def test_damaged_inputs_of_every_kind_by_the_tool_itself(tmp_path: Path) -> None:
    """Under the hook and the filter, in a process of their own: no finding, and neither saw anything."""
    command = [
        "-m",
        "tests.fuzz",
        "--inputs",
        "600",
        "--workers",
        "1",
        "--each",
        "600",
        "--home",
        str(tmp_path / "fuzz"),
    ]
    done = subprocess.run(
        [sys.executable, *command, "--page", str(tmp_path / "page.md")],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "fuzz" / "summary.json").read_text())
    assert summary["inputs"] == 600
    assert summary["findings"] == []
    assert all(sum(kind.get(way, 0) for kind in summary["kinds"].values()) for way in ("loaded", "refused"))
    assert "600 damaged inputs, 0 findings" in (tmp_path / "page.md").read_text(encoding="utf-8")
