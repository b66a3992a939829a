"""What the benchmarks share: the same weights on both sides, interleaved timing, medians, a table and a JSON file."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers import MarianConfig, MarianMTModel

from qkv.files import copy_into, write_json
from qkv.models.catalogue import build
from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.parts import cpu
from qkv.weights.maps.marian import MARIAN, RULES
from qkv.weights.rules import to_ours
from qkv.weights.save import tensors_of

RESULTS = Path(__file__).parent / "results"
THREADS = 2
REST = 0.3  # seconds: Intel's OpenMP spins for 0.2
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "mkldnn::_linear", "quantized::linear")
LARGE = 52_000_000  # numbers: more than any cache of the machines at hand keeps to itself


def marian_base(dropout: float = 0.1, vocabulary: int = 58101) -> tuple[MarianMTModel, SequenceToSequence]:
    """The reference library's Marian at its published size with random weights, and ours with the same ones."""
    torch.manual_seed(0)
    end, start = 0, vocabulary - 1
    config = MarianConfig(
        vocab_size=vocabulary,
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        max_position_embeddings=512,
        activation_function="swish",
        scale_embedding=True,
        dropout=dropout,
        pad_token_id=start,
        eos_token_id=end,
        decoder_start_token_id=start,
        forced_eos_token_id=None,
    )
    reference = MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "embed_positions" not in name:
                parameter += 0.02 * torch.randn_like(parameter)
    known = {key: value for key, value in config.to_diff_dict().items() if value is not None}
    ours = build("marian", MARIAN.sizes_of(known)).eval()
    named = tensors_of(ours)
    copy_into(named, to_ours(RULES, reference.state_dict(), named), "the reference")
    return reference, ours


def share_of_products(call: Callable[[], object]) -> float:
    """The part of a call's time on a CPU that goes into matrix products and into steps of our own program.

    Of these the products are nearly all, and cannot be told from the rest.
    """
    own, before = _Timed(), cpu.library
    if own.program is not None:
        cpu.library = lambda: own  # type: ignore[assignment]
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            call()
    finally:
        cpu.library = before
    events = profile.key_averages()
    products = sum(event.self_cpu_time_total for event in events if event.key.startswith(PRODUCTS))
    steps = 1e6 * own.seconds  # the profile is in microseconds
    return float((products + steps) / (sum(event.self_cpu_time_total for event in events) + steps))


class _Timed:
    """Our own program, with a clock beside it."""

    def __init__(self) -> None:
        self.program, self.seconds = cpu.library(), 0.0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self.program, name)

        def timed(*given: Any) -> Any:
            before = time.perf_counter()
            try:
                return function(*given)
            finally:
                self.seconds += time.perf_counter() - before

        return timed


def interleaved(
    peers: Mapping[str, Callable[[], object]], *, seconds: float, at_least: int = 5, at_most: int = 40
) -> dict[str, list[float]]:
    """Seconds of every call. The peers take turns, so that what disturbs the machine disturbs them alike.

    At its turn a peer first waits until the threads of the one before it have gone to sleep, which spin for a while
    after their work, and has a call to itself that is not timed: that is how a library runs where it is alone.
    """
    times: dict[str, list[float]] = {name: [] for name in peers}
    began = time.perf_counter()
    for turn in range(at_most):
        if turn >= at_least and time.perf_counter() - began > seconds:
            break
        for name in sorted(peers, reverse=bool(turn % 2)):
            time.sleep(REST)
            peers[name]()
            before = time.perf_counter()
            peers[name]()
            times[name].append(time.perf_counter() - before)
    return times


def read_bandwidth() -> float:
    """Bytes a second at which all threads together read memory: the best of several sums over a large array."""
    numbers = torch.ones(LARGE)
    times = []
    for _ in range(10):
        before = time.perf_counter()
        numbers.sum()
        times.append(time.perf_counter() - before)
    return 4 * LARGE / min(times)


def machine() -> dict[str, Any]:
    return {
        "processor": processor(),
        "threads": THREADS,
        "precision": "float32",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def ratio(times: Mapping[str, list[float]]) -> float:
    """How many times faster ours is, by the medians."""
    return statistics.median(times["reference"]) / statistics.median(times["qkv"])


def report(name: str, rows: list[dict[str, Any]], remarks: Mapping[str, Any]) -> None:
    """Print the rows as a table and keep them as JSON."""
    RESULTS.mkdir(exist_ok=True)
    write_json(RESULTS / f"{name}.json", {"machine": machine(), **remarks, "rows": rows})
    columns = list(rows[0])
    print(f"\n{json.dumps(machine())}")
    for remark, value in remarks.items():
        print(f"{remark}: {value}")
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(str(row[column]) for column in columns) + " |")
