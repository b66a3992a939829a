"""How near random features and Linformer come to exact attention: the papers' bounds, and a trained model's own heads.

    make corpora checkpoints
    python recipes/approximations.py --corpora corpora --model checkpoints/all-minilm-l6-v2 --out runs/approximations
    python recipes/approximations_report.py approximations runs/approximations

Two minutes of one CPU core. Errors of single products are held against [choromanski2021 lemma 2]; errors of attention,
and the spectrum of its tables [wang2020 figure 1], are those of a published model on a novel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from qkv.data.documents import read_documents
from qkv.data.published_tokenizer import read_tokenizer
from qkv.errors import QkvError
from qkv.files import write_json
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.linformer import LinformerKernel, RowProjection, share_of_spectrum
from qkv.parts.attention.kernels.random_features import PositiveFeatures, RandomFeatureKernel, orthogonal_directions
from qkv.train.provenance import provenance
from qkv.weights.load import load_model

Draw = Callable[[int, int], Tensor]
WIDTH, DRAWS, COUNTS = 16, 1000, (16, 32, 64, 128, 256, 512)
FEATURES, PROJECTED = (32, 64, 128, 256, 512, 1024), (16, 32, 64, 128, 256)
LEARNED, UPDATES, LAYER, SIZES = (16, 64, 256), 80, 3, (1.0, 0.5, 0.25)
SHOWN = 8  # of the singular values one in so many is kept


def products(q: Tensor, k: Tensor) -> dict[str, Any]:
    """Mean squared errors of φ(q)·φ(k) by number of directions, and what the papers say they are."""
    score, near, far = float((q @ k).exp()), float((q + k).square().sum()), float((q - k).square().sum())
    positive, waves = torch.tensor(near).exp().item(), torch.tensor(-far).exp().item()
    sizes = float(((q.square().sum() + k.square().sum()) / 2).exp())  # what makes a Gaussian of a distance exp(q·k)

    def of_exponentials(w: Tensor) -> float:
        phi = [(w @ x - x.square().sum() / 2).exp() for x in (q, k)]
        return float((phi[0] * phi[1]).mean())

    def of_waves(w: Tensor) -> float:
        return float((w @ (q - k)).cos().mean()) * sizes

    ways: dict[str, tuple[Callable[[Tensor], float], Draw]] = {
        "positive, independent": (of_exponentials, torch.randn),
        "positive, orthogonal": (of_exponentials, orthogonal_directions),
        "waves, independent": (of_waves, torch.randn),
        "waves, orthogonal": (of_waves, orthogonal_directions),
    }
    measured: dict[str, list[float]] = {}
    means: dict[str, tuple[float, float]] = {}
    for name, (estimate, draw) in ways.items():
        for count in COUNTS:
            found = torch.tensor([estimate(draw(count, WIDTH)) for _ in range(DRAWS)], dtype=torch.float64)
            measured.setdefault(name, []).append(float((found - score).square().mean()))
            means[name] = (float(found.mean()), float(found.std()) / DRAWS**0.5)
    return {
        "q·k": float(q @ k),
        "exp": score,
        "counts": COUNTS,
        "measured": measured,
        "means": means,
        "predicted": {
            "positive, independent": [score**2 * (positive - 1) / count for count in COUNTS],
            "waves, independent": [(1 - waves) ** 2 / (2 * count) * sizes**2 for count in COUNTS],
        },
    }


def heads_of(model: TextModel, ids: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The queries, keys and values of every layer on these rows. [b h n d] each"""
    found: list[tuple[Tensor, Tensor, Tensor]] = []

    def keep(module: Attention, given: tuple[Any, ...]) -> None:
        found.append(tuple(x.contiguous() for x in module.projected(*given)))  # type: ignore[arg-type]

    hooks = [m.register_forward_pre_hook(keep) for m in model.modules() if isinstance(m, Attention)]  # type: ignore[arg-type]
    try:
        model(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def miss(found: Tensor, expected: Tensor) -> float:
    """The length of the error over that of what was wanted, the mean over heads and rows."""
    return float(((found - expected).norm(dim=(-1, -2)) / expected.norm(dim=(-1, -2))).mean())


def by_features(layers: list[tuple[Tensor, Tensor, Tensor]]) -> dict[str, list[list[float]]]:
    """Errors of random features, by layer and by their number."""
    found: dict[str, list[list[float]]] = {"orthogonal": [], "independent": []}
    for q, k, v in layers:
        expected = exact(q, k, v)
        for name, draw in (("orthogonal", orthogonal_directions), ("independent", torch.randn)):
            errors = []
            for count in FEATURES:
                kernel = RandomFeatureKernel(PositiveFeatures(count, q.shape[-1]))
                kernel.features.directions.copy_(draw(count, q.shape[-1]))
                errors.append(miss(kernel(q, k, v), expected))
            found[name].append(errors)
    return found


def by_size(layer: tuple[Tensor, Tensor, Tensor]) -> dict[str, list[float]]:
    """Errors by number of features when queries and keys of one layer are made shorter."""
    q, k, v = layer
    found = {}
    for size in SIZES:
        expected = exact(q * size, k * size, v)
        kernels = [RandomFeatureKernel(PositiveFeatures(count, q.shape[-1])) for count in FEATURES]
        found[str(size)] = [miss(kernel(q * size, k * size, v), expected) for kernel in kernels]
    return found


def by_rank(layers: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[dict[str, list[list[float]]], list[Tensor]]:
    """Errors of tables of rank k, drawn and best, by layer and k; and the spectrum by layer and head [h n]."""
    found: dict[str, list[list[float]]] = {"drawn": [], "best": []}
    spectra = []
    for q, k, v in layers:
        table = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1)
        expected = table @ v
        left, values, right = torch.linalg.svd(table)
        spectra.append(share_of_spectrum(table).mean(0))
        drawn, best = [], []
        for rank in PROJECTED:
            r = RowProjection(table.shape[-1], rank).weight[0]  # [r n], of variance 1/r
            drawn.append(miss((table @ r.T) @ (r @ v), expected))  # P Rᵀ R V [wang2020 theorem 1]
            part = (left[..., :rank] * values[..., None, :rank]) @ right[..., :rank, :]
            best.append(miss(part @ v, expected))
        found["drawn"].append(drawn)
        found["best"].append(best)
    return found, spectra


def learned(layer: tuple[Tensor, Tensor, Tensor], held_out: int) -> dict[str, list[float]]:
    """Errors of a Linformer on rows held out: with neighbours averaged, and after E and F learned from the other rows
    to answer as one layer's heads do."""
    q, k, v = layer
    expected, length = exact(q, k, v), q.shape[2]
    errors: dict[str, list[float]] = {"averaged": [], "learned": []}
    for rank in LEARNED:
        kernel = LinformerKernel(RowProjection(length, rank), RowProjection(length, rank))
        share = rank / length
        with torch.no_grad():
            for projection in (kernel.keys, kernel.values):
                projection.weight.copy_((torch.eye(rank).repeat_interleave(length // rank, 1) * share)[None])
        optimizer = torch.optim.Adam(kernel.parameters(), 0.002 * share)
        for kind, updates in (("averaged", 0), ("learned", UPDATES)):
            for _ in range(updates):
                optimizer.zero_grad()
                (kernel(q[held_out:], k[held_out:], v[held_out:]) - expected[held_out:]).square().mean().backward()
                optimizer.step()
            with torch.no_grad():
                errors[kind].append(miss(kernel(q[:held_out], k[:held_out], v[:held_out]), expected[:held_out]))
    return errors


def main(
    corpora: Annotated[Path, typer.Option(help="folder that `make corpora` filled")],
    model: Annotated[Path, typer.Option(help="folder of a published BERT")],
    out: Annotated[Path, typer.Option(help="folder for the result")],
    rows: Annotated[int, typer.Option(help="rows of text")] = 10,
    threads: int = 1,
) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    q = torch.randn(WIDTH)
    k = torch.randn(WIDTH)
    with torch.no_grad():
        one = 0.7 * q / q.norm()
        other = k - (k @ one) / one.square().sum() * one  # at a right angle to it
        other = 0.7 * other / other.norm()
        pairs = {"alike": products(one, 0.8 * one + 0.6 * other), "opposed": products(one, 0.6 * other - 0.8 * one)}
        encoder: TextModel = load_model(model)
        encoder.eval()
        (text,) = read_documents(corpora / "moby-dick" / "moby-dick.txt").texts
        length = encoder.longest or 512
        (ids,) = read_tokenizer(model).encode([text[50_000 : 50_000 + 8 * rows * length]])
        layers = heads_of(encoder, torch.tensor(ids[: rows * length]).view(rows, length))
        first = [(q[:1], k[:1], v[:1]) for q, k, v in layers]
        features = by_features(first)
        ranks, spectra = by_rank([(q[:2], k[:2], v[:2]) for q, k, v in layers])
        squares = [[float(x.square().sum(-1).mean()) * x.shape[-1] ** -0.5 for x in (q, k)] for q, k, _ in first]
    result = {
        "products": pairs,
        "attention": {"counts": FEATURES, "errors": features, "squares": squares},
        "shorter": {"layer": LAYER + 1, "errors": by_size(first[LAYER])},
        "ranks": {"counts": PROJECTED, "errors": ranks},
        "learned": {"counts": LEARNED, "errors": learned(layers[LAYER], 2), "layer": LAYER + 1},
        "spectrum": {
            "index": list(range(SHOWN, length + 1, SHOWN)),
            "by layer": [[round(float(x), 4) for x in each.mean(0)[SHOWN - 1 :: SHOWN]] for each in spectra],
            "a quarter of them, by head": [[round(float(x), 3) for x in each[:, length // 4 - 1]] for each in spectra],
        },
        "recipe": {
            "model": model.name,
            "text": "Moby-Dick",
            "rows": rows,
            "length": length,
            "width of a head": layers[0][0].shape[-1],
            "draws of a product": DRAWS,
            "updates of E and F": UPDATES,
        },
        "versions": provenance(torch.device("cpu"))["versions"],
    }
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "result.json", result)
    print(f"Written: {out / 'result.json'}")


if __name__ == "__main__":
    try:
        typer.run(main)
    except QkvError as error:
        sys.exit(f"qkv: {error}")
