"""The fingerprint of a network: a few numbers that its whole orbit shares, and a few hashes.

It proposes, and never decides: two files whose figures lie within their tolerances may be copies, two whose figures do not
cannot be. From the strongest down:

* `tensors`, the hash of all tensors as stored, whatever their names and order, and `exact_hash`, that of the canonical form
  in powers of two, which is one for all disguises that did not round;
* `figures`: the path kernel (paths.py), or where none is known the moments of the normalised tensors, which is what a proof
  compares entry by entry;
* `outputs` on seeded probes, each with its rounding bound: one for all networks of one function, whatever the symmetry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from canon.action import Action
from canon.compare.check import run_on
from canon.compare.comparing import FLOAT32, rounding, smallest_normal
from canon.compare.pairing import value_keys
from canon.compare.side import Normalised, Side
from canon.compare.verdict import TIGHT
from canon.errors import UnsupportedOp
from canon.fold import Folded, fold
from canon.forward import probe_inputs
from canon.gauge import exact
from canon.network import Network
from canon.ops.base import Array
from canon.order import canonical_order
from canon.pieces import cut
from canon.symmetry import Symmetry, derive
from canon.zoo.graphs import NoPathsError, path_kernel
from canon.zoo.kernels import EVEN
from canon.zoo.steps import Inputs, seeded

VERSION = 1
"""Of the figures: an index of another version is made again."""
ROUNDINGS = 16
"""What `equivalent` allows an entry to differ by, in roundings of its type."""
PATHS, MOMENTS, OUTPUTS, ORDER = "paths", "moments", "outputs", "order"
"""Kinds of figures."""
LARGE = 1 << 18
"""From so many parameters on, signed powers are left out: all they do is tell apart what even powers cannot."""
SAMPLES = 4
_MOMENTS = (1, 2, 3, 4)
SMALL = 1e-30
"""Types whose smallest normal number is larger lose what lies under it."""
_LOOSE = 4.0
"""How much looser than compare asks the bound on outputs may be: compare runs more samples, which vary more."""
CHEAP = 1 << 21
"""Multiplications a sample up to which a network is run on probes without being asked to."""


@dataclass(frozen=True)
class Figures:
    """kind: "paths", "moments", "outputs", "order" or "" (none); values, room: each figure, and how far from it that of a copy
    can be, unless the copy's own room is larger.
    """

    kind: str
    values: tuple[float, ...] = ()
    room: tuple[float, ...] = ()


@dataclass(frozen=True)
class Fingerprint:
    """structure: hash of the folded graph, names left out: copies have the same; figures, outputs, tensors: see above; order: a
    sketch of the weights as stored, alike where units stand in the same places: it finds relatives that nobody disguised.
    """

    structure: str
    figures: Figures
    outputs: Figures
    tensors: str
    order: Figures


def fingerprint(network: Network, probes: bool | None = None) -> Fingerprint:
    """The fingerprint of a network. probes: whether to run it (None: where that costs little).

    Raises NotFinite, NumericError and GraphError as comparing does.
    """
    network.check_finite()
    folded = fold(network)
    run = probes if probes is not None else work(network) <= 4 * network.parameters + CHEAP
    return Fingerprint(
        structure(folded.network),
        figures(folded),
        outputs(network) if run else Figures(""),
        tensors_hash(network),
        in_order(network, {name: t[None] for name, t in network.tensors.items()})[0],
    )


def structure(folded: Network) -> str:
    """A hash of a folded graph: kinds, attributes and shapes as they hang together, without any name."""
    keys = value_keys(folded, ())
    ends = [keys[v] for v in folded.outputs]
    return hashlib.sha256(json.dumps([ends, [len(s) for s in folded.inputs.values()]]).encode()).hexdigest()[:32]


def change(network: Network) -> float:
    """The relative change of an entry that a proof lets pass, by the type it is stored in."""
    return change_of(rounding(network))


def change_of(unit: float) -> float:
    """The same from a unit roundoff."""
    share = ROUNDINGS * unit
    return share / (1 - share) if share < 1 else float("inf")


def figures(folded: Folded) -> Figures:
    """The path kernel of a folded network, or its moments."""
    try:
        paths = path_kernel(folded.network, folded.symmetry)
    except NoPathsError:
        return moments(folded)
    tensors, sizes = folded.centred
    share = change(folded.source)
    given = Inputs(_stacked(tensors), _stacked(_with_floor(folded, tensors, sizes, share)), np.array([share]))
    if _size(folded.network) >= LARGE:
        paths = paths.only(EVEN)
    values, room = (floats(x[0]) for x in paths.run(given))
    return Figures(PATHS, values, room) if np.isfinite(values).all() else moments(folded)


def _size(network: Network) -> int:
    """Parameters other than biases, which copies need not have alike."""
    return sum(int(network.tensors[t].size) for op in network.ops for role, t in op.params.items() if role != "bias")


def _stacked(tensors: Mapping[str, Array]) -> dict[str, Array]:
    return {name: t[None] for name, t in tensors.items()}


def _with_floor(folded: Folded, tensors: Mapping[str, Array], sizes: Mapping[str, Array], share: float) -> Mapping[str, Array]:
    """Magnitudes that cover what a type of small range cannot hold: all that lies under its smallest normal number."""
    floor = smallest_normal(folded.source)
    if floor < SMALL:
        return sizes
    return {n: sizes.get(n, np.abs(np.asarray(t, np.float64))) + floor / share for n, t in tensors.items()}


def moments(folded: Folded) -> Figures:
    """Sums of powers of the normalised tensors, all together: the frame in which a proof compares entry by entry.

    Tensors that matrices act on are left out.
    """
    side = Side(folded, folded.symmetry)
    share, floor = change(folded.source), smallest_normal(folded.source)
    floor = floor if floor > SMALL else 0.0
    normal = side.normalised()
    # a copy has magnitudes of its own: twice the change covers both
    loose = {n: 2 * share * np.abs(t if (m := side.size(n)) is None else m) + floor for n, t in side.tensors.items()}
    spread = Normalised(loose, side.scaling(), side.tensors, absolute=True)
    totals, most = np.zeros(len(_MOMENTS)), np.zeros(len(_MOMENTS))
    for name in normal:
        if _mixed(folded.symmetry, name):
            continue
        t = np.abs(normal[name])
        totals += [float((t**p).sum()) for p in _MOMENTS]
        most += [float(((t + spread[name]) ** p).sum()) for p in _MOMENTS]
    if not (np.isfinite(most).all() and totals.all()):
        return Figures("")
    room = np.where(most < 2 * totals, -np.log(2 - np.minimum(most / totals, 1.999)), np.inf)
    return Figures(MOMENTS, floats(np.log(totals) / _MOMENTS), floats(room / _MOMENTS + 2e-12))


def _mixed(symmetry: Symmetry, tensor: str) -> bool:
    """Whether matrices act along an axis of a tensor."""
    axes = [axis for piece in cut(symmetry, [tensor]) for axis in piece.axes]
    return any(axis.turn or (axis.space and symmetry.spaces[axis.space].linear) for axis in axes)


# outputs


def work(network: Network) -> int:
    """About how many multiplications a sample takes; open sizes are taken as 16."""
    total = 0
    for op in network.ops:
        size = sum(int(network.tensors[t].size) for t in op.params.values())
        places = prod(n or 16 for n in network.shapes[op.output][:-1])
        if op.attrs.get("channels") == "first":
            places = prod(n or 16 for n in network.shapes[op.output][1:])
        total += size * places + places
    return total


def outputs(network: Network) -> Figures:
    """Outputs on seeded probes, before a final softmax or sigmoid, each sample's added up with seeded signs and sizes."""
    try:
        sets = [probe_inputs(network, np.random.default_rng(0), SAMPLES, 1.0)]
    except UnsupportedOp:
        return Figures("")
    found = run_on(network, sets)
    if found.why:
        return Figures("")
    rate = ROUNDINGS * max(rounding(network), FLOAT32) * found.depth
    return added_up([y[None] for y in found.values], [m[None] for m in found.sizes], found.free, rate)[0]


def added_up(values: Sequence[Array], sizes: Sequence[Array], free: Sequence[bool], rate: float) -> list[Figures]:
    """For each file, one number a sample from outputs and their magnitudes, (files, samples, ...) each.

    free: outputs of which a shift common to all classes is no matter. None where the rounding bound is so wide, beside what
    outputs vary by, that nothing could be called the same function.
    """
    total, bound = np.zeros(values[0].shape[:2]), np.zeros(values[0].shape[:2])
    loose = np.zeros(len(total))
    for i, (y, m, shifts) in enumerate(zip(values, sizes, free, strict=True)):
        if shifts:
            y, m = y - y.mean(-1, keepdims=True), m + m.mean(-1, keepdims=True)
        y, m = y.reshape(*y.shape[:2], -1), m.reshape(*m.shape[:2], -1)
        spread = np.ptp(y, axis=1).max(axis=1, initial=0.0)
        widest = rate * m.max(axis=(1, 2), initial=0.0)
        loose = np.maximum(loose, np.divide(widest, spread, out=np.full(len(y), np.inf), where=spread > 0))
        w = 2 * (seeded(y.shape[2:], f"sum {i}") - 1)
        total, bound = total + y @ w, bound + m @ np.abs(w)
    good = np.isfinite(total + bound).all(axis=1) & (loose <= _LOOSE * TIGHT)
    rows = zip(np.atleast_1d(good), total, 2 * rate * bound, strict=True)  # a copy has magnitudes of its own
    return [Figures(OUTPUTS, floats(y), floats(m)) if ok else Figures("") for ok, y, m in rows]


# the order of units

_SKETCH, _LOOKED_AT = 32, 4096


def in_order(network: Network, tensors: Mapping[str, Array]) -> list[Figures]:
    """For each file, a sketch of its weights as stored: seeded signs times the first of each kernel's entries, added up into a
    few numbers of unit norm. tensors: (files, *shape) each.

    Related files that keep their units in place have sketches at a small angle; the angle is about that of the weights.
    """
    files = len(next(iter(tensors.values())))
    total = np.zeros((files, _SKETCH))
    kernels = [t for op in network.ops for t in op.params.values() if network.tensors[t].ndim > 1]
    for i, name in enumerate(dict.fromkeys(kernels)):
        t = tensors[name]
        rows = -(-_LOOKED_AT // max(1, prod(t.shape[2:])))
        x = np.asarray(t[:, :rows].reshape(files, -1)[:, :_LOOKED_AT], np.float64)
        size = np.linalg.norm(x, axis=1, keepdims=True)
        signs = np.sign(seeded((-(-x.shape[1] // _SKETCH), _SKETCH), f"order {i}") - 1)
        x = np.pad(x, ((0, 0), (0, signs.size - x.shape[1]))) * signs.reshape(-1)
        with np.errstate(all="ignore"):
            total += np.nan_to_num(x.reshape(files, *signs.shape).sum(axis=1) / size)
    norm = np.linalg.norm(total, axis=1, keepdims=True)
    total = np.divide(total, norm, out=np.zeros_like(total), where=norm > 0)
    return [Figures(ORDER, floats(row)) if row.any() else Figures("") for row in total]


# hashes


def tensors_hash(network: Network) -> str:
    """A hash of all tensors with their types and shapes, whatever their names and order."""
    return combined(
        tensor_digest(np.ascontiguousarray(t), network.stored_type(name), t.shape) for name, t in network.tensors.items()
    )


def tensor_digest(t: Array, kind: str, shape: tuple[int, ...]) -> bytes:
    """Of one tensor, in C order and little-endian."""
    if t.dtype.byteorder == ">":
        t = t.astype(t.dtype.newbyteorder("<"))
    seen = hashlib.sha256(f"{kind} {shape}".encode())
    seen.update(t.data if t.size else b"")
    return seen.digest()


def combined(digests: Iterable[bytes]) -> str:
    """One hash of many, in no order."""
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()[:32]


def exact_hash(network: Network) -> str:
    """A hash of the canonical form in powers of two and signs: the same for all disguises that did not round.

    Raises NotFinite.
    """
    network.check_finite()
    symmetry = derive(network)
    gauge = Action(symmetry, {}, exact(network, symmetry).gauges)
    order = canonical_order(symmetry, gauge(network).tensors, {})
    form = (Action(symmetry, order.perms) @ gauge)(network)
    # nothing rounds on the way back to the stored type; + 0.0: minus zero counts as zero
    tensors = {n: np.asarray(t + 0.0, network.tensors[n].dtype) for n, t in form.tensors.items()}
    return combined([structure(network).encode(), tensors_hash(network.with_tensors(tensors)).encode()])


def floats(x: Array) -> tuple[float, ...]:
    """A row as plain numbers."""
    return tuple(x.tolist())
