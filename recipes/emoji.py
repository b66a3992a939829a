"""CLIP in small: which name belongs to which drawing, learned from emoji alone and with eight thousand other drawings.

    make corpora
    python recipes/emoji.py --corpora corpora --out runs/emoji

Emoji that were held out, with all their variants, are then found by name among all held-out names, and sorted into
classes that are told in words alone. All scores are in `result.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer
from emoji_data import Emoji, on_white, part_of, read_emoji
from PIL import Image

import qkv
from qkv.api.caption_training import CaptionTraining, new_image_text_model, plain_preprocessing, train_image_text
from qkv.api.training import read_result
from qkv.data.augment import Flip, InTurn, RandAugment, RandomResizedCrop
from qkv.data.captioned import Captioned
from qkv.data.plan import RowCount
from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.generate.image_text import ImageTextReader
from qkv.models.image_text_model import mean_directions
from qkv.train.metrics_of_labels import accuracy
from qkv.train.metrics_of_retrieval import score_retrieval
from qkv.train.optimizers import adamw
from qkv.train.schedules import Cosine

# How a person would ask for the categories, which no caption names.
CATEGORIES = {
    "Smileys & Emotion": ("a face", "a smiling face", "an emotion", "a heart"),
    "People & Body": ("a person", "a man", "a woman", "a hand", "people"),
    "Animals & Nature": ("an animal", "a bird", "a fish", "a plant", "a flower"),
    "Food & Drink": ("food", "a drink", "a fruit", "a vegetable", "a meal"),
    "Travel & Places": ("a place", "a building", "a vehicle", "travel", "the weather"),
    "Activities": ("a sport", "a game", "a ball", "a celebration"),
    "Objects": ("an object", "a tool", "clothing", "an instrument", "office things"),
    "Symbols": ("a symbol", "a sign", "an arrow", "a button", "a letter"),
    "Flags": ("a flag", "the flag of a country"),
}
SAME_THING = (
    "rotate",
    "shear-x",
    "shear-y",
    "translate-x",
    "translate-y",
    "color",
    "contrast",
    "brightness",
    "sharpness",
)
DESCRIBED_BY = 60  # names of training emoji that describe a class, at most
FEWEST = 5  # training emoji of a subcategory that is asked for


def main(
    corpora: Annotated[Path, typer.Option(help="folder that `make corpora` filled")],
    out: Annotated[Path, typer.Option(help="folder for the two runs")],
    steps: Annotated[int, typer.Option(help="updates with all drawings")] = 4000,
    emoji_steps: Annotated[int, typer.Option(help="updates with emoji alone")] = 1200,
    rows: Annotated[int, typer.Option(help="pairs of a batch, which are each other's wrong answers")] = 512,
    width: int = 256,
    image_layers: int = 6,
    text_layers: int = 4,
    learning_rate: float = 1e-3,
    moving: Annotated[float, typer.Option(help="decay of the moving average of the weights; 0: none")] = 0.998,
    precision: Literal["float32", "bfloat16"] = "bfloat16",
    device: str = "auto",
    side: Annotated[int, typer.Option(help="pixels a side; 64, or less for a quick try")] = 64,
    few: Annotated[int | None, typer.Option(help="drawings of each sort, for a quick try")] = None,
) -> None:
    pictures, emoji = read_emoji(corpora / "emoji")
    parts = {
        part: spread([each for each in emoji if part_of(each.family) == part], few)
        for part in ("train", "valid", "test")
    }
    drawn, said = clipart(corpora / "openclipart", few)
    pixels = smaller(np.concatenate([on_white(pictures), drawn]), side)
    told = {part: captioned(pixels, some) for part, some in parts.items()}
    everything = Captioned(
        pixels,
        [*told["train"].captions, *said],
        [*told["train"].shown, *((len(pictures) + place,) for place in range(len(said)))],
    )
    # One tokenizer for both runs, so that nothing but the drawings differs.
    tokenizer = qkv.NewTokenizer("bpe", 6000, lowercase=True).train(
        [text for texts in everything.captions for text in texts]
    )
    sizes = {
        "projection": width, "positions": 40, "patch": side // 8,
        "image_width": width, "image_hidden": 4 * width, "image_heads": width // 64, "image_layers": image_layers,
        "text_width": width, "text_hidden": 4 * width, "text_heads": width // 64, "text_layers": text_layers,
        "image_attention_dropout": 0.1, "text_attention_dropout": 0.1,
    }  # fmt: skip
    augment = InTurn(
        (RandomResizedCrop((side, side), (0.5, 1.0), (0.8, 1.25)), Flip(), RandAugment(1, 7, 0.5, SAME_THING))
    )
    optimizer = partial(adamw, learning_rate=learning_rate, betas=(0.9, 0.98), epsilon=1e-6, weight_decay=0.2)
    runs: dict[str, Any] = {}
    for name, data, budget in (("emoji", told["train"], emoji_steps), ("all-drawings", everything, steps)):
        how = CaptionTraining(
            augment=augment,
            batching=RowCount(rows),
            settings=qkv.TrainSettings(
                steps=budget,
                precision=precision,
                device=device,
                evaluate_every=max(1, budget // 10),
                keep=1,
                ema=moving or None,
                watch="top5",
                better="higher",
            ),
            optimizer=optimizer,
            schedule=Cosine(warmup=min(300, budget // 5)),
        )
        reader = train_image_text(data, out / name, valid=told["valid"], tokenizer=tokenizer, sizes=sizes, how=how)
        runs[name] = {
            **asdict(read_result(out / name)),
            "folder": name,
            "things": len(data),
            "test": scores(reader, pixels, parts["train"], parts["test"]),
        }
    torch.manual_seed(0)
    untrained = new_image_text_model(sizes, reader.tokenizer, everything)
    nothing = ImageTextReader(untrained, reader.tokenizer, plain_preprocessing(everything))
    session = read_json(out / "all-drawings" / "run.json")["sessions"][-1]
    write_json(
        out / "result.json",
        {
            "model": "clip",
            "sizes": asdict(reader.model.sizes),
            "parameters": sum(parameter.numel() for parameter in reader.model.parameters()),
            "device": session["hardware"]["device"],
            "versions": session["versions"],
            "recipe": {
                "steps": f"{emoji_steps} with emoji alone, {steps} with all drawings",
                "pairs of a batch": rows,
                "precision": precision,
                "optimizer": f"adamw {optimizer.keywords}, cosine",
                "pictures": f"{side} × {side} on white; crops of half of it or more, mirrored, and one more change",
                "changes": ", ".join(SAME_THING),
                "captions": "one of an emoji's names, or of a drawing's title and keywords, drawn in each epoch",
                "weights": f"moving average, decay {moving}; the evaluation with the best top 5 on validation emoji",
            },
            "emoji": {part: len(some) for part, some in parts.items()},
            "pictures of emoji": {part: sum(len(each.pictures) for each in some) for part, some in parts.items()},
            "drawings": len(said),
            "runs": runs,
            "untrained": scores(nothing, pixels, parts["train"], parts["test"]),
            "examples": examples(reader, pixels, parts["test"]),
            "chance": chances(parts["train"], parts["test"]),
        },
    )
    print((out / "result.json").read_text(encoding="utf-8"))


def captioned(pixels: np.ndarray, emoji: Sequence[Emoji]) -> Captioned:
    """Each emoji with all its pictures, and what it is called."""
    texts = [tuple(dict.fromkeys((each.name, *(word for word in each.words if len(word) > 1)))) for each in emoji]
    return Captioned(pixels, texts, [each.pictures for each in emoji])


def clipart(folder: Path, few: int | None) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """Drawings [n 64 64 3] that have a title or keywords, and several captions of each."""
    rows = [json.loads(line) for line in (folder / "openclipart.jsonl").read_text(encoding="utf-8").splitlines()]
    drawings = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
    told = [(place, texts) for place, row in enumerate(rows) if (texts := captions_of(row))]
    told = spread(told, few)
    return on_white(np.asarray(drawings[[place for place, _ in told]])), [texts for _, texts in told]


def captions_of(row: dict[str, Any]) -> tuple[str, ...]:
    """The title, some keywords, and both; names of makers and sets say nothing of what is drawn."""
    title = " ".join(word for word in row["title"].replace("_", " ").replace("-", " ").split() if not word.isdigit())
    words = [word for word in row["words"] if "rollandin" not in word.lower()][:8]
    folder = row["folders"][-1].replace("_", " ") if row["folders"] else ""
    texts = [title, ", ".join(words[:3]), ", ".join([title, *words[:2]]), f"{folder}, {title}", *words[:3]]
    return tuple(dict.fromkeys(text.strip(" ,") for text in texts if len(text.strip(" ,")) > 1 and title))


def spread(items: list[Any], few: int | None) -> list[Any]:
    """Some of them, from all over the list; all where none is said."""
    return items if few is None or few >= len(items) else items[:: len(items) // few][:few]


def smaller(pixels: np.ndarray, side: int) -> np.ndarray:
    step = pixels.shape[1] // side
    if step == 1:
        return pixels
    return pixels.reshape(len(pixels), side, step, side, step, 3).mean((2, 4)).astype(np.uint8)


def scores(
    reader: ImageTextReader, pixels: np.ndarray, known: Sequence[Emoji], held: Sequence[Emoji]
) -> dict[str, Any]:
    """Names found among all held-out names, and classes told in words: by their own names, and by known emoji."""
    vectors = reader.of_pictures([Image.fromarray(pixels[each.pictures[0]]) for each in held], batch_images=256)
    names = [each.name for each in held]
    found = score_retrieval(vectors, reader.of_texts(names), names)
    subcategories = asked_subcategories(known, held)
    few = [place for place, each in enumerate(held) if each.subcategory in subcategories]
    right = [held[place].subcategory for place in few]
    by_name = {label: (f"{label.replace('-', ' ')}",) for label in subcategories}
    return {
        "names": found,
        "categories": told(reader, vectors, [each.category for each in held], CATEGORIES),
        "categories by known emoji": told(
            reader, vectors, [each.category for each in held], described(known, "category", CATEGORIES)
        ),
        "subcategories": told(reader, vectors[few], right, by_name),
        "subcategories by known emoji": told(
            reader, vectors[few], right, described(known, "subcategory", subcategories)
        ),
    }


def asked_subcategories(known: Sequence[Emoji], held: Sequence[Emoji]) -> list[str]:
    """Those of held-out emoji that have some known ones."""
    counts = {label: sum(each.subcategory == label for each in known) for label in {each.subcategory for each in held}}
    return sorted(label for label, count in counts.items() if count >= FEWEST)


def described(known: Sequence[Emoji], kind: str, labels: Any) -> dict[str, tuple[str, ...]]:
    """Each class in the names of emoji that were trained on."""
    return {
        label: tuple(each.name for each in known if getattr(each, kind) == label)[:DESCRIBED_BY] for label in labels
    }


def told(
    reader: ImageTextReader, vectors: torch.Tensor, right: Sequence[str], prompts: dict[str, tuple[str, ...]]
) -> float | None:
    """The share of pictures whose class is the nearest; a class is the mean direction of its prompts."""
    if not right or not all(prompts.values()):
        return None
    labels = list(prompts)
    weights = torch.cat([mean_directions(reader.of_texts(list(texts))[None]) for texts in prompts.values()])  # [k j]
    said = (vectors.cpu() @ weights.cpu().float().T).argmax(1).tolist()
    return accuracy(said, [labels.index(label) for label in right])


def chances(known: Sequence[Emoji], held: Sequence[Emoji]) -> dict[str, float]:
    """What guessing gives: evenly, and always the most frequent class of the training emoji."""
    few = asked_subcategories(known, held)
    largest = max(CATEGORIES, key=lambda label: sum(each.category == label for each in known))
    return {
        "names": 1 / max(1, len({each.name for each in held})),
        "names top5": 5 / max(1, len({each.name for each in held})),
        "categories": 1 / len(CATEGORIES),
        "largest category": sum(each.category == largest for each in held) / max(1, len(held)),
        "subcategories": 1 / max(1, len(few)),
        "asked subcategories": float(len(few)),
    }


def examples(
    reader: ImageTextReader, pixels: np.ndarray, held: Sequence[Emoji], count: int = 12
) -> list[dict[str, Any]]:
    """The three likeliest names of some held-out emoji, evenly spread over all of them."""
    chosen = list(held)[:: max(1, len(held) // count)][:count]
    names = [each.name for each in held]
    pictures = [Image.fromarray(pixels[each.pictures[0]]) for each in chosen]
    said = reader.run(pictures, list(dict.fromkeys(names)), templates=("{}",))
    return [
        {"name": each.name, "said": sorted(found.probabilities, key=lambda name: -found.probabilities[name])[:3]}
        for each, found in zip(chosen, said, strict=True)
    ]


if __name__ == "__main__":
    try:
        typer.run(main)
    except QkvError as error:
        sys.exit(f"qkv: {error}")
