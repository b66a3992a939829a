"""Fine-tuning for numbers: how alike two texts are, how many stars a review gives. [devlin2019 §4.1]"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkv.api.fine_tuning import HOW, FineTuning, encoded, fine_tune, headed
from qkv.api.runs import divided
from qkv.data.labelled import RatedTexts, ValueRows
from qkv.errors import QkvError
from qkv.generate.reader import TextReader
from qkv.generate.readers import Rater
from qkv.models.head_choice import HeadChoice
from qkv.train.objectives.labels import RegressionLoss


def fine_tune_rater(
    model: TextReader,
    data: RatedTexts,
    folder: Path | str,
    *,
    valid: RatedTexts | None = None,
    objective: Any = RegressionLoss(),  # noqa: B008 (frozen)
    how: FineTuning = HOW,
    evaluate: Callable[[Rater], Mapping[str, float]] | None = None,
    name: str = "value",
) -> Rater:
    """Learn the number of a text, or of a pair of texts, which goes by `name`: the head has this one label."""
    if valid is not None and (valid.seconds is None) != (data.seconds is None):
        raise QkvError("Texts to validate on must be pairs where those to train on are, and only there.")
    use = Rater(headed(model.model, HeadChoice("classification", labels=(name,))), model.tokenizer)
    items, held = _rated(data), [] if valid is None else _rated(valid)
    if valid is None and how.hold_out:
        items, held = divided(items, how.hold_out, key=lambda item: item[0])

    def rows(some: Sequence[Any]) -> ValueRows:
        texts, seconds, values = zip(*some, strict=True)
        encodings = encoded(use, texts, seconds if data.seconds is not None else None, how)
        return ValueRows(use.rows(encodings), np.array(values, np.float32))

    return fine_tune(use, rows, items, held, objective, Path(folder), how, evaluate, data.seconds is not None)


def _rated(data: RatedTexts) -> list[tuple[str, str, float]]:
    """(first, second, number), the second empty where texts stand alone."""
    seconds = [""] * len(data.texts) if data.seconds is None else data.seconds
    return list(zip(data.texts, seconds, data.values, strict=True))
