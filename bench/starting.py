"""How soon there is something to use: importing qkv, and the first answer of `qkv run` on small models.

    python bench/starting.py                  # about two minutes
    python bench/starting.py --small          # once each, to see that it runs; writes nothing
    python bench/starting.py --only writing

Every start is a process of its own, and ours and the reference library's take turns, with all files in memory. What
Python and torch take alone stands beside them. The models are of two layers in published folders, which both open; both
give the same answer on the CPU. An answer is timed to where it is read, and again to where its process has ended. The
reference library starts as quickly as it can: what it imports only where it finds it is hidden from it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from common import report
from same_weights import many_bytes, ours_of

from qkv.api.choices import NewTokenizer
from qkv.api.loading import use_of
from qkv.data.reading_tokenizer import for_reading
from qkv.files import write_json
from qkv.models.bert import BertSizes
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.weights.export import export
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published

SIZES = GPT2Sizes(vocabulary=2048, positions=128, width=64, hidden=256, heads=4, layers=2)
END, TEXT, NEW = "<|endoftext|>", "Once upon a time", 8
TELLING = "once upon a time there was a small model that gave its first answer"
REPEATS = 7
NOT_NEEDED = ("scipy", "sklearn", "pandas", "accelerate", "librosa", "torchvision", "torchaudio")
QKV = "import sys; from qkv.cli.main import main; sys.exit(main())"  # as the installed command has it
LEAN = f"import sys; sys.modules.update(dict.fromkeys({NOT_NEEDED}))\n"
OPENED = "from transformers import pipeline\nopened = pipeline(sys.argv[1], model=sys.argv[2], device='cpu')\n"
WROTE = "found = opened(sys.argv[3], max_new_tokens=int(sys.argv[4]), do_sample=False, return_full_text=False)\n"


class Start(NamedTuple):
    """What is started by both, and whether it says anything."""

    title: str
    ours: list[str]
    reference: list[str]
    answers: bool = False


def starts(folder: Path) -> dict[str, Start]:
    """Every case by its name."""
    python = [sys.executable, "-c"]
    run = [*python, QKV, "run"]
    gpt2, masked, classifier = (str(folder / name) for name in ("gpt2", "masked", "classifier"))
    gap = TELLING.replace("small", "<mask>")
    write = LEAN + OPENED + WROTE + "print(found[0]['generated_text'], flush=True)"
    fill = LEAN + OPENED + "print(opened(sys.argv[3])[0]['token_str'], flush=True)"
    classify = LEAN + OPENED + "print(opened(sys.argv[3])[0]['label'], flush=True)"
    return {
        "importing": Start(
            "import qkv; import transformers", [*python, "import qkv"], [*python, LEAN + "import transformers"]
        ),
        "loader": Start(
            "from qkv import load; from transformers import pipeline",
            [*python, "from qkv import load"],
            [*python, LEAN + "from transformers import pipeline"],
        ),
        "writing": Start(
            f"GPT-2 writes its first {NEW} tokens: `qkv run`; a pipeline in a script",
            [*run, gpt2, TEXT, "--max-tokens", str(NEW), "--device", "cpu"],
            [*python, write, "text-generation", gpt2, TEXT, str(NEW)],
            answers=True,
        ),
        "filling": Start(
            "BERT fills a gap: `qkv run`; a pipeline in a script",
            [*run, masked, gap, "--json", "--device", "cpu"],
            [*python, fill, "fill-mask", masked, gap],
            answers=True,
        ),
        "classifying": Start(
            "BERT classifies a text: `qkv run`; a pipeline in a script",
            [*run, classifier, TELLING, "--json", "--device", "cpu"],
            [*python, classify, "text-classification", classifier, TELLING],
            answers=True,
        ),
    }


CASES = tuple(starts(Path()))


def write_folders(folder: Path) -> None:
    """Small models as they are published, with their tokenizers."""
    from peers import Bench
    from torch import device

    bench = Bench(True, device("cpu"), folder)
    model = ours_of("gpt2", SIZES, HeadChoice("language"), bench)
    tokenizer = many_bytes(SIZES.vocabulary, END)
    end = tokenizer.id_of(END)
    save_published(model, folder / "gpt2", PUBLISHED, {"bos_token_id": end, "eos_token_id": end})
    tokenizer.save(folder / "gpt2" / "tokenizer.json")
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END)
    write_json(folder / "gpt2" / "tokenizer_config.json", {"tokenizer_class": "GPT2TokenizerFast", **special})
    words = for_reading(NewTokenizer("wordpiece", 200, lowercase=True).train([TELLING]))
    sizes = BertSizes(vocabulary=words.size, positions=128, width=64, hidden=256, heads=4, layers=2)
    for name, head in (
        ("masked", HeadChoice("masked")),
        ("classifier", HeadChoice("classification", labels=("bad", "good"))),
    ):
        use_of(ours_of("bert", sizes, head, bench), words).save(folder / f"own-{name}")
        export(folder / f"own-{name}", folder / name)


class Took(NamedTuple):
    """Seconds of a process, from its start to its first words and to its end, and all that it said."""

    answer: float
    end: float
    said: str


def started(command: list[str]) -> Took:
    quiet = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # ours is compiled once too, as pip does it with all that it installs
    }
    with tempfile.TemporaryFile() as complaints:
        began = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, env=quiet) as process:
            assert process.stdout is not None
            first = os.read(process.stdout.fileno(), 1 << 16)
            answer = time.perf_counter() - began
            said = first + process.stdout.read()
        end = time.perf_counter() - began
        if process.returncode:
            complaints.seek(0)
            raise SystemExit(f"{' '.join(command[:4])} failed: {complaints.read()[-500:].decode()}")
    return Took(answer, end, said.decode().strip())


def compared(case: str, start: Start, repeats: int) -> dict[str, Any]:
    python = [sys.executable, "-c"]
    commands = {
        "Python alone": [*python, "pass"],
        "torch alone": [*python, "import torch; print(flush=True)"],
        "qkv": start.ours,
        "reference": start.reference,
    }
    said = {name: started(command).said for name, command in commands.items()}  # files are in memory after this
    times: dict[str, list[Took]] = {name: [] for name in commands}
    for turn in range(repeats):
        for name in sorted(commands, reverse=bool(turn % 2)):
            times[name].append(started(commands[name]))
    answer = {name: statistics.median(each.answer for each in some) for name, some in times.items()}
    end = {name: statistics.median(each.end for each in some) for name, some in times.items()}
    row: dict[str, Any] = {"case": start.title}
    row |= {f"{name}, s": round(answer[name], 3) for name in commands}
    row |= {"times quicker": round(answer["reference"] / answer["qkv"], 2)}
    row |= {"to the end, qkv, s": round(end["qkv"], 3), "to the end, reference, s": round(end["reference"], 3)}
    row |= {"times quicker to the end": round(end["reference"] / end["qkv"], 2), "repeats": repeats}
    return row | {"same answer": same(case, said["qkv"], said["reference"]) if start.answers else ""}


def same(case: str, ours: str, reference: str) -> bool:
    """Whether both said the same: a text alone, or the word or the label in our JSON."""
    if case == "writing":
        return ours == reference
    told = json.loads(ours)
    return reference == (told["label"] if case == "classifying" else told["fillings"][0]["token"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="once each, to see that it runs; nothing is written")
    parser.add_argument("--only", action="append", choices=CASES, help="this case alone; may be said again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_folders(Path(folder))
        chosen = {case: start for case, start in starts(Path(folder)).items() if case in (given.only or CASES)}
        rows = [compared(case, start, 1 if given.small else REPEATS) for case, start in chosen.items()]
    if given.small:
        print(*rows, sep="\n")
    else:
        notes = {"models": f"{SIZES.layers} layers of {SIZES.width}", "processes": "fresh", "hidden": list(NOT_NEEDED)}
        report("starting", rows, notes)


if __name__ == "__main__":
    main()
