"""How soon there is something to use: importing qkv, and the first answer of `qkv run` on a small model.

    python bench/starting.py                  # about a minute
    python bench/starting.py --small          # once each, to see that it runs; writes nothing
    python bench/starting.py --only importing

Every start is a process of its own, and ours and the reference library's take turns. What Python itself takes to start
stands beside them. The model is a GPT-2 of two layers in a published folder, which both open; both go on with the same
text by 8 tokens, on the CPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import report
from same_weights import many_bytes, ours_of

from qkv.files import write_json
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published

SIZES = GPT2Sizes(vocabulary=2048, positions=128, width=64, hidden=256, heads=4, layers=2)
END, TEXT, NEW = "<|endoftext|>", "Once upon a time", 8
REPEATS = 7
PIPELINE = """
import sys
from transformers import pipeline
write = pipeline("text-generation", model=sys.argv[1], device="cpu")
found = write(sys.argv[2], max_new_tokens=int(sys.argv[3]), do_sample=False, return_full_text=False)
print(found[0]["generated_text"])
"""


def commands(folder: Path) -> dict[str, dict[str, list[str]]]:
    """For each case, what is started by whom."""
    python = [sys.executable, "-c"]
    library = [sys.executable, "-m", "qkv", "run", str(folder), TEXT, "--max-tokens", str(NEW), "--device", "cpu"]
    return {
        "importing": {
            "Python alone": [*python, "pass"],
            "qkv": [*python, "import qkv"],
            "reference": [*python, "import transformers"],
        },
        "loader": {
            "Python alone": [*python, "pass"],
            "qkv": [*python, "from qkv import load"],
            "reference": [*python, "from transformers import pipeline"],
        },
        "answer": {
            "Python alone": [*python, "pass"],
            "qkv": library,
            "reference": [*python, PIPELINE, str(folder), TEXT, str(NEW)],
        },
    }


TITLES = {
    "importing": "import qkv; import transformers",
    "loader": "from qkv import load; from transformers import pipeline",
    "answer": f"the first {NEW} tokens: `qkv run`; a pipeline in a script",
}


def write_folder(folder: Path) -> None:
    """A small language model as it is published, with its tokenizer."""
    from peers import Bench
    from torch import device

    model = ours_of("gpt2", SIZES, HeadChoice("language"), Bench(True, device("cpu"), folder))
    tokenizer = many_bytes(SIZES.vocabulary, END)
    end = tokenizer.id_of(END)
    save_published(model, folder, PUBLISHED, {"bos_token_id": end, "eos_token_id": end})
    tokenizer.save(folder / "tokenizer.json")
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "GPT2TokenizerFast", **special})


def seconds(command: list[str]) -> tuple[float, str]:
    """Of a process from its start to its end, and what it said."""
    quiet = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=quiet, check=False)
    took = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} failed: {done.stderr[-500:]}")
    return took, done.stdout.strip()


def compared(case: str, starts: dict[str, list[str]], repeats: int) -> dict[str, Any]:
    said = {name: seconds(command)[1] for name, command in starts.items()}  # files are in memory after this
    times: dict[str, list[float]] = {name: [] for name in starts}
    for turn in range(repeats):
        for name in sorted(starts, reverse=bool(turn % 2)):
            times[name].append(seconds(starts[name])[0])
    middle = {name: statistics.median(some) for name, some in times.items()}
    row: dict[str, Any] = {"case": TITLES[case]}
    row |= {f"{name}, s": round(middle[name], 3) for name in starts}
    row |= {"times quicker": round(middle["reference"] / middle["qkv"], 2), "repeats": repeats}
    return row | {"same text": (said["qkv"] == said["reference"]) if case == "answer" else ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="once each, to see that it runs; nothing is written")
    parser.add_argument("--only", action="append", choices=list(TITLES), help="this case alone; may be said again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "gpt2"
        write_folder(place)
        chosen = {case: starts for case, starts in commands(place).items() if case in (given.only or TITLES)}
        rows = [compared(case, starts, 1 if given.small else REPEATS) for case, starts in chosen.items()]
    if given.small:
        print(*rows, sep="\n")
    else:
        report("starting", rows, {"model": f"GPT-2 of {SIZES.layers} layers of {SIZES.width}", "processes": "fresh"})


if __name__ == "__main__":
    main()
