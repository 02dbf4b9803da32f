"""What files of one graph have in common, found out once: so that the next one costs a pass over its numbers.

Folding and deriving a symmetry take milliseconds whatever a network's size. A plan is the path kernel of the graph as it is
stored. It is made from the first file that has the graph, kept only if it gives there what the folded network gives, and
asked for every further file; a file in which it meets a unit that folding treats apart (constant, never active), or a number
that is not finite, goes the long way.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from canon.compare.check import bare
from canon.compare.comparing import FLOAT32, rounding, smallest_normal
from canon.forward import affine_depth, probe_inputs
from canon.network import Network
from canon.ops import Op, kind_of
from canon.ops.activations import Elementwise, Softmax
from canon.ops.base import Array
from canon.symmetry import derive
from canon.zoo.fingerprint import (
    CHEAP,
    PATHS,
    ROUNDINGS,
    SAMPLES,
    SMALL,
    Figures,
    Fingerprint,
    added_up,
    change,
    combined,
    fingerprint,
    floats,
    in_order,
    outputs,
    tensor_digest,
    work,
)
from canon.zoo.graphs import NoPathsError, path_kernel
from canon.zoo.kernels import EVEN
from canon.zoo.paths import PROBES, Paths
from canon.zoo.steps import Inputs

_AGREE = 1e-9
"""How near the two ways of computing a figure have to be."""
_KEPT = 256
_ENTRIES = 1 << 17
"""Entries of all files together that are handled at a time."""


@dataclass(frozen=True)
class Plan:
    """network: the first file's; structure: of its folded graph; paths: None where only the long way is known; dense:
    whether it runs on probes together with others.
    """

    network: Network
    structure: str
    paths: Paths | None
    dense: bool
    run: bool

    def at_once(self) -> int:
        """How many files to hand over together."""
        return max(1, _ENTRIES // max(1, self.network.parameters))

    def fingerprints(self, tensors: Mapping[str, Array]) -> list[Fingerprint]:
        """One for each file. tensors: (files, *shape) each.

        Raises NotFinite, NumericError and GraphError if a file has to go the long way, and it leads there.
        """
        files = len(next(iter(tensors.values())))
        found: list[Figures | None] = [None] * files
        if self.paths is not None:
            given = Inputs(tensors, {}, np.full(files, change(self.network)))
            values, room = self.paths.run(given)
            good = np.isfinite(values).all(axis=1) & ~given.suspect
            found = [Figures(PATHS, floats(v), floats(r)) if ok else None for v, r, ok in zip(values, room, good, strict=True)]
        seen: list[Figures | None] = [None] * files
        if self.dense:
            seen = [*self.outputs(tensors)]
        hashes, order = self._hashes(tensors), in_order(self.network, tensors)
        out: list[Fingerprint] = []
        for i, (shape, outs) in enumerate(zip(found, seen, strict=True)):
            if shape is None or outs is None:
                network = self.network.with_tensors({name: t[i] for name, t in tensors.items()})
                if shape is None:
                    out.append(fingerprint(network, self.run))
                    continue
                outs = outputs(network) if self.run else Figures("")
            out.append(Fingerprint(self.structure, shape, outs, hashes[i], order[i]))
        return out

    def _hashes(self, tensors: Mapping[str, Array]) -> list[str]:
        digests: list[list[bytes]] = [[] for _ in next(iter(tensors.values()))]
        for name, t in tensors.items():
            kind, together = self.network.stored_type(name), np.ascontiguousarray(t)
            for own, part in zip(digests, together, strict=True):
                own.append(tensor_digest(part, kind, part.shape))
        return [combined(own) for own in digests]

    def outputs(self, tensors: Mapping[str, Array]) -> list[Figures]:
        """Outputs on probes of files whose graph is dense layers and activations, all at once."""
        short, free = bare(self.network)
        start = probe_inputs(self.network, np.random.default_rng(0), SAMPLES, 1.0)
        files = len(next(iter(tensors.values())))
        values = {v: np.broadcast_to(x, (files, *x.shape)) for v, x in start.items()}
        sizes = {v: np.abs(x) for v, x in values.items()}
        with np.errstate(all="ignore"):
            for op in short.ops:
                values[op.output], sizes[op.output] = _together(op, values[op.inputs[0]], sizes[op.inputs[0]], tensors)
        rate = ROUNDINGS * max(rounding(self.network), FLOAT32) * affine_depth(short)
        return added_up([values[v] for v in short.outputs], [sizes[v] for v in short.outputs], free, rate)


def _together(op: Op, x: Array, m: Array, tensors: Mapping[str, Array]) -> tuple[Array, Array]:
    """An operation on the values and magnitudes of several files, (files, samples, *shape) each."""
    if op.kind == "dense":
        w = np.asarray(tensors[op.params["kernel"]], np.float64).swapaxes(1, 2)
        y, size = x @ w, m @ np.abs(w)
        if "bias" in op.params:
            b = np.asarray(tensors[op.params["bias"]], np.float64)[:, None]
            y, size = y + b, size + np.abs(b)
        return y, size
    if op.kind == "flatten":
        return x.reshape(*x.shape[:2], -1), m.reshape(*m.shape[:2], -1)
    return kind_of(op).both(op, [x], [m], {})


def _dense(network: Network) -> bool:
    """Whether a graph is a chain of dense layers on vectors and functions of single numbers."""
    for op in bare(network)[0].ops:
        kind = kind_of(op)
        if len(op.inputs) != 1 or None in network.shapes[op.output]:
            return False
        if op.kind == "dense" and len(network.shapes[op.output]) == 1:
            continue
        if op.kind in ("flatten", "linear", "dropout") and not op.params:
            continue
        plain = isinstance(kind, Elementwise) or (isinstance(kind, Softmax) and int(op.attrs.get("axis", -1)) == -1)
        if not plain or op.params or op.kind == "unknown_activation":
            return False
    return all(n is not None for shape in network.inputs.values() for n in shape)


class Plans:
    """The plans made so far, the last used ones kept. probes: whether networks are run (None: where that costs little)."""

    def __init__(self, probes: bool | None = None) -> None:
        self._probes = probes
        self._plans: OrderedDict[str, Plan] = OrderedDict()

    def fingerprint(self, network: Network) -> tuple[Fingerprint, Plan]:
        """The fingerprint of a network, and the plan for others of its graph.

        Raises NotFinite, NumericError and GraphError.
        """
        key = _key(network)
        plan = self._plans.get(key)
        if plan is not None:
            self._plans.move_to_end(key)
            network.check_finite()
            stacked = {name: t[None] for name, t in network.tensors.items()}
            return plan.fingerprints(stacked)[0], plan
        run = self._probes if self._probes is not None else work(network) <= 4 * network.parameters + CHEAP
        found = fingerprint(network, run)
        plan = _made(network, found, run)
        self._plans[key] = plan
        if len(self._plans) > _KEPT:
            self._plans.popitem(last=False)
        return found, plan


def _key(network: Network) -> str:
    """A hash of a graph with its names, shapes and types."""
    shapes = [(n, t.shape, network.stored_type(n)) for n, t in network.tensors.items()]
    ops = [
        (op.kind, op.name, op.inputs, op.output, sorted(op.params.items()), sorted(map(str, op.attrs.items())))
        for op in network.ops
    ]
    said = repr((shapes, ops, list(network.inputs.items()), network.outputs))
    return hashlib.sha256(said.encode()).hexdigest()


def _made(network: Network, first: Fingerprint, run: bool) -> Plan:
    stacked = {n: t[None] for n, t in network.tensors.items()}
    empty = {n: np.broadcast_to(np.zeros((), t.dtype), t.shape) for n, t in network.tensors.items()}
    plan = Plan(network.with_tensors(empty), first.structure, _stored_paths(network, first.figures), False, run)
    if run and first.outputs.kind and _dense(network):
        again = plan.outputs(stacked)[0]
        gap = np.abs(np.subtract(again.values, first.outputs.values))
        if again.kind and (gap <= _AGREE * np.array(first.outputs.room) / (ROUNDINGS * FLOAT32)).all():
            plan = replace(plan, dense=True)
    return plan


def _stored_paths(network: Network, figures: Figures) -> Paths | None:
    """The path kernel of a graph as stored, if it gives for its first file what the folded network gives."""
    if figures.kind != PATHS or smallest_normal(network) > SMALL:
        return None
    try:
        paths = path_kernel(network, derive(network), stored=True)
    except NoPathsError:
        return None
    if len(figures.values) == PROBES * len(EVEN):
        paths = paths.only(EVEN)
    given = Inputs({n: t[None] for n, t in network.tensors.items()}, {}, np.array([change(network)]))
    values = paths.run(given)[0][0]
    near = len(values) == len(figures.values) and np.abs(values - np.array(figures.values)).max() <= _AGREE
    return paths if near else None
