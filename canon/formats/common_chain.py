"""Graphs for files that record none: the chain of layers that shapes prove, else every tensor by itself, held fast.

A chain is proved when each layer takes exactly what the one before gives out. Its nonlinearities are unknown, so are
positions (strides, pooling): values have spatial sizes None. Where branches may join, nothing is proved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from canon.errors import UsageError
from canon.network import Network
from canon.ops import Op
from canon.ops.base import Array, Shape

ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in ("relu", "tanh", "sigmoid", "softsign", "selu", "silu", "softplus", "linear")},
    "swish": ("silu", {}),
    "elu": ("elu", {"alpha": 1.0}),
    "relu6": ("relu6", {"cap": 6.0}),
    "gelu": ("gelu", {"approximate": False}),
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh"), ("gelu", {"approximate": True})),
}
"""Nonlinearities that their name alone determines."""

JOINS = frozenset(
    ("add", "sum", "plus", "concat", "concatenate", "cat", "merge", "mul", "multiply", "sub", "subtract", "average",
     "maximum", "minimum", "dot", "lambda", "permute", "reshape", "slice", "split", "attention",
     "attn", "res", "residual", "skip", "shortcut", "downsample", "branch", "join", "gate", "tf", "op", "operators")
)  # fmt: skip
"""Words in names of layers where several values may meet, or units change places."""


@dataclass(frozen=True)
class Part:
    """A layer as its tensors tell it: role -> tensor name. Roles as in ops: kernel, bias, gamma, beta, mean, variance;
    depthwise and pointwise for separable convolutions, recurrent_kernel, embeddings.
    """

    name: str
    roles: Mapping[str, str]


def may_join(names: Iterable[str], words: frozenset[str] = JOINS) -> str | None:
    """The first name that speaks of branches meeting."""
    for name in names:
        found = set(re.split(r"[^a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()))
        if found & words and not any(w.startswith("pool") for w in found):
            return name
    return None


def check_activation(name: str | None) -> None:
    """Raise UsageError for a nonlinearity that its name does not determine."""
    if name is not None and name not in ACTIVATIONS:
        raise UsageError("", f"activation {name!r} is not one of {', '.join(ACTIVATIONS)}")


def build(
    parts: Sequence[Part], tensors: Mapping[str, Array], *, channels: str, eps: float, activation: str | None
) -> Network | None:
    """The chain through all parts in order, or None where shapes do not prove it.

    channels: where values keep them; activation: what to take for every nonlinearity but that of the last layer.
    """
    chain = _Chain(tensors, channels, eps, activation)
    for i, part in enumerate(parts):
        if not chain.extend(part, parts[i + 1 :]):
            return None
    return Network(tensors, tuple(chain.ops), chain.inputs, (chain.value,)) if parts else None


def apart(parts: Sequence[Part], tensors: Mapping[str, Array]) -> Network:
    """Every part an operation that canon knows nothing about."""
    attrs = {"class_name": "unknown", "shape": [None]}
    ops = tuple(Op("opaque", part.name, ("input",), part.name, part.roles, attrs) for part in parts)
    return Network(tensors, ops, {"input": (None,)}, tuple(op.output for op in ops))


@dataclass
class _Chain:
    tensors: Mapping[str, Array]
    channels: str
    eps: float
    activation: str | None
    ops: list[Op] = field(default_factory=list)
    inputs: dict[str, Shape] = field(default_factory=dict)
    value: str = ""
    width: int = 0
    spatial: int = 0
    """How many axes the value has besides its channels."""

    def extend(self, part: Part, rest: Sequence[Part]) -> bool:
        """Add a layer; False where it does not take what came before."""
        roles = set(part.roles)
        if not self.value and not self._start(part, rest):
            return False
        if roles - {"bias"} == {"kernel"}:
            kernel = self._shape(part, "kernel")
            known = self._dense(part, kernel) if len(kernel) == 2 else self._conv(part, kernel)
        elif {"mean", "variance"} <= roles <= {"gamma", "beta", "mean", "variance"}:
            known = self._norm(part)
        elif roles - {"bias", "pointwise"} == {"depthwise"}:
            known = self._separable(part)
        elif "recurrent_kernel" in roles or "embeddings" in roles:
            return self._opaque(part, rest)  # it has its nonlinearities inside
        else:
            return False
        if known and rest:
            self._activate(part, rest[0])
        return known

    def _shape(self, part: Part, role: str) -> tuple[int, ...]:
        return self.tensors[part.roles[role]].shape

    def _start(self, part: Part, rest: Sequence[Part]) -> bool:
        """The input: its width from the first layer, its rank from the first kernel."""
        if "embeddings" in part.roles:
            self.inputs["input"] = (None,)
            self.value = "input"
            return True
        if "recurrent_kernel" in part.roles:
            self.width, self.spatial = (self._shape(part, "kernel") if "kernel" in part.roles else (0,))[0], 1
        elif "kernel" in part.roles and self._rank(part) >= 0:
            self.width, self.spatial = self._shape(part, "kernel")[1], self._rank(part)
        elif "mean" in part.roles:
            ranks = [self._rank(p) for p in rest if "kernel" in p.roles and "recurrent_kernel" not in p.roles]
            self.width, self.spatial = self._shape(part, "mean")[0], ranks[0] if ranks else 0
        if not self.width:
            return False
        self.inputs["input"] = self._value_shape()
        self.value = "input"
        return True

    def _value_shape(self) -> Shape:
        free = (None,) * self.spatial
        return (self.width, *free) if self.channels == "first" and self.spatial else (*free, self.width)

    def _add(self, kind: str, name: str, params: Mapping[str, str], **attrs: Any) -> None:
        self.ops.append(Op(kind, name, (self.value,), name, params, attrs))
        self.value = name

    def _params(self, part: Part, *roles: str) -> dict[str, str]:
        return {role: part.roles[role] for role in roles if role in part.roles}

    def _dense(self, part: Part, kernel: tuple[int, ...]) -> bool:
        out, inner = kernel
        if inner != self.width or (self.spatial and self.channels == "first"):
            if not self.spatial or inner % self.width:
                return False
            # the sizes of the positions are not known, but their product is
            k = inner // self.width
            shape = [self.width, k] if self.channels == "first" else [k, self.width]
            self._add("reshape", f"{part.name}/reshape", {}, shape=shape)
            self._add("flatten", f"{part.name}/flatten", {}, channels="last")
            self.spatial = 0
        self._add("dense", part.name, self._params(part, "kernel", "bias"))
        self.width = out
        return True

    def _conv(self, part: Part, kernel: tuple[int, ...]) -> bool:
        if len(kernel) < 3 or kernel[1] != self.width or len(kernel) - 2 != self.spatial:
            return False
        self._add("conv", part.name, self._params(part, "kernel", "bias"), padding="same", channels=self.channels)
        self.width = kernel[0]
        return True

    def _separable(self, part: Part) -> bool:
        out, _, *window = self._shape(part, "depthwise")
        if out % self.width or len(window) != self.spatial:
            return False
        only = "pointwise" not in part.roles
        params = {"kernel": part.roles["depthwise"], **(self._params(part, "bias") if only else {})}
        self._add(
            "depthwise_conv",
            part.name if only else f"{part.name}/depthwise",
            params,
            padding="same",
            channels=self.channels,
        )
        self.width = out
        if only:
            return True
        mix = self._shape(part, "pointwise")
        self._add("conv", part.name, {"kernel": part.roles["pointwise"], **self._params(part, "bias")}, channels=self.channels)
        self.width = mix[0]
        return mix[1] == out

    def _norm(self, part: Part) -> bool:
        if self._shape(part, "mean") != (self.width,):
            return False
        axis = 0 if self.channels == "first" and self.spatial else -1
        self._add("batch_norm", part.name, self._params(part, "gamma", "beta", "mean", "variance"), axis=axis, eps=self.eps)
        return True

    def _opaque(self, part: Part, rest: Sequence[Part]) -> bool:
        if "embeddings" in part.roles:
            ok, self.width, self.spatial = not self.ops, self._shape(part, "embeddings")[1], 1
        else:
            kernel = self._shape(part, "kernel") if "kernel" in part.roles else (0,)
            ok = kernel[0] == self.width
            self.width = self._shape(part, "recurrent_kernel")[0]
            # sequences come out where something reads sequences
            self.spatial = int(bool(rest) and ("recurrent_kernel" in rest[0].roles or self._rank(rest[0]) == 1))
        shape = list(self._value_shape())
        self._add(
            "opaque",
            part.name,
            part.roles,
            class_name="Embedding" if "embeddings" in part.roles else "recurrent",
            shape=shape,
        )
        return ok

    def _rank(self, part: Part) -> int:
        return len(self._shape(part, "kernel")) - 2 if "kernel" in part.roles else 0

    def _activate(self, part: Part, following: Part) -> None:
        """The nonlinearity after a layer; told which one, a batch norm is taken to stand before it, not after."""
        if self.activation is not None and "mean" in following.roles:
            return
        kind, attrs = ("unknown_activation", {}) if self.activation is None else ACTIVATIONS[self.activation]
        last = self.ops.pop()
        before = f"{part.name}/pre"
        self.ops.append(Op(last.kind, last.name, last.inputs, before, last.params, last.attrs))
        self.ops.append(Op(kind, f"{part.name}/{kind}", (before,), part.name, {}, attrs))
        self.value = part.name
