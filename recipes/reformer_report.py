"""Write the results page of Reformer's attention and layers from what was measured on a GPU.

python bench/lsh_gpu.py; python bench/reversible_gpu.py; python recipes/reformer_report.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pages import RESULTS

from qkv.files import read_json, write_whole
from qkv.look.axes import Axis, Logarithmic
from qkv.look.curves import Curve, curve_png

MEASURED = Path(__file__).parents[1] / "bench" / "results"
WAYS = ("forward", "forward and backward")
ROUNDS = 4  # of the comparisons that are told in words
FROM = 16_384  # tokens, in comparisons with the reference's layer


def pair(cell: str) -> list[float]:
    """Forward, and forward and backward."""
    return [float(each) for each in cell.split(" / ")]


def of(rows: list[dict[str, Any]], part: str, rounds: int | None = None) -> list[dict[str, Any]]:
    return [row for row in rows if row["part"] == part and rounds in (None, row["rounds"])]


def against_dense(rows: list[dict[str, Any]], part: str, column: str = "times dense") -> str:
    """From where on hashing is ahead at ROUNDS rounds, and by how much at the end."""
    chosen, said = of(rows, part, ROUNDS), []
    for way, name in enumerate(WAYS):
        ratios = {row["tokens"]: pair(row[column])[way] for row in chosen}
        behind = [length for length, ratio in ratios.items() if ratio <= 1]
        ahead = [length for length in ratios if length > max(behind, default=0)]
        if ahead:
            first, last = ahead[0], ahead[-1]
            said.append(
                f"{name} it is ahead from {first:,} tokens on ({ratios[first]:.1f} times as fast; "
                f"{ratios[last]:.1f} times at {last:,})"
            )
        else:
            longest = max(ratios)
            said.append(f"{name} it is never ahead ({ratios[longest]:.2f} times as fast at {longest:,} tokens)")
    return "; ".join(said)


def growth(rows: list[dict[str, Any]]) -> str:
    """How much longer a row of twice the length takes, at the end."""
    *_, before, last = of(rows, "attention", ROUNDS)
    dense, ours = (pair(last[column])[1] / pair(before[column])[1] for column in ("dense ms", "ours ms"))
    return (
        f"From {before['tokens']:,} to {last['tokens']:,} tokens the time of dense attention, both ways, grows "
        f"{dense:.1f} times, that of hashed attention with {ROUNDS} rounds {ours:.1f} times."
    )


def against_reference(rows: list[dict[str, Any]], column: str) -> str:
    """At FROM tokens and more: the least and the most."""
    said = []
    for way, name in enumerate(WAYS):
        ratios = {
            (row["tokens"], row["rounds"]): pair(row[column])[way] for row in of(rows, "layer") if row["tokens"] >= FROM
        }
        worst, best = min(ratios, key=lambda case: ratios[case]), max(ratios, key=lambda case: ratios[case])
        said.append(
            f"{name} {ratios[worst]:.1f} times as fast at the least ({worst[0]:,} tokens, rounds: {worst[1]}) and "
            f"{ratios[best]:.1f} times at the most ({best[0]:,}, rounds: {best[1]})"
        )
    return "; ".join(said)


def speed_table(rows: list[dict[str, Any]]) -> str:
    """Of each way of launching: the times, and how often ours is done while a peer is done once."""
    plain = ("ours ms", "times dense", "times the reference")
    recorded = ("ours recorded ms", "recorded, times dense", "recorded, times the reference")
    lines = [
        "| tokens | rounds | attention, ms | times dense | layer, ms | times dense | times the reference "
        "| attention recorded, ms | times dense | layer recorded, ms | times dense | times the reference |",
        "|" + "---|" * 12,
    ]
    for alone, layer in zip(of(rows, "attention"), of(rows, "layer"), strict=True):
        cells = [f"{alone['tokens']:,}", str(alone["rounds"])]
        for time, dense, reference in (plain, recorded):
            cells += [alone[time], alone[dense], layer[time], layer[dense], layer[reference]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw_speed(rows: list[dict[str, Any]]) -> None:
    attention = of(rows, "attention")
    counts = sorted({row["rounds"] for row in attention})
    for way, name in enumerate(("forward", "both")):
        once = of(rows, "attention", counts[0])
        curves = [Curve("dense", [row["tokens"] for row in once], [pair(row["dense ms"])[way] for row in once])]
        for rounds in counts:
            own = of(rows, "attention", rounds)
            told = f"hashed, {rounds} round{'s' if rounds > 1 else ''}"
            curves.append(Curve(told, [row["tokens"] for row in own], [pair(row["ours ms"])[way] for row in own]))
        x, y = Axis("tokens of the row", Logarithmic()), Axis(f"milliseconds, {WAYS[way]}", Logarithmic())
        curve_png(curves, RESULTS / "reformer" / f"speed-{name}.png", x, y)


def draw_memory(rows: list[dict[str, Any]]) -> None:
    layers = [row["layers"] for row in rows]
    curves = [
        Curve(f"{stack}, {what}", layers, [row[f"{stack}, {what} MiB"] / 1024 for row in rows])
        for stack in ("reversible", "ordinary")
        for what in ("kept", "at the most")
    ]
    curve_png(curves, RESULTS / "reformer" / "memory.png", Axis("layers"), Axis("GiB of activations"))


def memory_words(result: dict[str, Any]) -> str:
    first, last = result["rows"][0], result["rows"][-1]

    def grown(column: str) -> str:
        return f"{last[column] / max(first[column], 1):.2f} times"

    return (
        f"From {first['layers']} to {last['layers']} layers what the reversible stack keeps for the way back grows "
        f"{grown('reversible, kept MiB')} and its peak {grown('reversible, at the most MiB')}; the ordinary stack's "
        f"grow {grown('ordinary, kept MiB')} and {grown('ordinary, at the most MiB')}. For that it takes "
        f"{last['time against ordinary']} times as long at {last['layers']} layers.\n\nAt that depth its gradients "
        f"differ from plain autograd's on the same streams by at most "
        f"{result['largest difference of gradients, float32']} of a tensor's largest gradient in float32 (from float64's "
        f"by {result['of either from float64']}) and {result['float64']} in float64; with hashed attention by "
        f"{result['hashed, float64']} in float64."
    )


def memory_table(rows: list[dict[str, Any]]) -> str:
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(f"{row[column]}" for column in columns) + " |" for row in rows])


def page(speed: dict[str, Any], memory: dict[str, Any]) -> str:
    rows, machine = speed["rows"], speed["machine"]
    (RESULTS / "reformer").mkdir(exist_ok=True)
    draw_speed(rows)
    draw_memory(memory["rows"])
    stages = "\n".join(f"- {name}: {value}" for name, value in speed.items() if name.startswith("stages"))
    return f"""# Reformer: time by length, memory by depth

*Written by `recipes/reformer_report.py` from `bench/results/lsh_gpu.json` and `bench/results/reversible_gpu.json`.*

One {machine["gpu"]}; torch {machine["torch"]}, Triton {machine["triton"]}. Hashed attention in chunks of 64 under a
look-ahead mask, one row, 8 heads of 64, bfloat16; figures are medians, forward / forward and backward. Dense attention is
the fastest of cuDNN, FlashAttention-2 and our own at each length. A time of hashed attention has all that belongs to it:
drawing rotations, hashing, sorting, making keys of queries, attending, joining the rounds.

## Time by length and rounds

![Time of hashed and dense attention, forward](reformer/speed-forward.png)

![Time of hashed and dense attention, both ways](reformer/speed-both.png)

These are the curves of the paper's figure 5, but for one row a length in place of a fixed number of tokens. {growth(rows)}

The host, which launches one program after the other, holds up short rows of few rounds, and more on some days than on
others. So everything was timed twice: plainly, and as one recorded launch (a CUDA graph, as `record=True` trains), which is what
the GPU itself takes.

At {ROUNDS} rounds, recorded, against dense attention recorded: {against_dense(rows, "attention", "recorded, times dense")}.
A whole layer of width 512: {against_dense(rows, "layer", "recorded, times dense")}.
Plainly: {against_dense(rows, "attention")}; a layer: {against_dense(rows, "layer")}.

Against the reference library's layer, which has no projection of its answers, at {FROM:,} tokens and more: recorded, against the
faster of the reference plain and recorded, {against_reference(rows, "recorded, times the reference")}; plainly
{against_reference(rows, "times the reference")}.

{speed_table(rows)}

What one call is made of, in milliseconds, each stage by itself:

{stages}

## Memory by depth

![Memory of activations by depth](reformer/memory.png)

{memory_words(memory)}

{memory_table(memory["rows"])}

Blocks of width 512 with hashed attention in 2 rounds and a feed-forward of 2048, one row of {memory["tokens"]} tokens.
`kept` is what the way forward leaves for the way back, `at the most` the peak of a whole step; weights, gradients and
input are not counted.
"""


def main() -> None:
    text = page(*(read_json(MEASURED / f"{name}.json") for name in ("lsh_gpu", "reversible_gpu")))
    print(f"Written: {write_whole(RESULTS / 'reformer.md', text.encode())}")


if __name__ == "__main__":
    main()
