"""On a machine without a GPU a command does not import Triton, whose programs are for GPUs.

torch's builds for GPUs bring it along, and import it wherever it lies, to count operations and to compile. Some
versions end every process that imported them with pages of `nanobind: leaked` on standard error. Without it torch does
as its builds for CPUs do.
"""

import logging
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

NAME = "triton"
WARNS = "torch.utils.flop_counter"  # that there is no Triton, whose programs it could not count


class _IfThereIsAGpu(Loader):
    """Asked when Triton is imported, by when torch is there; that it is looked for says nothing yet."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        accelerator = getattr(sys.modules.get("torch"), "accelerator", None)
        if accelerator is not None and not accelerator.is_available():
            raise ModuleNotFoundError("There is no GPU here, so Triton is not imported.", name=NAME)
        spec.loader = self.loader
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == NAME else None
        if spec is not None and spec.loader is not None:
            spec.loader = _IfThereIsAGpu(spec.loader)
        return spec


def keep_triton_apart() -> None:
    """From here on, unless a person wants it interpreted (TRITON_INTERPRET)."""
    if not os.environ.get("TRITON_INTERPRET"):
        sys.meta_path.insert(0, _Finder())
        logging.getLogger(WARNS).setLevel(logging.ERROR)
