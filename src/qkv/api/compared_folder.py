"""The folders of a comparison: what was written there before, and whether it belongs to this one."""

from pathlib import Path
from typing import Any

from qkv.api.runs import no_model
from qkv.errors import QkvError
from qkv.files import write_json
from qkv.train.run_folder import RunFolder


def must_agree(before: Any, now: dict[str, Any], place: Path) -> None:
    """A run that was made otherwise is never shown as one of these."""
    if before == now:
        return
    old, new = (flattened(each) if isinstance(each, dict) else {} for each in (before, now))
    changed = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    told = "; ".join(f"{name} was {old.get(name)}, now {new.get(name)}" for name in changed[:3])
    raise QkvError(
        f"{place} was made otherwise ({told}): name another folder (--out) or variant, or begin anew (--overwrite)."
    )


def write_into(folder: Path, name: str, value: Any) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / name, value)
    except OSError as error:
        raise QkvError(f"The folder {folder} cannot be written ({error.strerror}): name another.") from error


def flattened(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flattened(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def records_of(place: Path) -> list[dict[str, Any]]:
    return RunFolder(place, save_model=no_model, resume=True).records() if (place / "run.json").exists() else []
