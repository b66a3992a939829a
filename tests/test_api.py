"""`import qkv` is light, and everything it promises is there."""

import subprocess
import sys
from importlib import import_module

import pytest

import qkv


def test_importing_qkv_imports_neither_torch_nor_anything_else_of_weight() -> None:
    use = "qkv.__version__, qkv.QkvError, dir(qkv)"
    code = f"import sys; import qkv; {use}; sys.exit(bool({{'torch', 'numpy', 'typer'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", qkv.__all__)
def test_every_name_is_there_and_is_what_its_home_defines(name: str) -> None:
    thing = getattr(qkv, name)
    assert thing is getattr(import_module(thing.__module__), name)
    assert thing.__doc__
    assert name in dir(qkv)


@pytest.mark.parametrize("room", ["data", "parts", "models", "weights", "train", "generate", "look", "api", "errors"])
def test_every_room_opens_from_the_front_door(room: str) -> None:
    assert getattr(qkv, room) is import_module(f"qkv.{room}")


def test_what_is_not_there_is_told_as_python_does() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'transformer'"):
        qkv.transformer  # noqa: B018
