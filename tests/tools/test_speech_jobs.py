"""Speech out of packages: every sound once, texts only where they are certain, equal texts on one side."""

import hashlib
import json
from pathlib import Path

import pytest

from tools import speech_jobs
from tools.fetching import Job, Package, main
from tools.speech_jobs import parts_of, speech, spoken


@pytest.mark.parametrize(
    ("caption", "said"),
    [
        ("Una lámpara-calabaza.", "una lámpara calabaza"),
        ("¡Cómete el brócoli!", "cómete el brócoli"),
        ("L\u2019arbre 'rouge'", "l'arbre rouge"),
        ("El número 7.", None),
        ("Una oveja bebé (un cordero).", None),
        ("Una moneda de ¥", None),
        ("…", None),
    ],
)
def test_a_caption_is_its_words_where_they_are_certain(caption: str, said: str | None) -> None:
    assert spoken(caption) == said


@pytest.fixture
def packages(tmp_path: Path) -> list[Path]:
    """Tiny packages of the same layout; a sound is any bytes."""
    stamps = tmp_path / "stamps/usr/share/tuxpaint/stamps/animals"
    stamps.mkdir(parents=True)
    captions = {"cat": "Un gato.", "cat2": "Un gato.", "dog": "Un perro.", "fox": "Un zorro.", "one": "El 1."}
    for name, text in captions.items():
        (stamps / f"{name}.txt").write_text(f"A thing.\nde.utf8=Ein Ding.\nes.utf8={text}\n", encoding="utf-8")
        sound = {"cat2": b"cat", "fox": b"dog"}.get(name, name.encode())  # cat2 is cat, and fox sounds as dog does
        (stamps / f"{name}_desc_es.ogg").write_bytes(sound)
        (stamps / f"{name}_desc_el.ogg").write_bytes(b"greek " + name.encode())
        (stamps / f"{name}.ogg").write_bytes(b"an effect, no speech")
    letters = tmp_path / "letters/usr/share/klettres/de/alpha"
    letters.mkdir(parents=True)
    (letters / "a.ogg").write_bytes(b"ah")
    telephones = []
    for language in speech_jobs.TELEPHONES:
        voice = tmp_path / language / "usr/share/asterisk/sounds/voice"
        for name in ("digits/1.wav", "silence/1.wav"):
            (voice / name).parent.mkdir(parents=True)
            (voice / name).write_bytes(f"{language} {name}".encode())
        telephones.append(tmp_path / language)
    return [tmp_path / "stamps", tmp_path / "letters", *telephones]


def rows(content: bytes) -> list[dict[str, str]]:
    return [json.loads(line) for line in content.splitlines()]


def test_a_folder_for_each_language_and_source(packages: list[Path]) -> None:
    made = {name: b"".join(content) for name, content in speech(packages)}
    spanish = [row for part in ("train", "valid", "test") for row in rows(made[f"tuxpaint-es/{part}.jsonl"])]
    assert [(row["file"], row["text"]) for row in spanish] == [("animals-cat.ogg", "un gato")]  # once
    others = [row["file"] for row in rows(made["tuxpaint-es/sounds.jsonl"])]
    assert others == ["animals-dog.ogg", "animals-one.ogg"]  # one sound with two texts, and one that is not certain
    assert all("text" not in row for row in rows(made["tuxpaint-el/sounds.jsonl"]))
    assert [row["file"] for row in rows(made["asterisk-fr/sounds.jsonl"])] == ["digits-1.wav"]
    assert made["klettres-de/alpha-a.ogg"] == b"ah"
    for name, content in made.items():
        folder, file = name.split("/")
        if file.endswith(".jsonl"):
            assert file.removesuffix(".jsonl") in parts_of(folder)
            for row in rows(content):
                assert hashlib.sha256(made[f"{folder}/{row['file']}"]).hexdigest() == row["sha256"]


def test_equal_texts_are_on_one_side() -> None:
    texts = [f"texto {number}" for number in range(400)]
    parts = {text: speech_jobs.part_of(text) for text in texts}
    assert parts == {text: speech_jobs.part_of(text) for text in reversed(texts)}
    shares = [sum(part == name for part in parts.values()) / 400 for name in ("train", "valid", "test")]
    assert shares == pytest.approx([0.75, 0.1, 0.15], abs=0.05)


def test_the_files_of_a_manifest_are_checked_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = hashlib.sha256(b"sound").hexdigest()
    manifest = json.dumps({"file": "a.wav", "sha256": sound}).encode() + b"\n"
    content = {"sounds/all.jsonl": manifest, "sounds/a.wav": b"sound"}
    job = Job(
        "speech",
        (Package("debian", "sounds"),),
        1,
        lambda packages: iter([(name, [each]) for name, each in content.items()]),
        manifests=("sounds/all.jsonl",),
    )
    table = tmp_path / "table"
    table.write_text(f"{hashlib.sha256(manifest).hexdigest()}  speech/sounds/all.jsonl\n")
    monkeypatch.setattr(Package, "download", lambda package, downloads: downloads)
    assert main([job], tmp_path, table, "", []) == 0
    assert (tmp_path / "speech/sounds/a.wav").read_bytes() == b"sound"
    assert main([job], tmp_path, table, "", []) == 0
    assert "already there" in capsys.readouterr().out
    (tmp_path / "speech/sounds/a.wav").write_bytes(b"noise")  # which is seen, though the table does not name it
    assert main([job], tmp_path, table, "", []) == 0
    assert (tmp_path / "speech/sounds/a.wav").read_bytes() == b"sound"
    (tmp_path / "speech/sounds/a.wav").unlink()
    content["sounds/a.wav"] = b"noise"
    assert main([job], tmp_path, table, "", []) == 1
    assert "a.wav is not the file that was expected" in capsys.readouterr().err
    del content["sounds/a.wav"]
    assert main([job], tmp_path, table, "", []) == 1
    assert "speech gave no sounds/a.wav" in capsys.readouterr().err
