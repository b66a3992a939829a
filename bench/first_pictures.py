"""The bare picture command on little data: `qkv train images`, nothing but --data, --out and --minutes 3.

    python -m tools.fetch_data --only mnist --only cifar-10
    python bench/first_pictures.py --corpora corpora   # about a quarter of an hour on two quiet cores
    python bench/first_pictures.py --only digits
    python bench/first_pictures.py --small             # a few updates on the digits; writes nothing

Each set becomes a folder of PNG files for each class, as a person has pictures. All that was held out is named by
`qkv run`; what scikit-learn makes of the same pixels stands beside it: as it comes, with the better of two penalties
for the support vector machine and of two numbers of neighbours. It takes no augmentation and no three minutes. Sets
that are not in corpora/ are left out, and then nothing is written.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import report
from numpy.typing import NDArray
from PIL import Image

from qkv.data.image_sets import is_image_set, read_image_set

MINUTES = 3.0
TRAINED_ON = 2_000  # pictures of the larger sets
HELD_OUT = 360  # digits
PENALTIES = (1.0, 10.0)  # of a support vector machine
PART = 1_000  # pictures that are named by one command


class Pictures(NamedTuple):
    """8 bits a channel [n h w] or [n h w c], and the number of each one's class."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]


class Set(NamedTuple):
    title: str
    wanted: str  # what was asked for
    read: Callable[[Path], tuple[Pictures, Pictures]]  # to train on, held out


def digits(_: Path) -> tuple[Pictures, Pictures]:
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    pixels = np.rint(found.images * (255 / 16)).astype(np.uint8)
    held, rest = order[:HELD_OUT], order[HELD_OUT:]
    return Pictures(pixels[rest], found.target[rest]), Pictures(pixels[held], found.target[held])


def published(name: str) -> Callable[[Path], tuple[Pictures, Pictures]]:
    def read(corpora: Path) -> tuple[Pictures, Pictures]:
        train, test = (read_image_set(corpora / name, part) for part in ("train", "test"))
        return Pictures(train.pixels[:TRAINED_ON], train.labels[:TRAINED_ON]), Pictures(test.pixels, test.labels)

    return read


SETS = {
    "digits": Set("scikit-learn's digits, 8 × 8", "98%", digits),
    "mnist": Set("MNIST, 28 × 28", "96.5%", published("mnist")),
    "cifar-10": Set("CIFAR-10, 32 × 32 in colours", "the best of the others", published("cifar-10")),
}


def written(pictures: Pictures, folder: Path) -> list[Path]:
    """A folder for each class; the files in the order of the pictures."""
    files = []
    for number, (pixels, label) in enumerate(zip(pictures.pixels, pictures.labels, strict=True)):
        file = folder / str(label) / f"{number:05}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
        files.append(file)
    return files


def ours(train: Pictures, held: Pictures, budget: list[str]) -> dict[str, Any]:
    """What the commands reach, and in how many updates."""
    with tempfile.TemporaryDirectory() as place:
        folder, run = Path(place), Path(place) / "run"
        written(train, folder / "train")
        files = written(held, folder / "held")
        qkv("train", "images", "--data", folder / "train", "--out", run, *budget)
        said: list[str] = []
        for first in range(0, len(files), PART):
            names = folder / "names.txt"
            names.write_text("".join(f"{file}\n" for file in files[first : first + PART]), encoding="utf-8")
            said += [line.partition("\t")[0] for line in qkv("run", run, "--input", names).splitlines()]
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    right = sum(name == str(label) for name, label in zip(said, held.labels, strict=True))
    (final,) = [record for record in records if record["kind"] == "final"]
    return {
        "qkv": percent(right / len(held.labels)),
        "updates": final["step"],
        "seconds": round(final["seconds"]),
        "as the run itself told": percent(final["figures"]["accuracy"]),
        "its linear probe": percent(final["figures"]["linear_probe"]),
    }


def qkv(*arguments: str | Path) -> str:
    done = subprocess.run([sys.executable, "-m", "qkv", *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"qkv {' '.join(map(str, arguments[:2]))} failed.")
    return done.stdout


def others(train: Pictures, held: Pictures) -> dict[str, Any]:
    """What is made of pixels from 0 to 1, as rows of numbers, by whom."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC

    known, asked = (each.pixels.reshape(len(each.pixels), -1) / 255 for each in (train, held))

    def score(model: Any) -> float:
        return float(model.fit(known, train.labels).score(asked, held.labels))

    return {
        "logistic regression": percent(score(LogisticRegression(max_iter=1000))),
        "RBF support vector machine": percent(max(score(SVC(C=penalty)) for penalty in PENALTIES)),
        "nearest neighbours": percent(max(score(KNeighborsClassifier(count)) for count in (1, 5))),
    }


def percent(share: float) -> str:
    return f"{share:.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, default=Path("corpora"), help="folder that tools.fetch_data filled")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--only", action="append", choices=SETS, help="this set alone; may be said again")
    parser.add_argument("--small", action="store_true", help="a few updates on the digits; nothing is written")
    given = parser.parse_args()
    budget = ["--steps", "3"] if given.small else ["--minutes", f"{given.minutes:g}"]
    rows = []
    chosen = ["digits"] if given.small else given.only or list(SETS)
    for name in chosen:
        if name != "digits" and not is_image_set(given.corpora / name):
            print(f"{name} is not in {given.corpora}: python -m tools.fetch_data --only {name}")
            continue
        train, held = SETS[name].read(given.corpora)
        row = {"pictures": SETS[name].title, "to train on": len(train.labels), "held out": len(held.labels)}
        rows.append({**row, **ours(train, held, budget), "asked for": SETS[name].wanted, **others(train, held)})
        print(rows[-1], flush=True)
    if not given.small and len(rows) == len(SETS):
        report("first_pictures", rows, {"minutes": given.minutes})


if __name__ == "__main__":
    main()
