"""Write the results page of long texts from the folder of its comparisons.

    python recipes/compare_report.py runs/long-text

Copies what the page states (each `compare.json`, `refused.json`) to docs/results/long-text/ and writes the page and its
plots beside it. Without a folder the page is written anew from what was copied before.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pages import RESULTS

from qkv.api.comparison import FILE, Comparison, table
from qkv.api.comparison_page import NOWHERE, caveats, plots
from qkv.api.findings import Findings, findings
from qkv.errors import QkvError
from qkv.files import read_json, write_whole
from qkv.look.curves import curve_png

KEPT = RESULTS / "long-text"


def main(asked: list[str]) -> None:
    if len(asked) > 1:
        raise QkvError("Name the folder of the comparisons, or nothing: python recipes/compare_report.py RUN")
    if asked:
        keep(Path(asked[0]))
    lengths = sorted(int(place.name) for place in KEPT.iterdir() if (place / FILE).exists()) if KEPT.exists() else []
    if not lengths:
        raise QkvError("There is no comparison to write of: run recipes/long_text.py and name its folder.")
    comparisons = {length: Comparison.load(KEPT / str(length)) for length in lengths}
    refused = read_json(KEPT / "refused.json")
    text = page(comparisons, refused)
    print(f"Written: {write_whole(RESULTS / 'long-text.md', text.encode())}")


def keep(folder: Path) -> None:
    found = [place for place in sorted(folder.iterdir()) if (place / FILE).exists()]
    if not found:
        raise QkvError(f"{folder} holds no comparison: run recipes/long_text.py to its end.")
    for place in found:
        (KEPT / place.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(place / FILE, KEPT / place.name / FILE)
    shutil.copyfile(folder / "refused.json", KEPT / "refused.json")


def page(comparisons: dict[int, Comparison], refused: dict[str, str]) -> str:
    first = next(iter(comparisons.values()))
    setup = first.outcomes[0].setup
    sizes = setup["sizes"]
    parts = "\n".join(section(length, comparison) for length, comparison in comparisons.items())
    cannot = "\n".join(f"- `{name}`: {said}" for name, said in refused.items())
    commands = "\n".join(
        f"python recipes/long_text.py --corpora corpora --out runs/long-text --length {length} --seconds "
        f"{seconds_of(comparison):g} --seeds {len(comparison.outcomes[0].runs)}{timed(comparison)}"
        for length, comparison in comparisons.items()
    )
    return f"""# Which attention for long texts

*Written by `recipes/compare_report.py` from the comparisons beside this page; the figures and the sentences are theirs.*

One model, {len(first.outcomes)} ways to attend, the same seconds of training for each (`qkv compare`): bytes of whole addresses to
the Congress and whole novels, {first.about["documents to train on"]} documents to learn from and {first.about["held out"]} addresses
held out. {setup["family"]} with {sizes["layers"]} layers of {sizes["width"]}, {sizes["heads"]} heads, {setup["precision"]}; the reformer
is a family of its own, of the same width and depth. One {first.about["device"]}. Time is that of training steps; programs are made
before it begins. The budget is short: what is said here is said of models that have only begun to learn.

{parts}
## What could not be compared

{cannot}

## Recipe

Batches of {setup["batch_rows"] * int(first.about["tokens of a row"]):,} tokens, AdamW, peak rate {setup["learning_rate"]:g}, {setup["warmup"]} updates
of warm-up, cosine to a tenth over each run's own budget.

```
make corpora
{commands}
python recipes/compare_report.py runs/long-text
```
"""


def section(length: int, comparison: Comparison) -> str:
    folder = f"long-text/{length}"
    pictures = []
    for plot in plots(comparison):
        curve_png(plot.curves, RESULTS / folder / plot.file, plot.x, plot.y, plot.title)
        pictures.append(f"![{plot.title}, rows of {length:,}]({folder}/{plot.file})")
    said = "\n\n".join(map(sentences, findings(comparison)))
    told = "\n\n".join([table(comparison).rstrip(), *caveats(comparison), *pictures, said])
    return f"## Rows of {length:,} bytes\n\n{told}\n"


def sentences(found: Findings) -> str:
    lines = [
        f"**{found.name}.** Ahead: {'; '.join(found.ahead) or NOWHERE}.",
        f"Behind: {'; '.join(found.behind) or NOWHERE}.",
    ]
    if found.undecided:
        lines.append(f"Not told apart: {'; '.join(found.undecided)}.")
    return "\n".join(lines)


def seconds_of(comparison: Comparison) -> float:
    return 60 * float(str(comparison.about["budget"]).removesuffix(" minutes"))


def timed(comparison: Comparison) -> str:
    lengths = [str(speed.length) for speed in comparison.outcomes[0].speeds]
    return f" --speeds {','.join(lengths)}" if lengths else ""


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except QkvError as error:
        sys.exit(f"qkv: {error}")
