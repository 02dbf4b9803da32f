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
    Turn,
    Use,
    ValueAxis,
    factor,
    gather,
    gauges_of,
    leaves,
    places,
)
from canon.symmetry.blocks import Block, Class
from canon.symmetry.derive import derive

__all__ = [
    "Axis",
    "Block",
    "Class",
    "Concat",
    "Fixed",
    "Floats",
    "Gauge",
    "Indices",
    "Product",
    "Space",
    "Symmetry",
    "TensorAxis",
    "Turn",
    "Use",
    "ValueAxis",
    "derive",
    "factor",
    "gather",
    "gauges_of",
    "leaves",
    "places",
]
