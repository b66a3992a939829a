"""Runs in a line each: what they are, how far they came, how good and how fast they are; chosen and put in order."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from qkv.errors import QkvError, nearest_or_all
from qkv.train.history import RunHistory

_CONDITION = re.compile(r"([\w.-]+)\s*(!=|>=|<=|=|>|<)\s*(.*)")
_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip


@dataclass(frozen=True)
class RunSummary:
    """One run; None is what its folder does not tell."""

    run: str  # its folder
    state: str  # running, finished, stopped or failed
    why: str  # it failed or was stopped
    family: str | None
    size: str | None
    parameters: int | None
    data: str | None
    data_fingerprint: str | None
    steps: int
    figure: str  # the validation figure that decides
    best: float | None
    last: float | None
    loss: float | None  # of the last window of training
    tokens_per_second: float | None
    counted: str  # what these tokens are: texts, pictures
    flops_utilisation: float | None  # share of what the device has
    data_wait_share: float | None  # of the time
    peak_memory: int | None  # bytes
    seconds: float | None
    when: str | None  # it was started
    device: str | None
    command: str
    repeat: str


def summary(history: RunHistory) -> RunSummary:
    settings, session = history.settings, history.session
    state, why = history.state
    return RunSummary(
        run=str(history.folder),
        state=state,
        why=why,
        family=settings.get("family"),
        size=_size(settings.get("sizes")),
        parameters=history.parameters,
        data=_data(history.options.get("data")),
        data_fingerprint=history.described.get("data"),
        steps=max((record["step"] for record in history.records), default=0),
        figure=history.watched[0],
        best=history.figure("best"),
        last=history.figure("last"),
        loss=next((each.get("loss") for each in reversed(history.of_kind("train"))), None),
        tokens_per_second=history.middle("tokens_per_second"),
        counted=str(history.latest("counted") or "tokens"),
        flops_utilisation=history.middle("flops_utilisation"),
        data_wait_share=history.middle("data_wait_share"),
        peak_memory=history.latest("peak_memory"),
        seconds=history.latest("seconds"),
        when=session.get("started"),
        device=session.get("hardware", {}).get("device"),
        command=history.command,
        repeat=history.repeat,
    )


def _size(sizes: Any) -> str | None:
    """`128×2`: how wide and how deep."""
    if not isinstance(sizes, Mapping) or "width" not in sizes:
        return None
    layers = [value for name, value in sizes.items() if name.endswith("layers") and isinstance(value, int)]
    return f"{sizes['width']}×{'+'.join(map(str, layers))}" if layers else str(sizes["width"])


def _data(given: Any) -> str | None:
    if isinstance(given, list):  # several that are mixed, or one
        return ", ".join(filter(None, map(_data, given)))
    return None if given is None else "standard input" if given == "-" else Path(str(given)).name


def order(runs: Sequence[RunHistory], key: str, backwards: bool = False) -> list[RunHistory]:
    """By a column or a setting; those that lack it come last, either way."""
    check_name(key, runs)
    known = [run for run in runs if value_of(run, key) is not None]
    others = [run for run in runs if value_of(run, key) is None]
    if len({isinstance(value_of(run, key), int | float) for run in known}) < 2:
        known = sorted(known, key=lambda run: value_of(run, key), reverse=backwards)
    else:  # numbers and texts
        known = sorted(known, key=lambda run: str(value_of(run, key)), reverse=backwards)
    return known + others


def select(runs: Sequence[RunHistory], conditions: Sequence[str]) -> list[RunHistory]:
    """Those that fulfil all of `family=gpt2`, `steps>=100`, `train.seed!=0`; what a run does not tell fulfils none."""
    for spelled in conditions:
        found = _CONDITION.fullmatch(spelled.strip())
        if found is None:
            raise QkvError(f"The condition {spelled!r} should be spelled like family=gpt2, best<2.5 or train.seed!=0.")
        name, sign, wanted = found.groups()
        if runs:
            check_name(name, runs)
        runs = [run for run in runs if fulfils(value_of(run, name), sign, wanted)]
    return list(runs)


def fulfils(value: Any, sign: str, wanted: str) -> bool:
    if value is None:
        return False
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return _TESTS[sign](float(value), float(wanted))
        except ValueError:
            raise QkvError(f"{wanted!r} should be a number to be compared with {value}.") from None
    return _TESTS[sign](str(value).lower(), wanted.lower())


def value_of(run: RunHistory, name: str) -> Any:
    name = name.replace("-", "_")
    if name in COLUMNS:
        return getattr(summary(run), name)
    value = flat_settings(run).get(name)
    return value if value is None or isinstance(value, int | float | str) else str(value)


def check_name(name: str, runs: Sequence[RunHistory]) -> None:
    known = dict.fromkeys(COLUMNS)
    for run in runs:
        known |= dict.fromkeys(flat_settings(run))
    if name.replace("-", "_") not in known:
        raise QkvError(f"Runs have no column or setting {name}: {nearest_or_all(name, known)}")


def flat_settings(run: RunHistory) -> dict[str, Any]:
    """All settings by dotted name, such as `train.seed` and `optimizer.groups.0.weight_decay`."""
    return dict(_flat(run.settings, ""))


def _flat(value: Any, prefix: str) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        inner = list(value.items())
    elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        inner = [(str(number), each) for number, each in enumerate(value)]
    else:
        return [(prefix.removesuffix("."), value)]
    return [pair for name, each in inner for pair in _flat(each, f"{prefix}{name}.")]


COLUMNS = tuple(field.name for field in fields(RunSummary))
