"""Two runs in, a verdict with everything it rests on out."""

from canon.compare.flow import Options, compare
from canon.compare.result import Comparison, File, SpaceFigures, TensorFigures, UnitFigures

__all__ = ["Comparison", "File", "Options", "SpaceFigures", "TensorFigures", "UnitFigures", "compare"]
