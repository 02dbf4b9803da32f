"""What is in a file, for people: its spaces and why each has the group it has, what is fixed, what folds away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from canon.errors import CanonError, NotFinite
from canon.fold import Step, fold
from canon.network import Network
from canon.ops import Op
from canon.ops.base import Shape
from canon.run import Run, Stored
from canon.symmetry import Axis, Symmetry, Use, derive, leaves
from canon.symmetry.collect import AxisTerm, collect
from canon.symmetry.labels import find


@dataclass(frozen=True)
class CarryingAxis:
    """An axis of a tensor along which the units of a space lie, wholly or in part.

    tensor, axis: as canon holds it, (out, in, *kernel); path, stored_axis: the same in the file (stored_axis None where
    the stored array has no such axis of its own); alone: whether nothing else lies along it.
    """

    tensor: str
    axis: int
    path: str | None
    stored_axis: int | None
    alone: bool


@dataclass(frozen=True)
class SpaceDescription:
    """A space: its units, its group in words, where that group comes from, and the tensor axes that carry it."""

    name: str
    units: int
    group: str
    why: str
    axes: tuple[CarryingAxis, ...]
    over: str | None = None


@dataclass(frozen=True)
class BlockDescription:
    """Units inside a head that matrices turn among each other. over: the space of the heads, None where these keep their
    places; group: of one head; dimension: free real parameters of all heads together.
    """

    name: str
    size: int
    over: str | None
    group: str
    dimension: int


@dataclass(frozen=True)
class Description:
    """One checkpoint of a file. metrics: by checkpoint; inputs, outputs: shapes without batch, None for any size; fixed:
    axes of values that may not move, and why; folds: what is no freedom of the function; signs: how many signs are free,
    linear spaces left out.
    """

    path: str
    format: str
    graph: str
    activations_known: bool
    checkpoint: str
    checkpoints: tuple[str, ...]
    metrics: Mapping[str, Mapping[str, float]]
    parameters: int
    tensors: int
    dtype: str
    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]
    spaces: tuple[SpaceDescription, ...]
    fixed: Mapping[str, str]
    folds: tuple[Step, ...]
    log10_permutations: float
    continuous_dimension: int
    signs: int
    notes: tuple[str, ...] = field(default=())
    blocks: tuple[BlockDescription, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of `canon show --json`."""
        return {
            "schema": "canon.show/1",
            "path": self.path,
            "format": self.format,
            "graph": self.graph,
            "activations_known": self.activations_known,
            "parameters": self.parameters,
            "tensors": self.tensors,
            "dtype": self.dtype,
            "checkpoint": self.checkpoint,
            "checkpoints": list(self.checkpoints),
            "metrics": {step: _finite(values) for step, values in self.metrics.items()},
            "inputs": {v: list(shape) for v, shape in self.inputs.items()},
            "outputs": {v: list(shape) for v, shape in self.outputs.items()},
            "spaces": [{**asdict(s), "axes": [asdict(a) for a in s.axes]} for s in self.spaces],
            "blocks": [asdict(b) for b in self.blocks],
            "fixed": [{"axis": axis, "why": why} for axis, why in self.fixed.items()],
            "folds": [{**asdict(s), "units": list(s.units)} for s in self.folds],
            "symmetry": {
                "log10_permutations": self.log10_permutations,
                "continuous_dimension": self.continuous_dimension,
                "signs": self.signs,
            },
            "notes": list(self.notes),
        }


def describe(run: Run) -> Description:
    """Describe one run: of its tensors only folding looks at numbers. Raises GraphError with the path in front."""
    network = run.network
    notes = list(run.notes)
    folds: tuple[Step, ...] = ()
    try:
        symmetry = derive(network)
        try:
            network.check_finite()
            folds = fold(network).record
        except NotFinite as error:
            notes.append(f"no usable network: {error.where}: {error.what}")
    except CanonError as error:
        raise error.at(run.path) from error
    passes = {op.name: _Passes.of(network, op) for op in network.ops}
    return Description(
        run.path,
        run.format,
        run.graph,
        run.activations_known,
        run.checkpoint,
        run.checkpoints,
        run.metrics,
        network.parameters,
        len(network.tensors),
        network.main_type,
        network.inputs,
        {v: network.shapes[v] for v in network.outputs},
        tuple(_space(run, symmetry, name, passes) for name in symmetry.spaces),
        symmetry.fixed,
        folds,
        symmetry.log10_permutations,
        symmetry.continuous_dimension,
        _signs(symmetry),
        tuple(notes),
        tuple(BlockDescription(b.name, b.size, b.over or None, b.group, b.dimension) for b in symmetry.blocks.values()),
    )


def _signs(symmetry: Symmetry) -> int:
    """Free signs; those of linear spaces are no freedom of their own."""
    linear = [s.name for s in symmetry.spaces.values() if s.linear]
    return sum(g.size for g in symmetry.gauges.values() if g.kind == "sign" and not any(_carries(g.axis, s) for s in linear))


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {k: v if abs(v) < float("inf") else None for k, v in values.items()}


def _space(run: Run, symmetry: Symmetry, name: str, passes: Mapping[str, _Passes]) -> SpaceDescription:
    space = symmetry.spaces[name]
    axes = []
    for tensor, sides in symmetry.axes.items():
        stored = run.layout.get(tensor)
        for i, side in enumerate(sides):
            if _carries(side.axis, name):
                alone = isinstance(side.axis, Use)
                axes.append(CarryingAxis(tensor, i, stored.path if stored else None, _stored_axis(run, stored, i), alone))
    return SpaceDescription(
        name, space.size, symmetry.group(name), _why(run.network, symmetry, name, passes), tuple(axes), space.over
    )


def _stored_axis(run: Run, stored: Stored | None, axis: int) -> int | None:
    if stored is None:
        return None
    stored = next(iter(getattr(stored, "parts", ())), stored)
    # of a known family, the shape is the stored array's own, and what reshapes comes last
    if (getattr(stored, "final", None) if run.graph == "family" else stored.shape) is not None:
        return None
    return axis if stored.axes is None else stored.axes[axis]


def _carries(axis: Axis, space: str) -> bool:
    return any(isinstance(leaf, Use) and leaf.space == space for leaf in leaves(axis))


# where a group comes from


@dataclass(frozen=True)
class _Passes:
    """What one operation, looked at alone, lets through, for each axis of each value that it reads.

    single: axes along which it acts on single units; scale, sign: axes whose factors it stops; apart: whether it has a
    factor for each unit, so that the factors before and after it are free of each other.
    """

    single: frozenset[tuple[str, int]]
    scale: frozenset[tuple[str, int]]
    sign: frozenset[tuple[str, int]]
    apart: bool

    @classmethod
    def of(cls, network: Network, op: Op) -> _Passes:
        """Ask the operation itself, as the only one of a network."""
        tensors = {t: network.tensors[t] for t in op.params.values()}
        alone = Network(tensors, (op,), {v: network.shapes[v] for v in op.inputs}, (op.output,))
        said = collect(alone)
        axes = [(axis, (v, i)) for v in op.inputs for i, axis in enumerate(said.values[v])]
        places = {id(axis): place for axis, place in axes}
        scale, sign = (
            frozenset(places[id(terms[0][0])] for terms in equations if len(terms) == 1 and id(terms[0][0]) in places)
            for equations in (said.scale, said.sign)
        )
        single = frozenset(place for axis, place in axes if not find(axis.term).linear)
        legs = [leg for uses in said.params.values() for _, each in uses for leg in each]
        apart = any(isinstance(leg.label, AxisTerm) and leg.up and leg.down for leg in legs)
        return cls(single, scale, sign, apart)


def _why(network: Network, symmetry: Symmetry, space: str, passes: Mapping[str, _Passes]) -> str:
    """Why a space has the group it has: what the operations that read it let through."""
    if said := _why_heads(symmetry, space):
        return said
    writers = symmetry.spaces[space].writers
    parts = [f"written together by {_some(writers)}"] if len(writers) > 1 else []
    if symmetry.spaces[space].linear:
        return "; ".join([*parts, "only linear maps touch it: any invertible matrix may act"])
    kinds: dict[str, tuple[bool, bool]] = {}
    apart: list[str] = []
    for op, value, axis in _readers(network, symmetry, space):
        passed, place = passes[op.name], (value, axis)
        if passed.apart:
            apart.append(op.kind)
        elif place in passed.single and len(op.inputs) == 1:
            scale, sign = kinds.get(op.kind, (True, True))
            kinds[op.kind] = (scale and place not in passed.scale, sign and place not in passed.sign)
    for lets in dict.fromkeys(kinds.values()):
        names = [_words(kind) for kind, these in kinds.items() if these == lets]
        parts.append(f"{_and(names)} {'lets' if len(names) == 1 else 'let'} {_LETS[lets]} through")
    if apart:
        parts.append(f"factors before and after {_and([_words(kind) for kind in dict.fromkeys(apart)])} are free of each other")
    here = {g.kind for g in symmetry.gauges.values() if _carries(g.axis, space)}
    if here and kinds and all(kind.endswith("norm") and not any(lets) for kind, lets in kinds.items()):
        parts.append("what comes behind has factors of its own")
    if all(sign for _, sign in kinds.values()) and "sign" not in here:
        parts.append("something that it is tied to, or that reads it, cannot take up a flip")
    if all(scale for scale, _ in kinds.values()) and "positive" not in here:
        parts.append("something that it is tied to fixes its scale")
    return "; ".join(parts) or "nothing stops a factor of either sign"


def _why_heads(symmetry: Symmetry, space: str) -> str:
    """Why units that are heads have their group; "" for others."""
    over = symmetry.spaces[space].over
    if over is not None and any(b.over == over for b in symmetry.blocks.values()):
        return f"queries that share one head of {over}"
    parts = []
    for block in (b for b in symmetry.blocks.values() if b.over == space):
        kinds = {c.kind for c in block.classes}
        if not block.name.endswith(".qk"):
            parts.append("values are only summed")
        elif "sign" in kinds:
            parts.append("a norm of queries and keys leaves signs")
        elif "complex" in kinds:
            parts.append("queries meet keys in inner products alone, and what commutes with rotary turns is left")
        else:
            parts.append("queries meet keys in inner products alone")
    return ", ".join(dict.fromkeys(parts))


_LETS = {
    (True, True): "factors of either sign",
    (True, False): "positive scales",
    (False, True): "signs",
    (False, False): "no factor",
}


def _readers(network: Network, symmetry: Symmetry, space: str) -> Iterator[tuple[Op, str, int]]:
    """(operation, value, axis) wherever an operation reads the units of a space."""
    for op in network.ops:
        for value in dict.fromkeys(op.inputs):
            for i, side in enumerate(symmetry.values[value]):
                if _carries(side.axis, space):
                    yield op, value, i


def _words(kind: str) -> str:
    return "an activation that is not recorded" if kind == "unknown_activation" else kind.replace("_", " ")


def _and(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _some(names: tuple[str, ...], most: int = 4) -> str:
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[:most])} and {len(names) - most} more"
