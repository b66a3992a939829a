"""What this machine's GPU reaches, as `qkv cost` reads it.

    python bench/measure_device_gpu.py

Writes bench/results/device_<name>.json; the profile that comes with qkv is such a file, in src/qkv/train/cost/devices.
"""

from __future__ import annotations

import argparse
import time

import torch
from gpu import RESULTS, machine

from qkv.train.cost.measure import TINY, measure_device
from qkv.train.cost.profile import short_name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)  # on a CPU, to see that it runs
    small = parser.parse_args().small
    if not small:
        machine()  # says at once where there is no GPU
    start = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - start:5.1f} s: {text}", flush=True)

    profile = measure_device(torch.device("cpu" if small else "cuda"), TINY if small else None, say)
    print(
        f"{profile.name}: {len(profile.products)} products, {len(profile.attentions)} attentions, host {profile.host}"
    )
    print(f"Took {time.perf_counter() - start:.1f} s.")
    if not small:
        RESULTS.mkdir(exist_ok=True)
        file = RESULTS / f"device_{short_name(profile.name)}.json"
        profile.save(file)
        print(f"Written to {file}.")


if __name__ == "__main__":
    main()
