"""Network -> Symmetry: which axes carry which spaces and gauges, from shapes and ops alone."""

from canon.symmetry.axes import (
    Axis,
    Concat,
    Fixed,
    Floats,
    Gauge,
    Indices,
    Product,
    Space,
    Symmetry,
    TensorAxis,
    Use,
    ValueAxis,
    factor,
    gather,
    gauges_of,
    leaves,
    places,
)
from canon.symmetry.derive import derive

__all__ = [
    "Axis",
    "Concat",
    "Fixed",
    "Floats",
    "Gauge",
    "Indices",
    "Product",
    "Space",
    "Symmetry",
    "TensorAxis",
    "Use",
    "ValueAxis",
    "derive",
    "factor",
    "gather",
    "gauges_of",
    "leaves",
    "places",
]
