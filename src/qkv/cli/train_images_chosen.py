"""What `qkv train images` chose by the pictures, in lines that name the options which choose otherwise."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qkv.cli.train_chosen import counted

if TYPE_CHECKING:
    from qkv.api.image_choice import Judged

LINEAR_PROBE = "linear_probe"  # a figure of the held-out pictures


def told_model(family: str, side: int, sizes: Mapping[str, Any]) -> str:
    stem, patch = sizes.get("stem"), sizes["patch"]
    seen = f"in patches of {patch} × {patch}" if stem is None else f"behind {counted(stem, 'convolution')}"
    layers = f"{counted(sizes['layers'], 'layer')} of width {sizes['width']}"
    return f"Model: a new {family} for pictures of {side} × {side} {seen}, {layers} (--family, --side, --size)."


def told_asked(change: str) -> str:
    return f"Pictures: changed as --change {change} says."


def told_changes(judged: "Judged") -> str:
    """How pictures are changed while training, and on what grounds they are not."""
    from qkv.api.image_choice import CHANGES

    taken = judged.changes()
    line = f"Pictures: {_listed(taken)} a little at random" if taken else "Pictures: as they are"
    refused = [change for change in CHANGES if change not in taken]
    if not judged.knows:
        return f"{line}; a probe of the pixels recognises none, so it cannot judge more (--change)."
    if not refused:
        return f"{line}; a probe recognises them still (--change)."
    shares = ", ".join(f"{judged.recognised[change]:.0%} {change}" for change in refused)
    plain = f"{judged.recognised['']:.0%} as they are"
    return f"{line}, not {_listed(refused, 'or')}: a probe of the pixels recognises {plain}, {shares} (--change)."


def told_verdict(figures: Mapping[str, float | None]) -> list[str]:
    """Whether a model learned more of the held-out pictures than a linear probe."""
    found, linear = figures.get("accuracy"), figures.get(LINEAR_PROBE)
    if found is None or linear is None:
        return []
    if found > linear:
        return ["The model sees more in these pictures than a linear probe of the pixels."]
    if found == linear:
        return [
            "The model names as many held-out pictures as a linear probe of the pixels: they need no more, or are too "
            "few to tell."
        ]
    return [
        "The model has learned less than a linear probe of the pixels: train it longer (--minutes), or look whether "
        "the labels are right."
    ]


def _listed(names: Sequence[str], last: str = "and") -> str:
    return f" {last} ".join([*([", ".join(names[:-1])] if len(names) > 1 else []), names[-1]])
