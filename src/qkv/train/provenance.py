"""Where a result came from: versions, hardware, the state of the source, the command."""

import hashlib
import os
import platform
import sys
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qkv.files import checksum
from qkv.parts.device import device_name
from qkv.train.commit import git_commit
from qkv.train.origin import current_origin

PACKAGES = ("qkv", "torch", "numpy", "safetensors", "tokenizers", "sacrebleu")


def provenance(device: torch.device, weights: str | None = None, ranks: str = "") -> dict[str, Any]:
    """What someone would need to know to repeat this session: the weights it begins with, how ranks share the work."""
    here = Path.cwd()
    return {
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "command": sys.argv,
        **current_origin().record(),
        "directory": str(here),
        **({} if weights is None else {"weights_at_start": weights}),
        **({"ranks": ranks} if ranks else {}),
        "versions": {"python": platform.python_version(), **_versions()},
        "hardware": {
            "host": platform.node(),
            "system": platform.platform(),
            "threads": torch.get_num_threads(),
            "device": device_name(device),
            **_of_device(device),
        },
        "source": source_fingerprint(),
        "git_commit": git_commit(Path(__file__).parent),
        "git_commit_of_directory": git_commit(here),
    }


def _of_device(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"processor": _processor(), "cores": os.cpu_count()}
    properties = torch.cuda.get_device_properties(device)
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory": properties.total_memory,
        "devices": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _processor() -> str:
    """As its maker calls it, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def fingerprint_of_weights(model: nn.Module) -> str:
    """A short name for these very numbers, by their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        numbers = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        digest.update(numbers.data if numbers.size else b"")
    return digest.hexdigest()[:16]


@cache
def source_fingerprint() -> str:
    """A short name for the files of this package, which says more than a commit: they may have been changed since."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(package.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(package).as_posix()} {checksum(file)}\n".encode())
    return digest.hexdigest()[:16]


def describe(part: Any) -> Any:
    """A part as JSON, well enough to notice that a run is resumed with another one."""
    if isinstance(part, torch.optim.Optimizer):
        groups = [
            {**{key: _plain(value) for key, value in group.items() if key not in ("params", "lr", "fused", "foreach")},
             "initial_lr": group.get("initial_lr", group["lr"]), "parameters": len(group["params"])}
            for group in part.param_groups
        ]  # fmt: skip
        return {"name": type(part).__name__, "groups": groups}
    if is_dataclass(part) and not isinstance(part, type):
        return {"name": type(part).__name__, **{each.name: _plain(getattr(part, each.name)) for each in fields(part)}}
    if isinstance(part, nn.Module):
        return {"name": type(part).__name__, "parameters": sum(each.numel() for each in part.parameters())}
    if hasattr(part, "settings"):
        return {"name": type(part).__name__, **{name: _plain(value) for name, value in part.settings().items()}}
    return {"name": getattr(part, "__qualname__", type(part).__qualname__)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if (is_dataclass(value) and not isinstance(value, type)) or isinstance(value, nn.Module):
        return describe(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
