"""Every precision at every level of processor that this machine has, and below, with our own program and without.

A level is simulated: for our program by its own variable, for torch by torch's. A processor that has no more than AVX2
is also emulated as a whole, where the emulator is installed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.errors import QkvError
from qkv.parts import cpu
from qkv.parts.cpu_level import has_vnni, options
from qkv.parts.cpu_maps import onednn_takes

ROOT = Path(__file__).parents[2]
TORCH = ("QKV_CPU_LEVEL", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
LEVELS = {  # as each of these calls them
    "as it is": None,
    "avx512": ("avx512", "avx512", "AVX512_CORE"),
    "avx2": ("avx2", "avx2", "AVX2"),
    "plain": ("plain", "default", "SSE41"),
}
# As a share of the answer, where rounding alone gives up to two thirds of it. In 8 bits inputs have all of these at
# every level: with one bit less each of them is half as large again.
ALLOWED = {
    "gpt2": {"float32": 1e-6, "bfloat16": 0.012, "int8": 0.0165},
    "bert": {"float32": 1e-6, "bfloat16": 0.012, "int8": 0.0155},
    "t5": {"float32": 1e-6, "bfloat16": 0.015, "int8": 0.0255},
    "vit": {"float32": 1e-6, "bfloat16": 0.008, "int8": 0.0035},
}


def has(level: str) -> bool:
    known = {"avx512": torch.cpu._is_avx512_supported, "avx2": torch.cpu._is_avx2_supported}
    return level not in known or known[level]()


def has_all(told: str) -> bool:
    """Whether this processor has what a compiler was told of."""
    needs = {"-march=x86-64-v4": "avx512vl", "-march=x86-64-v3": "avx2", "-mavxvnni": "avx_vnni"}
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split() if Path("/proc/cpuinfo").exists() else []
    return all(needs.get(each, "") in ("", *flags) for each in told.split())


def answers(level: str, *, compiler: bool, emulated: tuple[str, ...] = ()) -> dict[str, Any]:
    """Of a process at a level."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    if (names := LEVELS[level]) is not None:
        environment |= dict(zip(TORCH, names, strict=True))
    if not compiler:
        environment["CXX"] = "no-such-compiler"
    command = [*emulated, sys.executable, "-m", "tests.parts.at_level"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(found: dict[str, Any]) -> None:
    for model, of_precision in ALLOWED.items():
        for precision, allowed in of_precision.items():
            assert found["errors"][model][precision] <= allowed, (model, precision, found)
    assert len(found["told"]) == len(set(found["told"]))  # once


CASES = [
    pytest.param(level, compiler, marks=() if level == "avx2" else pytest.mark.slow)
    for level in LEVELS
    for compiler in (True, False)
]


@pytest.mark.parametrize(("level", "compiler"), CASES)
def test_every_precision_at_every_level(level: str, compiler: bool) -> None:
    if not has(level):
        pytest.skip("this processor has less")
    if compiler and cpu.library() is None:
        pytest.skip("needs a C++ compiler that knows OpenMP")
    found = answers(level, compiler=compiler)
    check(found)
    in_8_bits = next(each for each in found["told"] if each.startswith("In 8 bits"))
    in_bfloat16 = next(each for each in found["told"] if each.startswith("In bfloat16"))
    if compiler:
        assert "our own program for" in in_8_bits
        assert "quicker" not in in_8_bits
    else:
        assert "a C++ compiler makes it quicker" in in_8_bits
    if level in ("avx2", "plain"):
        way = "our own program" if compiler else "widened piece by piece"
        assert "does not multiply by itself" in in_bfloat16
        assert way in in_bfloat16


@pytest.mark.slow
def test_on_a_whole_processor_that_has_no_more() -> None:
    """The kernels of torch's that ask the processor alone are those of such a one."""
    emulator = shutil.which("qemu-x86_64")
    if emulator is None:
        pytest.skip("needs qemu-user")
    check(answers("as it is", compiler=False, emulated=(emulator, "-cpu", "Haswell")))


COMPILED = [
    ("clang++", "-march=native", ""),
    ("clang++", "-march=x86-64-v3", "qemu-x86_64 -cpu max"),
    ("g++", "-march=x86-64-v4", "qemu-x86_64 -cpu max"),
    ("g++", "-march=x86-64-v3 -mavxvnni", "qemu-x86_64 -cpu max"),
    ("g++", "-march=x86-64", "qemu-x86_64 -cpu max"),
    ("aarch64-linux-gnu-g++", "", "qemu-aarch64 -cpu max"),
    ("aarch64-linux-gnu-g++", "-march=armv8.2-a+dotprod", "qemu-aarch64 -cpu max"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("compiler", "told", "emulator"), COMPILED)
def test_the_compiled_program_is_right_by_any_compiler(compiler: str, told: str, emulator: str, tmp_path: Path) -> None:
    """Beside plain loops in C++, where no torch runs."""
    runs = emulator.split() if compiler.startswith("aarch64") or not has_all(told) else []
    for tool in (compiler, *runs[:1]):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    common = [compiler, "-std=c++17", "-fopenmp", *(["-static"] if compiler.startswith("aarch64") else [])]
    empty, made = tmp_path / "empty.cpp", tmp_path / "made"
    empty.write_text("#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }\n", encoding="utf-8")
    if subprocess.run([*common, empty, "-o", made], capture_output=True, check=False).returncode:
        pytest.skip(f"needs a {compiler} that knows OpenMP")
    options = ["-O3", "-fno-math-errno", "-fno-exceptions", *told.split()]
    subprocess.run([*common, *options, Path(__file__).with_name("cpu_check.cpp"), "-o", made], check=True)
    done = subprocess.run([*runs, made], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    wanted = {"v4": "AVX-512", "v3": "AVX2", "vnni": "VNNI", "dotprod": "dot products"}
    assert all(named in done.stdout for ending, named in wanted.items() if told.endswith(ending))


def test_a_level_says_what_a_compiler_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QKV_CPU_LEVEL", raising=False)
    assert options() == ("-march=native",)
    monkeypatch.setenv("QKV_CPU_LEVEL", "avx2")
    assert options() == ("-march=x86-64-v3",)
    assert not has_vnni()
    monkeypatch.setenv("QKV_CPU_LEVEL", "avx")
    with pytest.raises(QkvError, match=r"QKV_CPU_LEVEL is 'avx': did you mean avx2\?"):
        options()


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
@pytest.mark.filterwarnings("ignore")  # what is made here is no program
def test_a_program_is_kept_by_its_level(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler, log = tmp_path / "compiler", tmp_path / "log"
    writes = 'while [ "$1" != -o ] && [ $# -gt 1 ]; do shift; done; [ $# -gt 1 ] && echo no > "$2"'
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {log}\n{writes}\n', encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "kept"))
    for level in ("avx2", "plain", "avx2"):
        monkeypatch.setenv("QKV_CPU_LEVEL", level)
        cpu.library.__wrapped__()
    made = [line for line in log.read_text(encoding="utf-8").splitlines() if "cpu_steps.cpp" in line]
    assert len(made) == 2
    assert "-march=x86-64-v3" in made[0]
    assert "-march" not in made[1]


def test_what_onednn_would_refuse_is_not_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for supported in (True, False):
        onednn_takes.cache_clear()
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda supported=supported: supported)
        assert onednn_takes(torch.bfloat16) == (supported and torch.backends.mkldnn.is_available())
        assert onednn_takes(torch.float32) == torch.backends.mkldnn.is_available()
        assert not onednn_takes(torch.float64)
    onednn_takes.cache_clear()
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not onednn_takes(torch.float32)
    onednn_takes.cache_clear()
