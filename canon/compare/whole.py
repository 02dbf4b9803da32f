"""What files say beside their networks: how inputs are normalised, and outputs."""

from __future__ import annotations

import numpy as np

from canon.compare.comparing import FLOAT32
from canon.run import Run


def beside(a: Run, b: Run) -> tuple[bool, bool]:
    """Whether two files say the same beside their networks, and whether it is so only up to the rounding of float32."""
    assert a.whole is not None
    assert b.whole is not None
    left, right = (
        {n: t for n, t in r.whole.tensors.items() if n not in r.network.tensors} for r in (a, b) if r.whole is not None
    )
    known = [{op.name for op in r.network.ops} for r in (a, b)]
    ops = [[op for op in r.whole.ops if op.name not in k] for r, k in zip((a, b), known, strict=True) if r.whole is not None]
    if left.keys() != right.keys() or [(o.kind, o.name) for o in ops[0]] != [(o.kind, o.name) for o in ops[1]]:
        return False, False
    pairs = [(np.asarray(x, np.float64), np.asarray(right[n], np.float64)) for n, x in left.items()]
    for one, other in zip(*ops, strict=True):
        if one.attrs.keys() != other.attrs.keys():
            return False, False
        pairs += [(np.asarray(v, np.float64), np.asarray(other.attrs[k], np.float64)) for k, v in one.attrs.items()]
    exact = all(np.array_equal(x, y) for x, y in pairs)
    near = all(
        x.shape == y.shape and (np.abs(x - y) <= 16 * FLOAT32 * np.maximum(np.abs(x), np.abs(y))).all() for x, y in pairs
    )
    return near, near and not exact
