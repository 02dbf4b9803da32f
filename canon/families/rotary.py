"""Frequencies of rotary positions, as config.json describes them: plain, linear, llama3 and YaRN.

A head of width d has d / 2 pairs; pair i turns by theta^(-2 i / d) radians a position (Su et al. 2021). Scalings to longer
contexts change the frequencies: divided by a factor (linear), only the low ones (llama3), or those between two bounds, with
a factor on queries and keys as well (YaRN; Peng et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from canon.errors import UnsupportedOp, UsageError
from canon.families.told import ASK, Told

Turns = Callable[[int, int], dict[str, Any]]
"""Attributes of a rotary op by the width of a head and the number of the block."""
LAYOUTS = ("half", "interleaved")
KINDS = ("default", "linear", "llama3", "yarn")
SLIDING, FULL = "sliding_attention", "full_attention"


def rotary(told: Told, theta: float, local: float | None, kind_of_block: Callable[[int], str]) -> Turns:
    """theta: what is taken where config.json has none; local: that of blocks with a window, where they have one of their own.

    Raises UnsupportedOp for a scaling that is not known, UsageError for one that is not described.
    """
    layout = told.get("rope_layout", str, default=ASK if told.config is None else "half")
    if layout and layout not in LAYOUTS:
        raise UsageError("rope layout", f"{layout!r} is neither {' nor '.join(LAYOUTS)}")
    said = told.raw("rope_scaling") or told.raw("rope_parameters") or {}
    if not isinstance(said, Mapping):
        raise UsageError("config.json: rope_parameters", "is no object")
    nested = {key: dict(value) for key, value in said.items() if isinstance(value, Mapping)}
    plain = {} if nested else dict(said)
    found = {}
    for kind in (FULL, SLIDING):
        here = nested.get(kind, plain)
        if kind == SLIDING and local is not None and not nested:
            here = {"rope_theta": _number(told.raw("rope_local_base_freq"), local)}
        found[kind] = {**here, "rope_theta": _theta(told, here, theta)}
    for here in found.values():
        if (name := _type(here)) not in KINDS:
            raise UnsupportedOp("config.json: rope_type", f"{name!r} is none of {', '.join(KINDS)}")
    longest = _number(told.raw("max_position_embeddings"), 0.0)
    return lambda width, index: _turns(found[kind_of_block(index)], width, longest, layout or LAYOUTS[0])


def _theta(told: Told, said: Mapping[str, Any], default: float) -> float:
    if told.options.get("rope_theta") is None and said.get("rope_theta") is not None:
        return _number(said["rope_theta"], default)
    return float(told.get("rope_theta", float, "rope_theta", default=ASK if told.config is None else default))


def _type(said: Mapping[str, Any]) -> str:
    return str(said.get("rope_type", said.get("type", "default")))


def _number(value: Any, default: float | None = None) -> float:
    if value is None and default is not None:
        return default
    if type(value) not in (int, float) or not 0 < value < 1e12:
        raise UsageError("config.json", f"{str(value)[:40]!r} in what it says of rotary positions, where a number belongs")
    return float(value)


def _turns(said: Mapping[str, Any], width: int, longest: float, layout: str) -> dict[str, Any]:
    turned = int(width * _number(said.get("partial_rotary_factor"), 1.0))
    theta, kind = said["rope_theta"], _type(said)
    frequencies = [theta ** (-2 * i / turned) for i in range(turned // 2)]
    factor = 1.0
    if kind == "linear":
        frequencies = [f / _number(said.get("factor")) for f in frequencies]
    elif kind == "llama3":
        frequencies = [_llama3(f, said, longest) for f in frequencies]
    elif kind == "yarn":
        frequencies, factor = _yarn(frequencies, said, longest, theta)
    return {"frequencies": frequencies, "layout": layout, **({"factor": factor} if factor != 1 else {})}


def _llama3(frequency: float, said: Mapping[str, Any], longest: float) -> float:
    context = _number(said.get("original_max_position_embeddings"), longest)
    low, high = _number(said.get("low_freq_factor")), _number(said.get("high_freq_factor"))
    factor, turns = _number(said.get("factor")), context * frequency / (2 * math.pi)
    share = min(max((turns - low) / (high - low), 0.0), 1.0)
    return (1 - share) * frequency / factor + share * frequency


def _yarn(frequencies: list[float], said: Mapping[str, Any], longest: float, theta: float) -> tuple[list[float], float]:
    context = _number(said.get("original_max_position_embeddings"), longest)
    factor = _number(said.get("factor"), longest / context)
    n = 2 * len(frequencies)

    def pair(turns: float) -> float:
        return n * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(_number(said.get("beta_fast"), 32.0)), pair(_number(said.get("beta_slow"), 1.0))
    if said.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n - 1)
    high = high + 0.001 if low == high else high
    out = []
    for i, f in enumerate(frequencies):
        share = min(max((i - low) / (high - low), 0.0), 1.0)
        out.append(share * f / factor + (1 - share) * f)
    return out, _yarn_factor(said, factor)


def _yarn_factor(said: Mapping[str, Any], factor: float) -> float:
    """What queries and keys are multiplied by."""

    def grown(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if said.get("attention_factor") is not None:
        return _number(said["attention_factor"])
    if said.get("mscale") and said.get("mscale_all_dim"):
        return grown(_number(said["mscale"])) / grown(_number(said["mscale_all_dim"]))
    return grown(1.0)
