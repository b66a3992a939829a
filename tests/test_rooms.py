"""The house keeps its order: a room imports only rooms above it, no reference library enters `src/`, no file grows past
500 lines. The order is read from the table in `docs/architecture.md`, so the page cannot drift from the code.
"""

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "qkv"
LONGEST_FILE = 500

# They may judge qkv in tests/, but qkv must never lean on them.
FOR_TRITON = ("_programs", "_triton", "_cuda")
REFERENCE_LIBRARIES = {
    "alphafold", "diffusers", "fairseq", "fairseq2", "flax", "haiku", "jax", "keras", "linformer", "open_clip",
    "openfold", "performer_pytorch", "reformer_pytorch", "sentence_transformers", "tensorflow", "timm", "transformers",
    "x_transformers", "xformers",
}  # fmt: skip

# where the import's name is not the name that pip knows
MODULE_OF_DISTRIBUTION = {"pillow": "PIL", "lm-eval": "lm_eval", "huggingface-hub": "huggingface_hub"}


OF_NO_FAMILY = (  # what training may know of models
    "qkv.models.attention_choice",
    "qkv.models.image_model",
    "qkv.models.image_text_model",
    "qkv.models.sequence_to_sequence",
    "qkv.models.sound_model",
    "qkv.models.text_model",
)


ASKS_THE_REFERENCE = "qkv.weights.certify"  # once a person wants to compare, inside a function


class Import(NamedTuple):
    module: str  # full dotted name: of the module, or of the name taken from it
    line: int
    top_level: bool  # runs when the file is imported, not only when a function is called


def imports_of(source: str, module: str, *, is_package: bool = False) -> list[Import]:
    """Every import in `source`, the text of `module`: inside functions, relative ones resolved, by name as a string."""
    found: list[Import] = []

    def visit(node: ast.AST, top_level: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, top_level) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                parents = module.split(".") if is_package else module.split(".")[:-1]
                kept = parents[: len(parents) - (node.level - 1)]
                origin = ".".join([*kept, *filter(None, [node.module])])
            found.extend(Import(f"{origin}.{alias.name}", node.lineno, top_level) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in {"import_module", "__import__"}:
                found.append(Import(str(node.args[0].value), node.lineno, top_level))
        inside_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            visit(child, top_level and not inside_function and not typing_only)

    visit(ast.parse(source), True)
    return found


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """`qkv.parts.norm.LayerNorm` lives in `parts`; `qkv` itself is the front door, which has no room."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def rooms_in_architecture() -> list[str]:
    """The first column of the table of rooms, from top to bottom."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `(\w+)(?:/|\.py)` \|", page, flags=re.MULTILINE)


def trespasses(source: str, module: str, rooms: list[str], *, is_package: bool = False) -> list[str]:
    """What the imports of one file do against the order of the rooms, as readable lines."""
    here = room_of(module)
    lines = []
    for name, line, _ in imports_of(source, module, is_package=is_package):
        if name.split(".")[0] != "qkv":
            continue
        there = room_of(name)
        if there not in rooms:
            lines.append(f"{module}:{line} imports {name}, which is in no room; import from the room itself")
        elif rooms.index(there) > rooms.index(here):
            lines.append(f"{module}:{line} imports {name}, but {here} stands above {there}")
        elif here == "train" and there == "models" and not name.startswith(OF_NO_FAMILY):
            lines.append(f"{module}:{line} imports {name}, but training knows no family")
    return lines


SOURCES = sorted(PACKAGE.rglob("*.py"))
FRONT_DOOR = [PACKAGE / "__init__.py", PACKAGE / "__main__.py"]  # belongs to no room and may open all of them
FILES_IN_ROOMS = [file for file in SOURCES if file not in FRONT_DOOR]
ROOMS = rooms_in_architecture()


def test_every_room_stands_in_the_architecture_and_every_room_there_exists() -> None:
    directories = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert len(ROOMS) == len(set(ROOMS))
    assert directories | files == set(ROOMS)


@pytest.mark.parametrize("file", FILES_IN_ROOMS, ids=module_name)
def test_a_room_imports_only_rooms_above_it(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    assert trespasses(source, module_name(file), ROOMS, is_package=file.name == "__init__.py") == []


def test_the_check_sees_every_way_to_import() -> None:
    rooms = ["errors", "data", "parts", "models", "train", "cli"]
    assert trespasses("from qkv.data.table import read\nfrom . import block\n", "qkv.parts.norm", rooms) == []
    assert trespasses("from qkv.models.sequence_to_sequence import Memory", "qkv.train.loop", rooms) == []
    for guilty in [
        "import qkv.models.transformer",
        "from qkv import models",
        "from qkv import Transformer",
        "from ..models import transformer",
        "def late():\n    from qkv.train.loop import train",
        "import importlib\nimportlib.import_module('qkv.cli.main')",
    ]:
        assert len(trespasses(guilty, "qkv.parts.norm", rooms)) == 1, guilty
    assert len(trespasses("from .. import models", "qkv.parts", rooms, is_package=True)) == 1
    assert len(trespasses("from qkv.models.transformer import Transformer", "qkv.train.loop", rooms)) == 1


def distributions(requirements: list[str]) -> set[str]:
    names = {re.split(r"[\[<>=!~ ;]", requirement)[0] for requirement in requirements}
    return {MODULE_OF_DISTRIBUTION.get(name, name) for name in names}


def test_src_imports_only_its_declared_dependencies() -> None:
    """Base dependencies anywhere, extras only inside functions (who does not need them need not have them).

    Triton and the bindings of CUDA come with torch's builds for GPUs; files of programs for Triton need it at import,
    and are themselves imported inside functions only.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    base = distributions(project["dependencies"]) | set(sys.stdlib_module_names) | {"qkv", "__future__"}
    offered = [extras[name] for name in ("bleu", "parquet", "datasets", "ray", "constrained", "harness", "sound")]
    optional = distributions([requirement for extra in offered for requirement in extra]) | {"triton", "cuda"}
    wrong = []
    for file in SOURCES:
        is_package = file.name == "__init__.py"
        for name, line, top_level in imports_of(
            file.read_text(encoding="utf-8"), module_name(file), is_package=is_package
        ):
            library = name.split(".")[0]
            if library == "transformers" and module_name(file) == ASKS_THE_REFERENCE and not top_level:
                continue
            if library in REFERENCE_LIBRARIES:
                wrong.append(f"{module_name(file)}:{line} leans on the reference library {library}")
            elif library == "triton" and file.stem.endswith(FOR_TRITON):
                continue
            elif top_level and name.endswith(FOR_TRITON) and not file.stem.endswith(FOR_TRITON):
                wrong.append(f"{module_name(file)}:{line} needs Triton at import, by way of {name}")
            elif library in optional and top_level:
                wrong.append(f"{module_name(file)}:{line} needs the extra {library} at import")
            elif library not in base | optional:
                wrong.append(f"{module_name(file)}:{line} imports {library}, which pyproject.toml does not declare")
    assert wrong == []


def test_no_file_grows_past_five_hundred_lines() -> None:
    folders = ["src", "tests", "recipes", "bench", "docs", "tools"]
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    lengths = {str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}
