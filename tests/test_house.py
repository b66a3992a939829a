"""Promises about the whole tree: nothing unsafe, nothing of one machine, commands that exist, one version."""

import ast
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import qkv

ROOT = Path(__file__).resolve().parent.parent
THIS_FILE = Path(__file__).resolve()

# What ties a text to one machine. Written in pieces, so that this file does not contain what it forbids.
OF_ONE_MACHINE = {
    "a home or workspace path": re.compile(r"(?<![\w.])/(?:home|Users|root|work)/[\w.-]+"),
    "a path below the temporary folder": re.compile(r"(?<![\w.])/tmp/\w+"),
    "a wheel or package mirror": re.compile(r"extra-" + r"index-url|--index-" + r"url|find-" + r"links|/opt/\w+"),
}
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")

TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".cfg", ".html", ".css", ".js", ".json", ".jsonl", ".yaml", ".yml", ""}


def tracked_text_files() -> list[Path]:
    """What git holds, or in an unpacked archive every file outside hidden and built folders."""
    git = shutil.which("git")
    listing = git and subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing and listing.returncode == 0:
        files = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        built = {"build", "dist", "runs", "site"}
        files = [file for file in ROOT.rglob("*") if not built & set(file.relative_to(ROOT).parts)]
        files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(ROOT).parts)]
    return [file for file in files if file.is_file() and file.suffix in TEXT_SUFFIXES and file != THIS_FILE]


def occurrences(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    found = []
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            if match := pattern.search(line):
                found.append(f"{file.relative_to(ROOT)}:{number}: {match.group()}")
    return found


@pytest.mark.parametrize("what", OF_ONE_MACHINE)
def test_nothing_in_the_tree_names_one_machine(what: str) -> None:
    assert occurrences(OF_ONE_MACHINE[what], tracked_text_files()) == []


def test_nothing_is_left_unfinished() -> None:
    assert occurrences(UNFINISHED, tracked_text_files()) == []


def calls_in(source: str) -> set[str]:
    """The dotted name of everything that is called or imported."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            names.add(ast.unparse(node.func))
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return names


OPENS_PICKLES = ROOT / "src" / "qkv" / "weights" / "unpickle.py"  # a process of its own, for `qkv convert` alone
UNSAFE = {"pickle", "dill", "joblib", "marshal", "shelve", "torch.load", "torch.save", "eval", "exec", "os.system"}


@pytest.mark.parametrize("file", sorted((ROOT / "src").rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_the_library_neither_unpickles_nor_evaluates(file: Path) -> None:
    """A model folder from a stranger must never run code: safetensors and JSON only."""
    allowed = {"pickle", "torch.load"} if file == OPENS_PICKLES else set()
    assert calls_in(file.read_text(encoding="utf-8")) & UNSAFE == allowed


def test_pickles_are_opened_only_as_weights() -> None:
    """The one file that opens a pickle asks torch for its restricted loader, and no other file imports what opens."""
    tree = ast.parse(OPENS_PICKLES.read_text(encoding="utf-8"))
    loads = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"]
    assert [{key.arg: ast.unparse(key.value) for key in load.keywords}["weights_only"] for load in loads] == ["True"]
    imported = [
        name
        for file in (ROOT / "src").rglob("*.py")
        for name in calls_in(file.read_text(encoding="utf-8"))
        if name.startswith("qkv.weights.unpickle")
    ]
    assert set(imported) == {"qkv.weights.unpickle", "qkv.weights.unpickle.REFUSED"}


# Each looks for no module in the folder it stands in; tests/cli/test_strangers_folder.py stands in one full of traps.
STARTS_PROCESSES = {
    "cli/process.py", "data/in_processes.py", "data/stored_boxes.py", "data/stored_sounds.py", "parts/compiler.py",
    "weights/pickles.py",
}  # fmt: skip
WAYS_TO_START = ("subprocess", "multiprocessing.get_context", "concurrent.futures.ProcessPoolExecutor", "pty")


def test_processes_are_started_by_few_files() -> None:
    found = {
        file.relative_to(ROOT / "src" / "qkv").as_posix()
        for file in (ROOT / "src").rglob("*.py")
        for name in calls_in(file.read_text(encoding="utf-8"))
        if name in WAYS_TO_START or re.match(r"os\.(fork|exec|spawn|posix_spawn|popen|startfile)", name)
    }
    assert found == STARTS_PROCESSES


def test_no_except_catches_everything() -> None:
    broad = []
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler) and (
                node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"}
            ):
                broad.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert broad == []


def writes_text(call: ast.Call) -> bool:
    """`file.write_text(…)`, or `file.open("w")`, `open(file, "a")` and their like without a `b`."""
    name = ast.unparse(call.func).rpartition(".")[2]
    modes = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return name == "write_text" or (name == "open" and any(re.fullmatch("[wax]t?[+]?", mode) for mode in modes))


def test_what_is_written_as_text_has_the_same_line_ends_on_every_system() -> None:
    """Of encodings `make lint` takes care."""
    found = []
    for file in (ROOT / "src").rglob("*.py"):
        calls = [each for each in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(each, ast.Call)]
        for call in filter(writes_text, calls):
            if not any(each.arg == "newline" for each in call.keywords) and "devnull" not in ast.unparse(call):
                found.append(f"{file.relative_to(ROOT)}:{call.lineno}")
    assert found == []


def make_targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, flags=re.MULTILINE))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/index.md", "docs/getting-started.md"])
def test_every_make_command_in_the_text_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```.*?```|`[^`]+`", text, flags=re.DOTALL))
    commands = set(re.findall(r"\bmake\s+([a-z][a-z-]*)", code))
    assert commands <= make_targets()


def test_every_documented_target_is_phony_and_explained() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = set(re.findall(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)[0].split())
    explained = set(re.findall(r"^([a-z][a-z-]*):.*## \w", makefile, flags=re.MULTILINE))
    assert make_targets() == phony == explained


PAGES = [file for file in tracked_text_files() if file.suffix == ".md"]


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(file: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", file.read_text(encoding="utf-8"))
    assert [link for link in links if not (file.parent / link).exists()] == []


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_changelog_knows_the_current_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", changelog, flags=re.MULTILINE)
    assert versions[0] == PROJECT["version"]


def test_python_gives_the_version_of_the_project() -> None:
    assert qkv.__version__ == PROJECT["version"]


def test_the_constraints_pin_every_declared_dependency() -> None:
    """What the Makefile installs is one tested set: exact versions, nothing left to chance."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[a-z0-9-]+==[\w.]+", pin)] == []
    pinned = {pin.split("==")[0] for pin in pins}
    extras = PROJECT["optional-dependencies"].values()
    declared = PROJECT["dependencies"] + [requirement for extra in extras for requirement in extra]
    names = {re.split(r"[\[<>=!~ ;]", requirement)[0] for requirement in declared}
    assert names - {"qkv"} <= pinned


def test_every_file_of_the_package_is_installed_with_it() -> None:
    """A style sheet or a data set that pyproject.toml forgets works in a clone and is missing once installed."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    package = ROOT / "src" / "qkv"
    listed = {file for pattern in settings["package-data"]["qkv"] for file in package.glob(pattern)}
    needed = {file for file in package.rglob("*") if file.is_file() and file.suffix not in {".py", ".pyc"}}
    assert sorted(needed - listed) == []


def test_every_room_has_its_page_in_the_reference() -> None:
    package = ROOT / "src" / "qkv"
    rooms = {path.stem for path in package.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))}
    rooms -= {"__init__", "__main__"}
    assert {page.stem for page in (ROOT / "docs" / "api").glob("*.md")} - {"index"} == rooms
    toctree = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8").splitlines()
    assert rooms <= set(toctree)


def test_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make test" in script
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_patterns_can_match() -> None:
    paths = OF_ONE_MACHINE["a home or workspace path"]
    assert paths.search("open('/ho" + "me/someone/file')")
    assert not paths.search("https://example.org/home/page")
    assert calls_in("import torch\nx = torch.load(path)") & UNSAFE
    assert calls_in("from torch import load") & UNSAFE
    assert not calls_in("model.eval()") & UNSAFE
