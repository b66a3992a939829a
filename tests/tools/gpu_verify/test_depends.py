"""A hash changes with the files that something depends on, and with no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.gpu_verify import depends
from tools.gpu_verify.depends import ROOT, files_of, hash_of, substance

FILES = {
    "tests/test_a.py": "from qkv.parts import used\nfrom tests.helper import help\n\n\ndef test() -> None: ...\n",
    "tests/helper.py": "def help() -> None:\n    import qkv.late\n",
    "tests/other.py": "x = 1\n",
    "src/qkv/__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from qkv.lazy import thing\n",
    "src/qkv/lazy.py": "thing = 1\n",
    "src/qkv/late.py": "from qkv import thing\n",
    "src/qkv/unused.py": "x = 1\n",
    "src/qkv/parts/__init__.py": "import qkv.unused\n",
    "src/qkv/parts/used.py": (
        '"""A docstring."""\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import qkv.typed\n'
        'FILE = "used.cu"  # beside it\n'
    ),
    "src/qkv/parts/used.cu": "#include\n",
    "src/qkv/parts/shared.cuh": "int x;\n",
    "src/qkv/parts/other.cu": "int y;\n",
    "src/qkv/typed.py": "x = 1\n",
}
NEEDED = {
    "tests/test_a.py", "tests/helper.py", "src/qkv/__init__.py", "src/qkv/lazy.py", "src/qkv/late.py",
    "src/qkv/parts/__init__.py", "src/qkv/parts/used.py", "src/qkv/parts/used.cu", "src/qkv/parts/shared.cuh",
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def forget() -> None:
    for each in (depends._next, depends._homes, depends._digest, depends.substance):
        each.cache_clear()


def hashed(root: Path, beside: str = "") -> str:
    forget()
    return hash_of([root / "tests/test_a.py"], beside, root)


def test_imports_are_walked(root: Path) -> None:
    found = {file.relative_to(root).as_posix() for file in files_of([root / "tests/test_a.py"], root)}
    assert found == NEEDED


def test_the_hash_changes_with_what_is_needed_and_with_nothing_else(root: Path) -> None:
    before = hashed(root)
    assert hashed(root) == before
    assert hashed(root, "another command") != before
    for name in FILES:
        content = (root / name).read_text(encoding="utf-8")
        (root / name).write_text(f"{content}y = 2\n", encoding="utf-8")
        assert (hashed(root) != before) == (name in NEEDED), name
        (root / name).write_text(content, encoding="utf-8")
    (root / "src/qkv/parts/added.cuh").write_text("int z;\n", encoding="utf-8")
    assert hashed(root) != before


def test_comments_and_docstrings_change_nothing(root: Path) -> None:
    before = hashed(root)
    used = root / "src/qkv/parts/used.py"
    changed = used.read_text(encoding="utf-8").replace("A docstring.", "Another.").replace("# beside it", "# here")
    used.write_bytes(changed.replace("\n", "\r\n").encode())
    assert hashed(root) == before
    used.write_text(changed.replace("used.cu", "other.cu"), encoding="utf-8")
    assert hashed(root) != before


def test_what_a_file_holds_is_told_alike_everywhere() -> None:
    """Python 3.12 cuts f-strings in another way."""
    file = ROOT / "src" / "qkv" / "parts" / "cuda.py"
    held = substance(file).decode()
    assert '"""' not in held
    assert "# as the driver counts them" not in held
    assert 'raise QkvError(f"CUDA says {status.name}.")' in held
