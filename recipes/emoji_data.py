"""Emoji and other drawings for the recipes: pictures, words, and parts of which none shows what another does."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
# What makes a variant and not another thing: joiners, tones, genders, hair, ways to face; and the people who do it.
MODIFIERS = {0x200D, 0xFE0F, 0x2640, 0x2642, 0x27A1, *range(0x1F3FB, 0x1F400), *range(0x1F9B0, 0x1F9B4)}
PEOPLE = {0x1F466, 0x1F467, 0x1F468, 0x1F469, 0x1F474, 0x1F475, 0x1F476, 0x1F9D1, 0x1F9D2, 0x1F9D3}
THUMBNAIL, ALIKE = 16, 0.03  # pixels a side, and the mean difference of values from 0 to 1 below which two are the same
PARTS = (("test", 0.15), ("valid", 0.08))  # the rest is to train on


@dataclass(frozen=True)
class Emoji:
    """One emoji in all its tones: names, and the places of its pictures."""

    name: str
    words: tuple[str, ...]
    category: str
    subcategory: str
    pictures: tuple[int, ...]
    family: int  # emoji that look or mean nearly the same have the same


def read_emoji(folder: Path) -> tuple[Pixels, list[Emoji]]:
    """Pictures [n 64 64 4], the last channel opacity, and every emoji once, whatever tones it comes in."""
    pixels = np.load(folder / "images.npy", allow_pickle=False)
    rows = [json.loads(line) for line in (folder / "emoji.jsonl").read_text(encoding="utf-8").splitlines()]
    family = families(rows, on_white(pixels))
    things: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        things.setdefault(row["name"], []).append(place)
    found = []
    for name, places in things.items():
        first = rows[places[0]]
        found.append(
            Emoji(
                name, tuple(first["words"]), first["category"], first["subcategory"], tuple(places), family[places[0]]
            )
        )
    return pixels, [each for each in found if each.category != "Component"]


def families(rows: Sequence[dict[str, Any]], pixels: Pixels) -> list[int]:
    """The number of each picture's family: variants of one emoji, emoji of one name, and pictures that are the same."""
    parent = list(range(len(rows)))

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    first: dict[str, int] = {}
    for place, row in enumerate(rows):
        for key in (essence(row["character"]), f"name {row['name']}"):
            parent[root(place)] = root(first.setdefault(key, place))
    for one, other in alike(pixels):
        parent[root(one)] = root(other)
    return [root(place) for place in range(len(rows))]


def essence(character: str) -> str:
    """What a sequence shows without tone, gender, hair and direction: all cooks are one, and so are all families."""
    codes = [code for code in map(ord, character) if code not in MODIFIERS]
    doing = [code for code in codes if code not in PEOPLE]
    return "essence " + " ".join(map(str, doing or ["people"]))


def alike(pixels: Pixels) -> NDArray[np.int64]:
    """Pairs of pictures that can hardly be told apart when they are small. [pairs 2]"""
    step = pixels.shape[1] // THUMBNAIL
    small = pixels.reshape(len(pixels), THUMBNAIL, step, THUMBNAIL, step, 3).mean((2, 4)) / 255  # [n 16 16 3]
    flat = small.reshape(len(small), -1).astype(np.float32)
    squares = (flat**2).sum(1)
    distances = (squares[:, None] + squares - 2 * flat @ flat.T) / flat.shape[1]  # [n n] of mean squares
    return np.argwhere(np.triu(distances < ALIKE**2, 1))


def on_white(pixels: Pixels) -> Pixels:
    """[n h w 4] → [n h w 3]"""
    made = np.empty((*pixels.shape[:3], 3), np.uint8)
    for first in range(0, len(pixels), 512):
        some = pixels[first : first + 512].astype(np.float32)
        opacity = some[..., 3:] / 255
        made[first : first + 512] = np.rint(some[..., :3] * opacity + 255 * (1 - opacity))
    return made


def part_of(family: int) -> str:
    """The part that a whole family goes to, by its number alone."""
    share, edge = zlib.crc32(f"family {family}".encode()) / 2**32, 0.0
    for part, size in PARTS:
        edge += size
        if share < edge:
            return part
    return "train"
