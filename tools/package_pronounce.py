"""Train the pronunciation model that comes with qkv, into `src/qkv/weights/packaged/pronounce/`.

    python -m tools.package_pronounce

It is what `recipes/pronounce.py` trains, with ten times its updates: a quarter of an hour of one CPU core. Weights are
written in half the bytes, and `made.json` beside them holds what these score on all words that were held out.
"""

import json
from pathlib import Path

import qkv
from qkv.cli.process import share_cores
from qkv.data.pronunciation import pronunciation_splits
from recipes.pronounce import PACKAGED, UPDATES, learn

FOLDER = Path(__file__).parent.parent / "src" / "qkv" / "weights" / "packaged" / PACKAGED
TIMES = 10


def main() -> None:
    share_cores()
    run = Path("runs") / "packaged-pronounce"
    learn(run, TIMES * UPDATES, "cpu")
    package(run)


def package(run: Path) -> None:
    """The model of a finished run, in float16; what is measured is what was written."""
    from qkv.weights.save import save_model, tensors_of

    model = qkv.load(run, "cpu")
    save_model(model.model, FOLDER, {name: tensor.half() for name, tensor in tensors_of(model.model).items()})
    model.save_tokenizers(FOLDER)
    test = qkv.Scores(pronunciation_splits().test, ["per", "ser"], limit=None)
    figures = test.of([result.text for result in qkv.load(FOLDER, "cpu").run(test.sources, beams=1)])
    made = {
        "what": "letters of an English word to its phonemes, ARPAbet without stress",
        "command": "python -m tools.package_pronounce",
        "data": "the CMU pronouncing dictionary in qkv/data/embedded, without the words that are held out",
        "updates": qkv.read_result(run).step,
        "held_out_words": len(test.sources),
        "phoneme_error_rate": round(figures["per"], 4),
        "word_error_rate": round(figures["ser"], 4),
    }
    (FOLDER / "made.json").write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(made, indent=2))


if __name__ == "__main__":
    main()
