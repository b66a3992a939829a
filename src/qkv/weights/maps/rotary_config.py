"""Rotary positions as the configurations of Hugging Face's transformers describe them, in both of its spellings.

Older files have "rope_theta" and "rope_scaling", newer ones "rope_parameters", which holds both. What is written here
is the older spelling, which all versions read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from qkv.errors import QkvError
from qkv.parts.position import yarn_sharpness
from qkv.weights.config_map import Together

KEYS = frozenset({"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"})
READ_HERE = "read here are 'default', 'linear', 'llama3' and 'yarn'"


def _linear(said: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    return {"stretch": "linear", "stretch_factor": _number(said, "factor")}


def _llama3(said: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "stretch": "llama3",
        "stretch_factor": _number(said, "factor"),
        "slow_turns": _number(said, "low_freq_factor"),
        "fast_turns": _number(said, "high_freq_factor"),
        "trained_positions": said.pop("original_max_position_embeddings", config.get("max_position_embeddings")),
    }


def _yarn(said: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    factor = _number(said, "factor")
    sharpness = said.pop("attention_factor", None)
    if said.pop("truncate", True) is not True:
        raise QkvError("The config.json has yarn without truncate, which is not read here.")
    if sharpness is None:
        # Two further numbers change it only where both are there.
        scale, all_scale = said.pop("mscale", None), said.pop("mscale_all_dim", None)
        sharpness = yarn_sharpness(factor)
        if scale and all_scale:
            sharpness = _scaled(sharpness, scale) / _scaled(sharpness, all_scale)
    else:
        said.pop("mscale", None), said.pop("mscale_all_dim", None)
    return {
        "stretch": "yarn",
        "stretch_factor": factor,
        "sharpness": float(sharpness),
        "slow_turns": float(said.pop("beta_slow", None) or 1.0),
        "fast_turns": float(said.pop("beta_fast", None) or 32.0),
        "trained_positions": said.pop("original_max_position_embeddings", config.get("max_position_embeddings")),
    }


def _scaled(sharpness: float, scale: float) -> float:
    return 1.0 + scale * (sharpness - 1.0)


STRETCHES: dict[str, Callable[[dict[str, Any], Mapping[str, Any]], dict[str, Any]]] = {
    "default": lambda said, config: {"stretch": "none"},
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}


def _number(said: dict[str, Any], key: str) -> float:
    value = said.pop(key, None)
    if type(value) not in (int, float):
        raise QkvError(f"The config.json has {key} {value!r} for its rotary positions; it should be a number.")
    return float(value)


def _read(config: Mapping[str, Any], usual: float = 10000.0) -> dict[str, Any]:
    """`usual` is the base of a configuration that names none."""
    older, newer = config.get("rope_scaling"), config.get("rope_parameters")
    if older and newer and older != newer:
        raise QkvError('The config.json has "rope_scaling" and "rope_parameters", which say different things.')
    chosen = older or newer or {}
    if not isinstance(chosen, dict):
        raise QkvError(f"The config.json describes rotary positions by {chosen!r:.60}, not by an object.")
    said = dict(chosen)
    base = said.pop("rope_theta", config.get("rope_theta", usual))
    if type(base) not in (int, float) or config.get("rope_theta", base) != base:
        raise QkvError(
            f"The config.json has rope_theta {config.get('rope_theta')!r} and {base!r}: one number is needed."
        )
    for where in (said, config):
        if where.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise QkvError("The config.json turns only a part of each head (partial_rotary_factor): here all turn.")
    said.pop("partial_rotary_factor", None)
    older_kind = said.pop("type", "default")
    kind = said.pop("rope_type", older_kind)
    if kind not in STRETCHES:
        raise QkvError(f"The config.json has rotary positions of the type {kind!r}; {READ_HERE}.")
    sizes = STRETCHES[kind](said, config)
    if said:
        raise QkvError(f"The config.json says of {kind!r} rotary positions what they do not have: {', '.join(said)}.")
    return {"rotary_base": float(base), **sizes}


def _write(sizes: Any) -> dict[str, Any]:
    said: dict[str, Any] = {"rope_theta": sizes.rotary_base, "rope_scaling": None}
    if sizes.stretch == "none":
        return said
    scaling = {"rope_type": sizes.stretch, "factor": sizes.stretch_factor}
    if sizes.stretch != "linear":
        scaling["original_max_position_embeddings"] = sizes.trained_positions or sizes.positions
    if sizes.stretch == "llama3":
        scaling |= {"low_freq_factor": sizes.slow_turns, "high_freq_factor": sizes.fast_turns}
    if sizes.stretch == "yarn":
        scaling |= {
            "attention_factor": sizes.sharpness,
            "beta_slow": sizes.slow_turns,
            "beta_fast": sizes.fast_turns,
        }
    return {**said, "rope_scaling": scaling}


def rotary_of(usual: float) -> Together:
    return Together(KEYS, partial(_read, usual=usual), _write)


ROTARY = rotary_of(10000.0)
