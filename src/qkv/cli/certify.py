"""`qkv certify`: whether a model folder answers here as it does in the library that published it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from qkv.weights.certify import Finding, Report

REPORT_FILE = "parity.json"
# Some processors announce instructions that their system forbids; without them bfloat16 is slower and works everywhere.
SAFE_INSTRUCTIONS = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


def certify(
    model: Annotated[str, typer.Argument(help="Model folder or file, or owner/name[@revision] on the hub.")],
    out: Annotated[Path | None, typer.Option(help="Report; parity.json in the folder, or here for others.")] = None,
    longest: Annotated[
        int | None, typer.Option(min=1, help="Greatest length to compare at; by default the most the model reads.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps, xpu or auto.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Of the random tokens.")] = 0,
) -> None:
    """Compare what a folder answers with what the reference library answers, at many settings.

    The lengths are 1, 2, 9, 64 and the greatest; alone and eight rows at once; padded on neither side, on the right and
    on the left; with and without a cache; in float32 and bfloat16. Pictures are a patch, a strip, of the size that the
    model was made for and taller. A figure is a share of the root mean square of the
    reference's answers: in float32 the largest difference; in bfloat16 the typical one, which may be about twice
    what the reference itself has. The exit code is 0 where all agree and 1 where something differs.

    \b
    Example:
      qkv certify checkpoints/all-minilm-l6-v2 --longest 64 --out parity.json
    """
    os.environ.setdefault(*SAFE_INSTRUCTIONS)  # read when torch first computes
    import json

    from qkv.files import write_whole
    from qkv.parts.device import device_called
    from qkv.weights.certify import certify as compare
    from qkv.weights.hub import local_folder

    place = device_called(device)
    folder = local_folder(model)
    report = compare(folder, longest=longest, device=place, seed=seed)
    for line in table(report):
        typer.echo(line)
    if out is None:
        out = folder / REPORT_FILE if folder == Path(model) and folder.is_dir() else Path(REPORT_FILE)
    write_whole(out, (json.dumps(report.to_json(), indent=2) + "\n").encode())
    typer.echo(f"Written: {out}", err=True)
    if not report.passed:
        raise typer.Exit(1)


def table(report: "Report") -> list[str]:
    """A line for each length and number of rows, a column for each padding; what differs is marked."""
    whole = "" if report.longest == report.reads else f" of {report.reads:,} that it reads"
    pictures = any(each.setting.width is not None for each in report.findings)
    unit = "pixels" if pictures else "tokens"
    lines = [f"{report.architecture}, {report.reference}, up to {report.longest:,} {unit}{whole}"]
    for dtype, answer in dict.fromkeys((each.dtype, each.answer) for each in report.findings):
        found = [each for each in report.findings if (each.dtype, each.answer) == (dtype, answer)]
        most = min(each.tolerance for each in found)
        kind = "largest" if dtype == "float32" else "typical"
        more = ", or twice what the reference loses to rounding" if max(each.tolerance for each in found) > most else ""
        more = more if dtype == "float32" else ""
        lines += ["", f"{dtype}, {answer}: {kind} difference, up to {most:.1e} passes{more}", *grid(found)]
    for kind, names in report.keys.items():
        if names:
            lines += ["", f"{kind.replace('_', ' ')} in the reference: {', '.join(names[:6])}"]
    wrong = sum(not each.passed for each in report.findings)
    counted = f"{len(report.findings)} comparisons, {wrong} differ" if wrong else f"{len(report.findings)} comparisons"
    return [*lines, "", f"{'passed' if report.passed else 'DIFFERS'}: {counted}"]


def grid(findings: list["Finding"]) -> list[str]:
    columns = list(dict.fromkeys((each.setting.padding, each.setting.cached) for each in findings))
    columns.sort(key=lambda column: (column[1], column[0] != "none", column[0]))
    heads = [f"{'unpadded' if padding == 'none' else padding}{', cached' * cached}" for padding, cached in columns]
    cells = {(*_size(e), e.setting.padding, e.setting.cached): shown(e) for e in findings}
    rows = [["length", "rows", *heads]]
    for size in dict.fromkeys(_size(each) for each in findings):
        rows.append([*size, *(cells.get((*size, *column), "") for column in columns)])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _size(finding: "Finding") -> tuple[str, str]:
    setting = finding.setting
    length = str(setting.length) if setting.width is None else f"{setting.length}×{setting.width}"
    return length, str(setting.rows)


def shown(finding: "Finding") -> str:
    return f"{finding.figure:.1e}{'' if finding.passed else '!'}"
