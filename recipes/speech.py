"""wav2vec 2.0 in small: learned from sound alone, then taught to write from minutes of speech with its texts.

    make corpora
    python recipes/speech.py --corpora corpora --out runs/speech

The same teaching from random weights stands beside it: what is sound without texts worth? Letters are read greedily and
by a beam search with a language model of the texts that were taught. All scores are in `result.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

import qkv
from qkv.api.sound_pretraining import SoundPretraining, pretrain_on_sounds
from qkv.api.speech_training import SpeechTraining, train_listener
from qkv.api.training import read_result
from qkv.data.plan import RowCount, TokenBudget
from qkv.data.sound_features import WaveFeatures
from qkv.data.stored_sounds import SpokenWaves, stored_waves
from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.generate.ctc import Beam
from qkv.generate.listen import Listener
from qkv.generate.ngrams import WordNGrams
from qkv.train.metrics import character_error_rate, edit_distance, word_error_rate
from qkv.train.optimizers import adamw

PARTS = ("train", "valid", "test")
ALONE = ("tuxpaint-ca", "asterisk-es", "asterisk-it", "asterisk-fr", "asterisk-en")
SIZES: dict[str, Any] = {
    "channels": (128, 128, 256, 256, 256, 256, 256), "norm": "before", "frame_norm": "frame", "frame_bias": True,
    "width": 384, "hidden": 1536, "heads": 6, "layers": 6, "position_kernel": 64, "entries": 64, "quantised": 128,
    "space": 128, "layer_dropout": 0.05, "frame_dropout": 0.1, "quantiser_dropout": 0.1,
}  # fmt: skip
# While it is taught: spans of frames and of channels are hidden, so that little speech is not learned by heart.
TAUGHT: dict[str, Any] = {
    "hidden_share": 0.4, "hidden_length": 8, "hidden_channel_share": 0.3, "hidden_channel_length": 32,
    "layer_dropout": 0.1, "head_dropout": 0.1,
}  # fmt: skip
BEAMS = [(weight, bonus) for weight in (0.4, 0.8) for bonus in (0.0, 1.0)]
BEAM_WIDTH = 16
FASTEST = 25  # letters a second: a text that is longer for its sound is not what is said
LONGEST = 900.0  # seconds of a recording without text
RESAMPLED = 2000  # draws of the held-out sentences, for how sure a rate is


def main(
    corpora: Annotated[Path, typer.Option(help="folder that `make corpora` filled")],
    out: Annotated[Path, typer.Option(help="folder for the runs")],
    language: Annotated[str, typer.Option(help="of the speech with texts: bg, es, fr, ro or ru")] = "es",
    alone: Annotated[list[str] | None, typer.Option(help="folders of sound without texts to learn from too")] = None,
    steps: Annotated[int, typer.Option(help="updates of learning from sound alone")] = 3600,
    taught_steps: Annotated[int, typer.Option(help="updates of each teaching")] = 1200,
    less: Annotated[float, typer.Option(help="also teach so many minutes alone; 0: do not")] = 0.0,
    seconds: Annotated[float, typer.Option(help="of a row of sound alone")] = 8.0,
    rows: Annotated[int, typer.Option(help="of a batch of sound alone")] = 20,
    batch_seconds: Annotated[float, typer.Option(help="of a batch of speech with texts")] = 64.0,
    learning_rate: float = 1e-3,
    taught_rate: float = 5e-4,
    width: int = 384,
    layers: int = 6,
    precision: Literal["float32", "bfloat16"] = "bfloat16",
    device: str = "auto",
) -> None:
    features = WaveFeatures()
    sizes = {**SIZES, "width": width, "hidden": 4 * width, "heads": max(1, width // 64), "layers": layers}
    speech = Speech.read(corpora / "speech" / f"tuxpaint-{language}", features)
    folders = [corpora / "speech" / name for name in (f"tuxpaint-{language}", *(alone or ALONE))]
    files, groups = sound_alone(folders)
    waves = stored_waves(files, features, most_seconds=LONGEST)
    common: dict[str, Any] = {"precision": precision, "device": device, "keep": 1}
    untuned = pretrain_on_sounds(
        waves,
        out / "pretrained",
        groups=groups,
        valid=speech.parts["valid"].waves,
        sizes=sizes,
        features=features,
        how=SoundPretraining(
            seconds=seconds,
            batching=RowCount(rows),
            settings=qkv.TrainSettings(steps=steps, evaluate_every=max(1, steps // 12), **common),
            optimizer=partial(adamw, learning_rate=learning_rate, betas=(0.9, 0.98), epsilon=1e-6),
        ),
    )
    how = SpeechTraining(
        head_first=taught_steps // 10,
        batching=TokenBudget(round(batch_seconds * features.rate), multiple_of=1600),
        settings=qkv.TrainSettings(
            steps=taught_steps, evaluate_every=max(1, taught_steps // 20), watch="cer", **common
        ),
        optimizer=partial(adamw, learning_rate=taught_rate, betas=(0.9, 0.98)),
    )
    amounts = {"": speech.parts["train"]} | ({f", {less:g} minutes": speech.first(less)} if less else {})
    starts: dict[str, dict[str, Any]] = {
        "pre-trained": {"model": untuned, "sizes": TAUGHT, "how": how},
        "pre-trained, all learns": {"model": untuned, "sizes": TAUGHT, "how": replace(how, frozen_frames=False)},
        "from scratch": {"sizes": {**sizes, **TAUGHT}, "how": how},
    }
    taught = {}
    for amount, data in amounts.items():
        for name, start in starts.items():
            folder = out / (name.replace(",", "").replace(" ", "-") + ("-less" if amount else ""))
            listener = train_listener(data, folder, valid=speech.parts["valid"], features=features, **start)
            taught[name + amount] = {
                **finished(folder),
                "minutes_of_speech": minutes_of(data.waves),
                **scores(listener, speech, data.texts),
            }
    session = read_json(out / "pretrained" / "run.json")["sessions"][-1]
    write_json(
        out / "result.json",
        {
            "model": "wav2vec2",
            "sizes": asdict(untuned.model.sizes),
            "parameters": sum(parameter.numel() for parameter in untuned.model.parameters()),
            "parameters_taught": sum(parameter.numel() for parameter in listener.model.parameters()),
            "device": session["hardware"]["device"],
            "versions": session["versions"],
            "language": language,
            "minutes_alone": {
                folder.name: minutes_of([wave for wave, name in zip(waves, groups, strict=True) if name == folder.name])
                for folder in folders
            },
            "sounds_alone": len(waves),
            "speech": {
                part: {
                    "sounds": len(data),
                    "minutes": minutes_of(data.waves),
                    "words": sum(len(text.split()) for text in data.texts),
                }
                for part, data in speech.parts.items()
            },
            "unseen_words": speech.unseen_words(),
            "recipe": {
                "sound alone": f"{steps} updates of {rows} rows of {seconds:g} s, AdamW {learning_rate:g}, "
                "warm-up over 8%, then a line to 0",
                "hidden frames": "0.65 in spans of 10, 100 distractors, temperature from 2 to 0.5, diversity 0.1",
                "teaching": f"{taught_steps} updates of up to {batch_seconds:g} s, AdamW {taught_rate:g}, "
                "a rate in three stages",
                "hidden while taught": f"{TAUGHT['hidden_share']} of frames in spans of {TAUGHT['hidden_length']}, "
                f"{TAUGHT['hidden_channel_share']} of channels in spans of {TAUGHT['hidden_channel_length']}",
                "pre-trained": f"convolutions frozen; the head alone for {how.head_first} updates",
                "pre-trained, all learns": "the same with convolutions that learn too",
                "from scratch": "everything learns from the first update",
                "weights kept": "those with the lowest letter error rate on the validation sentences",
                "precision": precision,
            },
            "pretraining": finished(out / "pretrained"),
            "taught": taught,
        },
    )
    print((out / "result.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Speech:
    """Sounds with their texts, in three parts that share no text."""

    parts: dict[str, SpokenWaves]

    @classmethod
    def read(cls, folder: Path, features: WaveFeatures) -> Speech:
        manifests = {part: manifest(folder / f"{part}.jsonl") for part in PARTS}
        files = [folder / row["file"] for rows in manifests.values() for row in rows]
        waves = iter(stored_waves(files, features))
        parts = {}
        for part, rows in manifests.items():
            heard = [(next(waves), row["text"]) for row in rows]
            sure = [(wave, text) for wave, text in heard if len(text) <= FASTEST * len(wave) / features.rate]
            parts[part] = SpokenWaves([wave for wave, _ in sure], [text for _, text in sure])
        return cls(parts)

    def first(self, minutes: float) -> SpokenWaves:
        """A part of what there is to train on, drawn once and for all."""
        data = self.parts["train"]
        order = np.random.default_rng(0).permutation(len(data))
        until = np.cumsum([minutes_of([data.waves[number]]) for number in order])
        some = order[: max(1, int((until <= minutes).sum()))].tolist()
        return SpokenWaves([data.waves[number] for number in some], [data.texts[number] for number in some])

    def unseen_words(self) -> float:
        """The share of test words that no training text holds."""
        known = {word for text in self.parts["train"].texts for word in text.split()}
        words = [word for text in self.parts["test"].texts for word in text.split()]
        return sum(word not in known for word in words) / len(words)


def manifest(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        raise QkvError(f"There is no {file}: `make corpora` fetches it.")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def sound_alone(folders: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """All that may be heard without its text, and who speaks: nothing to validate or test on is among it."""
    files, groups = [], []
    for folder in folders:
        found = manifest(folder / "sounds.jsonl")
        if (folder / "train.jsonl").is_file():
            found += manifest(folder / "train.jsonl")
        files += [folder / row["file"] for row in found]
        groups += [folder.name] * len(found)
    return files, groups


def minutes_of(waves: Sequence[Any]) -> float:
    return sum(len(wave) for wave in waves) / WaveFeatures().rate / 60


def finished(folder: Path) -> dict[str, Any]:
    return {**asdict(read_result(folder)), "folder": folder.name}


def scores(listener: Listener, speech: Speech, texts: Sequence[str]) -> dict[str, Any]:
    """Error rates on the test part; how a beam search weighs the language model is chosen on the validation part."""
    language = WordNGrams(texts, order=3)
    beams = {
        choice: Beam(width=BEAM_WIDTH, least=-4.0, language=language, weight=choice[0], bonus=choice[1])
        for choice in BEAMS
    }
    valid = {choice: word_error_rate(said(listener, speech, "valid", beam), speech.parts["valid"].texts)
             for choice, beam in beams.items()}  # fmt: skip
    best = min(valid, key=lambda choice: valid[choice])
    wanted = speech.parts["test"].texts
    found = {"greedy": said(listener, speech, "test", None), "beam": said(listener, speech, "test", beams[best])}
    return {
        "beam": {"weight": best[0], "bonus": best[1], "valid_wer": valid[best], "order": 3, "width": BEAM_WIDTH},
        "test": {
            way: {
                "wer": word_error_rate(texts, wanted),
                "wer_range": likely_range(texts, wanted, str.split),
                "cer": character_error_rate(texts, wanted),
                "cer_range": likely_range(texts, wanted, list),
                "whole": sum(one == text for one, text in zip(texts, wanted, strict=True)) / len(wanted),
            }
            for way, texts in found.items()
        },
        "examples": [
            {"wanted": wanted[number], **{way: texts[number] for way, texts in found.items()}}
            for number in range(0, len(wanted), max(1, len(wanted) // 12))
        ],
    }


def said(listener: Listener, speech: Speech, part: str, beam: Beam | None) -> list[str]:
    waves = [wave.float() for wave in speech.parts[part].waves]
    return [each.text for each in listener.run(waves, beam, rows=32)]


def likely_range(said: Sequence[str], wanted: Sequence[str], split: Callable[[str], list[str]]) -> tuple[float, float]:
    """Between which rates 95 of 100 draws of as many sentences lie."""
    edits = np.array([edit_distance(split(one), split(text)) for one, text in zip(said, wanted, strict=True)])
    counts = np.array([len(split(text)) for text in wanted])
    drawn = np.random.default_rng(0).integers(0, len(edits), (RESAMPLED, len(edits)))
    rates = edits[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(rates, (0.025, 0.975))
    return float(low), float(high)


if __name__ == "__main__":
    try:
        typer.run(main)
    except QkvError as error:
        sys.exit(f"qkv: {error}")
