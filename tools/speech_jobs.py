"""Speech: read sentences, captions of pictures in many languages, and what telephones say."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.fetching import FetchError, File, Job, Package, pieces

SAID = re.compile(r"<s> (.*) </s> \((.*)\)")
SPOKEN = re.compile(r"(.+)_desc(?:_([a-zA-Z_]+))?")  # of a stamp's name: its caption, read aloud in a language
# In these the captions are what is said: the longer the text, the longer the sound. In others many are not.
LABELLED = ("bg", "es", "fr", "ro", "ru")
CAPTIONED = (*LABELLED, "be", "ca", "da", "el", "en", "lt", "ml", "nl")
TELEPHONES = ("en", "es", "fr", "it", "ru")
ALPHABETS = (
    "ar", "cs", "da", "de", "en", "en_GB", "es", "fr", "he", "hu", "it", "lt", "ml", "nb", "nds", "nl", "pt_BR", "ru",
    "tn", "uk",
)  # fmt: skip
TEST, VALID = 38, 64  # of 256: about 15 and 10 in a hundred
UNSURE = re.compile(r"[^\W\d_]*[\d$€¥£%=+×÷/()\[\]&@#°º][^ ]*")  # who knows how these are said


def librivox(packages: Sequence[Path]) -> Iterator[File]:
    """Five sentences of a novel, read aloud."""
    folder = packages[0] / "usr/share/pocketsphinx/test/data/librivox"
    rows = []
    for line in (folder / "transcription").read_text(encoding="utf-8").splitlines():
        found = SAID.fullmatch(line.strip())
        if found is None:
            raise FetchError(f"The package's transcription has a line that cannot be read: {line!r}.")
        rows.append({"file": f"{found[2]}.wav", "text": found[1]})
        yield f"{found[2]}.wav", pieces(folder / f"{found[2]}.wav")
    yield "speech.jsonl", [json.dumps(row).encode() + b"\n" for row in rows]


def spoken(text: str) -> str | None:
    """A caption as its words, in small letters; None where it holds what may be said in several ways."""
    if UNSURE.search(text):
        return None
    letters = unicodedata.normalize("NFC", text).lower().replace("\u2019", "'")
    words = "".join(letter if letter.isalpha() or letter == "'" else " " for letter in letters).split()
    return " ".join(word.strip("'") for word in words).strip() or None


def part_of(text: str) -> str:
    first = hashlib.sha256(text.encode()).digest()[0]
    return "test" if first < TEST else "valid" if first < VALID else "train"


def captions(package: Path) -> Iterator[tuple[str, Path, str, str | None]]:
    """(language, sound, its new name, what is said)"""
    stamps = package / "usr/share/tuxpaint/stamps"
    for sound in sorted(stamps.rglob("*_desc*.ogg"), key=lambda each: each.as_posix().replace("_desc", "/")):
        found = SPOKEN.fullmatch(sound.stem)
        language = (found[2] or "en") if found else ""
        if found is None or language not in CAPTIONED:
            continue
        name = "-".join((*sound.parent.relative_to(stamps).parts, f"{found[1]}.ogg"))
        yield language, sound, name, _caption(sound.with_name(f"{found[1]}.txt"), language)


def _caption(file: Path, language: str) -> str | None:
    if language not in LABELLED or not file.is_file():
        return None
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines()[1:]:
        if line.startswith(f"{language}.utf8="):
            return spoken(line.partition("=")[2])
    return None


def speech(packages: Sequence[Path]) -> Iterator[File]:
    """A folder for each language of each package: manifests, then the sounds as they were published."""
    stamps, letters, *telephones = packages
    found: dict[str, list[tuple[Path, dict[str, str]]]] = defaultdict(list)  # folder -> sounds and their rows
    for language, sound, name, text in captions(stamps):
        row = {"file": name, "language": language} | ({} if text is None else {"text": text})
        found[f"tuxpaint-{language}"].append((sound, row))
    for language, package in zip(TELEPHONES, telephones, strict=True):
        (voice,) = (package / "usr/share/asterisk/sounds").iterdir()
        for sound in sorted(voice.rglob("*.wav")):
            name = "-".join(sound.relative_to(voice).parts)
            if not name.startswith("silence-"):
                found[f"asterisk-{language}"].append((sound, {"file": name, "language": language}))
    for language in ALPHABETS:
        alphabet = letters / "usr/share/klettres" / language
        for sound in sorted(alphabet.rglob("*.ogg")):
            name = "-".join(sound.relative_to(alphabet).parts)
            found[f"klettres-{language}"].append((sound, {"file": name, "language": language}))
    for folder, sounds in sorted(found.items()):
        yield from _folder(folder, sounds)


def _folder(folder: str, sounds: Sequence[tuple[Path, dict[str, str]]]) -> Iterator[File]:
    """Each sound once: a recording that serves several pictures has one name, and a text if all of them agree."""
    kept: dict[str, tuple[Path, dict[str, str]]] = {}  # by checksum
    for sound, row in sounds:
        digest = hashlib.sha256(sound.read_bytes()).hexdigest()
        first = kept.setdefault(digest, (sound, {**row, "sha256": digest}))[1]
        if first.get("text") != row.get("text"):
            first.pop("text", None)
    parts: dict[str, list[bytes]] = {part: [] for part in parts_of(folder)}
    for _, row in kept.values():
        part = part_of(row["text"]) if "text" in row else "sounds"
        parts[part].append(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    for part, lines in parts.items():
        yield f"{folder}/{part}.jsonl", lines
    for sound, row in kept.values():
        yield f"{folder}/{row['file']}", pieces(sound)


def parts_of(folder: str) -> tuple[str, ...]:
    """The manifests of a folder: what is said in its sounds is known, or it is not."""
    labelled = folder in [f"tuxpaint-{language}" for language in LABELLED]
    return ("train", "valid", "test", "sounds") if labelled else ("sounds",)


FOLDERS = (
    *(f"tuxpaint-{language}" for language in CAPTIONED),
    *(f"asterisk-{language}" for language in TELEPHONES),
    *(f"klettres-{language}" for language in ALPHABETS),
)
PROMPTS = tuple(Package("debian", f"asterisk-core-sounds-{language}-wav") for language in TELEPHONES)
SPEECH_JOBS = [
    Job("librivox", (Package("debian", "pocketsphinx-testdata"),), 2, librivox),
    Job(
        "speech",
        (Package("debian", "tuxpaint-stamps-default"), Package("debian", "klettres-data"), *PROMPTS),
        300,
        speech,
        manifests=tuple(f"{folder}/{part}.jsonl" for folder in FOLDERS for part in parts_of(folder)),
    ),
]
