"""Texts, pictures and sounds to train on for a few steps, made anew each time and the same each time."""

from __future__ import annotations

import json
import random
import wave
from array import array
from itertools import pairwise
from math import pi, sin
from pathlib import Path

from PIL import Image

WHO = ["fox", "owl", "hare", "wolf", "bear", "mole", "crow", "seal", "toad", "wren"]
WHAT = ["sees", "hears", "finds", "wants", "likes", "fears", "takes", "hides"]
HOW = ["red", "small", "old", "warm", "cold", "round", "dark", "bright"]
WHICH = ["stone", "leaf", "nest", "river", "hill", "cloud", "tree", "star"]
RATE = 16_000  # samples a second
PITCHES = {"low": 200, "middle": 600, "high": 1500}
COLOURS = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (50, 70, 210)}
PROMPTS = ("the red fox", "the small owl", "the old hare", "the warm wolf")
SENTENCES = tuple(f"{prompt} sees a cold stone ." for prompt in PROMPTS)


def write_materials(folder: Path, pictures: int, side: int = 64) -> None:
    """All of them, with so many pictures; nothing where they are all there."""
    done = folder / f"whole-{pictures}-{side}"
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    said = [sentence(draw) for _ in range(2000)]
    paragraphs = [" ".join(said[first : first + 5]) for first in range(0, len(said), 5)]
    (folder / "texts.txt").write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")
    write_tables(folder, said)
    write_pictures(folder, pictures, side, draw)
    write_sounds(folder, draw)
    done.touch()


def sentence(draw: random.Random) -> str:
    first, second = draw.choice(HOW), draw.choice(HOW)
    return f"the {first} {draw.choice(WHO)} {draw.choice(WHAT)} a {second} {draw.choice(WHICH)} ."


def write_tables(folder: Path, said: list[str]) -> None:
    """A table for each task of text; what is to be learned follows from the words."""
    some = said[:600]

    def table(name: str, columns: str, rows: list[tuple[str, ...]]) -> None:
        lines = [columns.replace(" ", "\t"), *("\t".join(row) for row in rows)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def word(text: str, place: int) -> str:
        return text.split()[place]

    table("turned.tsv", "source target", [(text, " ".join(reversed(text.split()))) for text in some])
    table("labels.tsv", "text label", [(text, word(text, 3)) for text in some])
    pairs = [(a, b, "same" if word(a, 3) == word(b, 3) else "other") for a, b in pairwise(some)]
    table("pairs.tsv", "first second label", pairs)
    table("numbers.tsv", "text value", [(text, str(HOW.index(word(text, 1)) / 4)) for text in some])
    table("tags.tsv", "words tags", [(text, " ".join(tag_of(each) for each in text.split())) for text in some])
    table("alike.tsv", "first second", [(text, f"a {word(text, 2)} {word(text, 3)} it") for text in some])
    asked = [{"question": f"what {word(text, 3)} it ?", "context": text, "answer": word(text, 2)} for text in some]
    (folder / "asked.jsonl").write_text("".join(json.dumps(each) + "\n" for each in asked), encoding="utf-8")


def tag_of(word: str) -> str:
    return "B-WHO" if word in WHO else "B-WHAT" if word in WHICH else "O"


def write_pictures(folder: Path, count: int, side: int, draw: random.Random) -> None:
    """Squares of a colour on a ground that is noise: their class, what they are called, and where they are."""
    captions, boxes = ["image,text"], []
    for number in range(count):
        name, colour = list(COLOURS.items())[number % len(COLOURS)]
        size = draw.randrange(side // 4, side // 2)
        left, top = draw.randrange(side - size), draw.randrange(side - size)
        picture = Image.frombytes("RGB", (side, side), draw.randbytes(3 * side * side))
        picture.paste(colour, (left, top, left + size, top + size))
        file = f"pictures/{name}/{number:05}.png"
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        picture.save(folder / file, compress_level=1)
        captions.append(f"{file},a {name} square")
        boxes.append({"image": file, "boxes": [{"label": name, "box": [left, top, left + size, top + size]}]})
    (folder / "captions.csv").write_text("\n".join(captions) + "\n", encoding="utf-8")
    (folder / "boxes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in boxes), encoding="utf-8")


def write_sounds(folder: Path, draw: random.Random) -> None:
    """A tone each, of one of three pitches, and how that pitch is called."""
    said = ["file\ttext"]
    for number in range(48):
        name, pitch = list(PITCHES.items())[number % len(PITCHES)]
        turn = 2 * pi * pitch * draw.uniform(0.95, 1.05) / RATE
        samples = array("h", (round(8000 * sin(turn * place)) for place in range(RATE + 100 * number)))
        file = f"sounds/{name}/{number:02}.wav"
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(folder / file), "wb") as stream:
            stream.setnchannels(1)
            stream.setsampwidth(2)
            stream.setframerate(RATE)
            stream.writeframes(samples.tobytes())
        said.append(f"{file}\t{name}")
    (folder / "said.tsv").write_text("\n".join(said) + "\n", encoding="utf-8")
