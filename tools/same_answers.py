"""Whether a refactoring changes no number, by small trainings and what is asked of them, on one thread of a CPU.

python -m tools.same_answers --write before.json     # before it; a minute or two
python -m tools.same_answers --compare before.json   # after it: a table, and exit code 1 where anything differs

What is kept is what must not change, to the last digit: all numbers that the history of a training holds, but those of
clocks and memory; the contents of all tensors it leaves, its checkpoint and the state of its optimizer among them; and
what commands answer. Names of options, files, tensors and numbers are not kept: where one changes, `COMMANDS` or a
constant below it is told. Numbers are compared on one machine: other processors and versions of torch round otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from safetensors import deserialize

from tools.gpu_verify.materials import write_materials
from tools.gpu_verify.working import failure, ran

TRAIN = "--steps 6 --seed 1 --device cpu --out {work}/"
TEXTS = "--data {work}/data/texts.txt --blank-lines "
FOX = "'the red fox sees a cold stone .' "
PICTURE, SOUND = "{work}/data/pictures/red/00000.png ", "{work}/data/sounds/low/00.wav "
SMALL_SPEECH = "--size width=32,hidden=64,heads=2,layers=1,position_groups=2,position_kernel=8 "
FLOAT, BRAIN, BYTES = (f"--json --device cpu --precision {each}" for each in ("float32", "bfloat16", "int8"))

# By a name that stays: what stands behind `qkv`, in this order. What a training leaves is in the folder of --out.
COMMANDS = {
    "train lm": "train lm " + TEXTS + TRAIN + "lm",
    "train mlm": "train mlm " + TEXTS + TRAIN + "mlm",
    "train classify": "train classify --model {work}/mlm --data {work}/data/labels.tsv " + TRAIN + "classify",
    "train text-to-text":
        "train text-to-text --data {work}/data/turned.tsv --source source --target target " + TRAIN + "turned",
    "train images": "train images --data {work}/data/pictures " + TRAIN + "images",
    "train sounds": "train sounds --data {work}/data/sounds " + TRAIN + "sounds",
    "train speech": "train speech --data {work}/data/said.tsv " + SMALL_SPEECH + TRAIN + "speech",
    "run lm": "run {work}/lm 'the red fox' 'the small owl' --log-probs " + FLOAT,
    "run lm, bfloat16": "run {work}/lm 'the red fox' 'the small owl' --log-probs " + BRAIN,
    "run lm, int8": "run {work}/lm 'the red fox' 'the small owl' --log-probs " + BYTES,
    "run lm, drawn": "run {work}/lm 'the red fox' --temperature 1 --seed 1 " + FLOAT,
    "run mlm": "run {work}/mlm 'the red <mask> sees a cold stone .' " + FLOAT,
    "run classify": "run {work}/classify " + FOX + FLOAT,
    "run classify, bfloat16": "run {work}/classify " + FOX + BRAIN,
    "run classify, int8": "run {work}/classify " + FOX + BYTES,
    "run text-to-text": "run {work}/turned --n-best 2 " + FOX + FLOAT,
    "run images": "run {work}/images " + PICTURE + FLOAT,
    "run images, bfloat16": "run {work}/images " + PICTURE + BRAIN,
    "run images, int8": "run {work}/images " + PICTURE + BYTES,
    "run sounds": "run {work}/sounds " + SOUND + FLOAT,
    "run speech": "run {work}/speech " + SOUND + FLOAT,
    "look lm": "look {work}/lm " + FOX + "--device cpu --html {work}/lm.html",
    "look text-to-text": "look {work}/turned " + FOX + "--device cpu --html {work}/turned.html",
    "look images": "look {work}/images " + PICTURE + "--device cpu --html {work}/images.html",
    "compare":
        "compare " + TEXTS + "--variant dense --variant window:8 --budget 2steps --length 64 --device cpu "
        "--out {work}/compared",
}  # fmt: skip
HISTORY, COMPARED = "metrics.jsonl", "compare.json"  # files of a training and of a comparison
MEASURED = re.compile("second|wait|memory")  # in the name of a number: another one each time
DRAWN = re.compile(r'(?:"weights":"|base64,)([\w+/=]+)"', re.ASCII)  # attention on a page: of each head, or as pictures
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
LONGEST = 1800.0  # seconds for one command
PICTURES = 48
AROUND = 40  # letters that are shown of a difference

KINDS = ("losses", "tensors", "answers")
EXPECTED = {"train": ("losses", "tensors"), "run": ("answers",), "look": ("answers",), "compare": KINDS}
Answer = dict[str, list[str]]  # of one command, by kind
Answers = dict[str, Answer]  # by the name of the command


class CommandError(Exception):
    """A command that failed, or that left nothing to compare."""


# ------------------------------------------------------------------------------------------------- what is kept


def answers_of_all(work: Path) -> Answers:
    write_materials(work / "data", PICTURES)
    return {name: answer_of(line, work) for name, line in COMMANDS.items()}


def answer_of(line: str, work: Path) -> Answer:
    words = [word.format(work=work) for word in shlex.split(line)]
    command = f"qkv {shlex.join(words)}"
    print(command, file=sys.stderr)
    ended = ran([sys.executable, "-m", "qkv", *words], LONGEST)
    if ended.code:
        raise CommandError(f"{command} ended with {ended.code}: {failure(ended)}")
    if "--out" in words:
        answer = left_in(Path(words[words.index("--out") + 1]))
    elif "--html" in words:
        page = Path(words[words.index("--html") + 1]).read_text(encoding="utf-8")
        answer = {"answers": [digest(each.encode()) for each in DRAWN.findall(page)]}
    else:
        answer = {"answers": ended.out.replace(str(work), "…").splitlines()}
    missing = [kind for kind in EXPECTED[words[0]] if not answer.get(kind)]
    if missing:
        raise CommandError(f"{command} left nothing to compare ({', '.join(missing)}).")
    return answer


def left_in(folder: Path) -> Answer:
    """By one training, or by those of a comparison."""
    lines = [line for file in sorted(folder.rglob(HISTORY)) for line in file.read_text(encoding="utf-8").splitlines()]
    compared = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob(COMPARED)]
    return {
        "losses": [*numbers([json.loads(line) for line in lines])],
        "tensors": sorted(tensors(folder.rglob("*.safetensors"))),
        "answers": [*numbers(compared)],
    }


def numbers(value: Any) -> Iterator[str]:
    """All that JSON holds, in their order, but what is measured; each is written so that no other is written so."""
    if isinstance(value, dict):
        for name, each in value.items():
            if not MEASURED.search(name):
                yield from numbers(each)
    elif isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield repr(value)


def tensors(files: Iterable[Path]) -> Iterator[str]:
    """What each holds, whatever it is called and wherever it lies."""
    for file in files:
        for _, tensor in deserialize(file.read_bytes()):
            yield digest(f"{tensor['dtype']} {tensor['shape']} ".encode() + tensor["data"])


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# ------------------------------------------------------------------------------------------------- comparing


def table(before: Answers, now: Answers) -> str:
    """In markdown, with the first differences below."""
    rows, told = ["| command | losses | tensors | answers | equal? |", "|---|---|---|---|---|"], []
    for name in {**before, **now}:
        one, other = before.get(name, {}), now.get(name, {})
        pairs = {kind: (one.get(kind, []), other.get(kind, [])) for kind in KINDS}
        cells = [cell(kind, *pair) for kind, pair in pairs.items()]
        rows.append(f"| {' | '.join([name, *cells, 'yes' if one == other else 'no'])} |")
        told += [
            f"- {name}, {kind}: {first_difference(*pair)}"
            for kind, pair in pairs.items()
            if kind != "tensors" and pair[0] != pair[1]  # the hash of a tensor tells nobody anything
        ]
    return "\n".join([*rows, "", *told] if told else rows)


def cell(kind: str, before: Sequence[str], now: Sequence[str]) -> str:
    """How many are equal of how many: tensors wherever they are, all else in its place."""
    most = max(len(before), len(now))
    if kind == "tensors":
        equal = (Counter(before) & Counter(now)).total()
    else:
        equal = sum(one == other for one, other in zip(before, now, strict=False))
    return "–" if not most else str(most) if equal == most else f"{equal} of {most}"


def first_difference(before: Sequence[str], now: Sequence[str]) -> str:
    pairs = [*zip_longest(before, now)]
    place = next(place for place, (one, other) in enumerate(pairs) if one != other)
    one, other = pairs[place]
    if one is None or other is None:
        return f"{len(before)} before, {len(now)} now, the first {place} equal"
    letters = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    shown = slice(max(0, letters - AROUND), letters + AROUND)
    return f"number {place + 1} of {len(before)} was `{one[shown]}`, now `{other[shown]}`"


# ------------------------------------------------------------------------------------------------- the command


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    before = None if options.compare is None else json.loads(options.compare.read_text(encoding="utf-8"))
    os.environ.update(ONE_THREAD)
    with tempfile.TemporaryDirectory() as work:
        try:
            answers = answers_of_all(Path(work).resolve())
        except CommandError as error:
            print(f"same-answers: {error}", file=sys.stderr)
            return 2
    machine = f"torch {torch.__version__}, {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    if options.write is not None:
        written = json.dumps({"machine": machine, "commands": answers}, indent=1, ensure_ascii=False)
        options.write.write_text(written + "\n", encoding="utf-8")
    if before is None:
        return 0
    if before["machine"] != machine:
        print(f"Written with {before['machine']}, compared with {machine}: that alone may differ.", file=sys.stderr)
    print(table(before["commands"], answers))
    return int(before["commands"] != answers)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="same-answers", description=__doc__.splitlines()[0] if __doc__ else None)
    wanted = made.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--write", type=Path, metavar="FILE", help="what the commands answer, as JSON")
    wanted.add_argument("--compare", type=Path, metavar="FILE", help="what was written before")
    return made


if __name__ == "__main__":
    sys.exit(main())
