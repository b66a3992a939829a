"""Writing files so that a crash or a full disk leaves the old state or the new one, never something between."""

import errno
import hashlib
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, BinaryIO

from safetensors import SafetensorError, safe_open

from qkv.errors import QkvError, legible

if TYPE_CHECKING:
    from torch import Tensor  # fetched where tensors are: processes that cut texts into tokens do without

# What a failing write raises: safetensors reports a full disk by its own error.
WRITE_ERRORS = (OSError, SafetensorError)
HALF = re.compile(r"\\u[dD][89a-fA-F]")  # how JSON spells a half of a sign that takes two


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A passing name to write to; at the end what stands there reaches the disk and takes the file's place at once."""
    passing = file.with_name(f".{file.name}.{writer()}-{token_hex(4)}.partial")  # no other writer's, on any machine
    try:
        yield passing
        with passing.open("rb+") as stream:  # Windows brings to the disk only what may be written
            os.fsync(stream.fileno())
        passing.replace(file)
    finally:
        passing.unlink(missing_ok=True)
    sync_folder(file.parent)


def writer() -> str:
    """This process among those of all machines that may write to a folder: its machine, then its number."""
    return f"{platform.node()}-{os.getpid()}"


def hold(file: BinaryIO) -> bool:
    """Wait until no other process of this machine holds this open file, and hold it until it is closed.

    The system lets go of it also where a process is killed. False: the file system knows no locks.
    """
    try:
        import fcntl
    except ImportError:
        return _hold_on_windows(file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def _hold_on_windows(file: BinaryIO) -> bool:
    msvcrt: Any = import_module("msvcrt")
    while True:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)  # its first byte, and after ten seconds it gives up
            return True
        except OSError as error:
            if error.errno != errno.EDEADLK:
                return False


def drop_leftovers(folder: Path) -> None:
    """Delete what processes that were killed had begun to write here."""
    for passing in folder.glob(".*.partial"):
        if passing.is_file():
            passing.unlink(missing_ok=True)


def own_folder(kind: str) -> Path:
    """Where things are kept on this machine that can be made again."""
    named = os.environ.get("QKV_CACHE", "")
    if named and not os.path.isabs(named):
        raise QkvError(f"QKV_CACHE must be a whole path, not {named!r}, which is another folder wherever you stand.")
    usual = [named, os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("LOCALAPPDATA", "")]
    with suppress(RuntimeError):  # a user without a home
        usual.append(str(Path.home() / ".cache"))
    base = next((each for each in usual if os.path.isabs(each)), None)
    return passing_folder(kind) if base is None else Path(base) / "qkv" / kind


def passing_folder(kind: str) -> Path:
    """The same among passing files, by the user's number: for who has no home, or cannot write there."""
    user = os.geteuid() if hasattr(os, "geteuid") else os.environ.get("USERNAME", "")
    return Path(tempfile.gettempdir()) / f"qkv-{user}" / kind


def write_json(file: Path, value: Any) -> None:
    with replacing(file) as passing:
        passing.write_text(json_text(value), encoding="utf-8", newline="\n")


def json_text(value: Any) -> str:
    """As `write_json` writes it: names of files are legible in it, whatever their bytes are."""
    return _dumps(value, indent=2) + "\n"


def _dumps(value: Any, **style: Any) -> str:
    text = json.dumps(value, allow_nan=False, **style)
    return json.dumps(_legible(json.loads(text)), **style) if HALF.search(text) else text


def _legible(value: Any) -> Any:
    if isinstance(value, dict):
        return {legible(name): _legible(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_legible(each) for each in value]
    return legible(value) if isinstance(value, str) else value


def write_whole(file: Path, content: bytes) -> Path:
    """Write what a person asked for to where they asked for it, making the folder; say what is in the way."""
    file = Path(file)
    if file.is_dir():
        raise QkvError(f"Cannot write {file}: it is a folder; name a file in it.")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as passing:
            passing.write_bytes(content)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise QkvError(f"Cannot write {file}: {reason}; name a file that can be written.") from error
    return file


def is_file(path: Path) -> bool:
    """Says whether there is such a file; where no file can have such a name, as it is too long, there is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def read_bytes(file: Path) -> bytes:
    """All of a file. A pipe or a device is none: there reading may never end."""
    try:
        if not file.is_file() and file.exists():
            raise QkvError(f"{file} should be a file, and is {'a folder' if file.is_dir() else 'something else'}.")
        return file.read_bytes()
    except FileNotFoundError as error:
        raise QkvError(f"The file {file} is missing.") from error
    except ValueError as error:  # no file has such a name
        raise QkvError(f"The file {str(file)!r} cannot be read ({error}).") from error
    except OSError as error:
        raise QkvError(f"The file {file} cannot be read ({error.strerror or error}).") from error


def read_json(file: Path) -> Any:
    return json_of(read_bytes(file), file)


def json_of(content: bytes | str, origin: Path) -> Any:
    """The value that a JSON text tells; what is wrong with another text, in one sentence."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        value = json.loads(text)
        if HALF.search(text):  # without its other half it is no text, and could not be written again
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except RecursionError as error:
        raise QkvError(f"The file {origin} is not JSON to be read here: it nests values too deeply.") from error
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise QkvError(f"The file {origin} is not whole JSON ({error}); it was cut short or edited.") from error


def write_tensors(file: Path, tensors: "Mapping[str, Tensor]", notes: Mapping[str, str] | None = None) -> None:
    """Tensors by name, and short texts beside them that `read_notes` gives back."""
    from safetensors.torch import save_file

    with replacing(file) as passing:
        marked = {**(notes or {}), "format": "pt"}  # the mark that other libraries look for
        save_file(_apart(tensors), passing, metadata=marked)
        passing.chmod(0o666 & ~_umask())  # safetensors shuts others out; a model may be shared like any file


def _apart(tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """On the host, each in memory of its own: safetensors refuses views of one storage, which joined matrices are.

    Only these are copied: what a process has in memory already need not be there twice.
    """
    found: dict[str, Tensor] = {}
    used: set[int] = set()
    for name, tensor in tensors.items():
        host = tensor.detach().cpu().contiguous()
        storage = host.untyped_storage()
        if storage.nbytes() != host.nbytes or storage.data_ptr() in used:
            host = host.clone()
        used.add(host.untyped_storage().data_ptr())
        found[name] = host
    return found


@cache
def _umask() -> int:
    """What this process withholds from others when it makes a file; it can only be read by setting it, so once."""
    withheld = os.umask(0)
    os.umask(withheld)
    return withheld


def read_tensors(file: Path) -> "dict[str, Tensor]":
    from safetensors.torch import load_file

    with _reading_tensors(file):
        try:
            tensors: dict[str, Tensor] = load_file(file)
        except (TypeError, ValueError, OverflowError) as error:  # shapes that torch has no numbers for
            reason = str(error).partition("\n")[0]
            raise QkvError(f"The file {file} is not a whole safetensors file ({reason}).") from error
        return tensors


def read_notes(file: Path) -> dict[str, str]:
    """The texts beside the tensors of a file; the tensors themselves are not read."""
    with opened_tensors(file) as opened:
        return dict(opened.metadata() or {})


@contextmanager
def opened_tensors(file: Path) -> Iterator[Any]:
    """A safetensors file, of whose tensors parts can be read."""
    with _reading_tensors(file), safe_open(file, "pt") as opened:
        yield opened


@contextmanager
def _reading_tensors(file: Path) -> Iterator[None]:
    """What is wrong with a safetensors file, in one sentence."""
    try:
        if not file.is_file() and file.exists():
            kind = "a folder" if file.is_dir() else "no file"
            raise QkvError(f"{file} is {kind}: it should be a safetensors file.")
        with file.open("rb"):  # the system says why it gives none; safetensors calls every such file missing
            pass
        yield
    except FileNotFoundError as error:
        raise QkvError(f"The file {file} is missing.") from error
    except SafetensorError as error:
        raise QkvError(f"The file {file} is not a whole safetensors file ({error}).") from error
    except OSError as error:
        raise QkvError(f"The file {file} cannot be read ({error.strerror or error}).") from error


def checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def checksum_of_json(value: Any) -> str:
    """The same for equal values, whatever the spacing and the order of keys in the file."""
    try:
        return hashlib.sha256(_dumps(value, sort_keys=True).encode()).hexdigest()
    except ValueError as error:
        raise QkvError("There is a number that is none (NaN or infinite), which no file of ours holds.") from error


def sync_folder(folder: Path) -> None:
    """A rename is safe only once the folder that holds the name reached the disk."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows opens no folder, and knows no such wish
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_into(destination: "Mapping[str, Tensor]", tensors: "Mapping[str, Tensor]", origin: Path | str) -> None:
    """Fill tensors in place, so that shared parameters stay shared; names and shapes must agree exactly."""
    import torch

    missing, surplus = destination.keys() - tensors.keys(), tensors.keys() - destination.keys()
    if missing or surplus:
        name = min(missing or surplus)
        side = "lacks" if missing else "holds"
        raise QkvError(f"{origin} {side} the tensor {name}, so it belongs to another model.")
    with torch.no_grad():
        for name, tensor in destination.items():
            if tensor.shape != tensors[name].shape:
                raise QkvError(
                    f"{origin} holds {name} with shape {list(tensors[name].shape)}, "
                    f"but this model has {list(tensor.shape)}."
                )
            if tensor.is_floating_point() != tensors[name].is_floating_point():
                raise QkvError(f"{origin} holds {name} as {tensors[name].dtype}, but this model has {tensor.dtype}.")
            tensor.copy_(tensors[name])
