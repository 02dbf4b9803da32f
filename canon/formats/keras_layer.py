"""What a Keras layer is to the reader, and the options that many of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from canon.formats.keras_call import Call
from canon.formats.keras_groups import Entry

Options = Mapping[str, Any]
STATISTICS = ("moving_mean", "moving_variance")
"""Roles that training does not touch: Keras lists them after all others."""


def _named(wanted: Sequence[str], entries: Sequence[Entry]) -> Sequence[str] | None:
    """The roles of a layer's entries: their own where they are those wanted, else in Keras's order."""
    roles = [e.role for e in entries]
    if len(set(roles)) == len(roles) and set(roles) == set(wanted):
        return roles
    return wanted if len(entries) == len(wanted) else None


@dataclass(frozen=True)
class Layer:
    """build adds a call to the graph, and returns the names of its values where it has not just one of its own name.

    weights: which roles the options ask for, in Keras's order;
    named: the roles of what a file holds, or None where they do not go together;
    within: the groups below a layer's own where Keras 3 keeps them, with the roles that each holds.
    """

    build: Callable[[Call], tuple[str, ...] | None]
    weights: Callable[[Options], tuple[str, ...]] = lambda cfg: ()
    named: Callable[[Sequence[str], Sequence[Entry]], Sequence[str] | None] = _named
    within: Callable[[Options], tuple[tuple[str, tuple[str, ...]], ...]] | None = None
    keeps_mask: bool = False
    """Whether a mask of its input goes on beside its output."""

    def places(self, cfg: Options) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(group below the layer's own, roles in it) as Keras 3 keeps them."""
        return self.within(cfg) if self.within is not None else (("", self.weights(cfg)),)


def with_bias(*roles: str) -> Callable[[Options], tuple[str, ...]]:
    """Roles, and a bias unless the options leave it out."""
    return lambda cfg: (*roles, "bias") if cfg.get("use_bias", True) else roles


def spatial(c: Call) -> int:
    """How many spatial axes a class speaks of: Conv2D, Conv2DTranspose, MaxPooling1D."""
    return next(int(letter) for letter in c.cls if letter.isdigit())


def flips(c: Call, role: str, axes: range) -> tuple[int, ...]:
    """Axes of a stored convolution kernel to flip; Keras converts Theano's kernels this way."""
    name = f"{c.layer}/{role}"
    if c.graph.era.unknown_backend and name not in c.graph.flips_unknown:
        c.graph.flips_unknown.append(name)
    return tuple(axes) if c.graph.era.theano else ()


def bias(c: Call, size: int | None) -> dict[str, str]:
    """The bias as parameters, where there is one."""
    return {"bias": c.tensor("bias", (size,))} if "bias" in c.weights else {}


def input_channels(c: Call) -> int | None:
    """How many channels come in."""
    return c.shape[0] if c.channels == "first" else c.shape[-1]


def size(c: Call, key: str) -> int:
    """An option that is a positive whole number."""
    value = c.cfg[key]
    if not isinstance(value, int) or value < 1:
        raise c.refuse(f"with {key}={value!r} is not supported")
    return value


def window(c: Call, rank: int) -> dict[str, Any]:
    """Strides, dilation, padding and channels of a convolution."""
    padding = c.cfg.get("padding", "valid")
    if padding not in ("valid", "same") and not (padding == "causal" and rank == 1):
        raise c.refuse(f"with padding={padding!r} is not supported")
    return {
        "strides": c.sizes("strides", rank),
        "dilation": c.sizes("dilation_rate", rank),
        "padding": padding,
        "channels": c.channels,
    }
