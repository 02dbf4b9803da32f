"""Blocks: units that a matrix group turns among each other, those of a head say, and what of the group keeps lengths.

A block has a matrix for each unit of an outer space (a key-value head). The group is a product over classes of the units:
any invertible real matrix ("real"), any orthogonal one ("orthogonal"), any invertible complex matrix on pairs of units
("complex": rotary positions let through what commutes with their turns), or a sign ("sign"). Values v become A v; what
meets them in an inner product becomes A^-T v. In the balanced gauge (gauge/heads.py) what is left is orthogonal, unitary,
or a sign: `nearest`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from canon.ops.base import Array


@dataclass(frozen=True)
class Class:
    """Units of a block that turn together. kind: "real" or "orthogonal" (units `first`), "complex" (pairs first[i] +
    i second[i]) or "sign" (one sign for all of them).
    """

    kind: str
    first: tuple[int, ...]
    second: tuple[int, ...] = ()

    @property
    def dimension(self) -> int:
        """Number of free real parameters."""
        n = len(self.first)
        return {"sign": 0, "orthogonal": n * (n - 1) // 2, "real": n * n, "complex": 2 * n * n}[self.kind]


@dataclass(frozen=True)
class Block:
    """size: units; over, outer: the space of which each unit has a matrix, and how many those are ("" where the outer units
    do not move); classes: of its units.
    """

    name: str
    size: int
    over: str
    outer: int
    classes: tuple[Class, ...]

    @property
    def dimension(self) -> int:
        """Number of free real parameters, all matrices together."""
        return self.outer * sum(c.dimension for c in self.classes)

    @property
    def group(self) -> str:
        """In words: "GL(64)", "C* x32" ..."""
        words = []
        for c in self.classes:
            n = len(c.first)
            words.append(
                {"real": f"GL({n})", "orthogonal": f"O({n})", "complex": "C*" if n == 1 else f"GL({n}, C)", "sign": "sign"}[
                    c.kind
                ]
            )
        counted = [w if words.count(w) == 1 else f"{w} x{words.count(w)}" for w in dict.fromkeys(words)]
        return " ".join(counted)

    def nearest(self, cross: Array) -> tuple[Array, Array]:
        """The length-keeping T of the group with the largest trace(T^T C), and that trace.

        cross: (..., size, size), C = X Y^T for rows X of the one and Y of the other. Returns (..., size, size) and (...).
        Source: orthogonal Procrustes (Schoenemann 1966), class by class; for pairs over the complex numbers.
        """
        turn = np.zeros(cross.shape)
        value = np.zeros(cross.shape[:-2])
        for c in self.classes:
            f, s = list(c.first), list(c.second)
            if c.kind == "sign":
                total = sum((cross[..., i, i] for i in f), start=np.zeros(value.shape))
                value = value + np.abs(total)
                for i in f:
                    turn[..., i, i] = np.where(total < 0, -1.0, 1.0)
                continue
            part = _of_class(cross, c)
            if len(f) == 1:
                size = np.abs(part)
                q = np.divide(part, size, out=np.ones_like(part), where=size > 0)
                value = value + size[..., 0, 0]
            else:
                u, sigma, vh = np.linalg.svd(part)
                q, value = u @ vh, value + sigma.sum(axis=-1)
            if c.kind != "complex":
                turn[..., np.ix_(f, f)[0], np.ix_(f, f)[1]] = q
            else:
                put_complex(turn, q, f, s)
        return turn, value


def _of_class(cross: Array, c: Class) -> Array:
    """The entries of a cross product that a class sees: complex ones are sums over both units of a pair."""
    f, s = list(c.first), list(c.second)
    if c.kind != "complex":
        return np.asarray(cross[..., np.ix_(f, f)[0], np.ix_(f, f)[1]])
    ff, ss, fs, sf = (cross[..., np.ix_(p, q)[0], np.ix_(p, q)[1]] for p, q in ((f, f), (s, s), (f, s), (s, f)))
    return np.asarray((ff + ss) + 1j * (sf - fs))  # x y^H for x = x_f + i x_s


def put_complex(into: Array, z: Array, first: list[int], second: list[int]) -> None:
    """Write a complex matrix on pairs as the real one on their units."""
    for rows, columns, part in (
        (first, first, z.real),
        (second, second, z.real),
        (first, second, -z.imag),
        (second, first, z.imag),
    ):
        i, j = np.ix_(rows, columns)
        into[..., i, j] = part
