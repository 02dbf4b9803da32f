"""Folded: the same function with what is no freedom of it folded away, and how to move the original.

The order: identities are dropped, batch norms fold into kernels, constants move on, linear spaces are composed, logits
are centred, dead and constant units are cleared. Tensors that nothing touches are the stored arrays themselves.
"""

from canon.fold.folded import Folded, fold
from canon.fold.units import dead_units, sides_of
from canon.fold.work import Step

__all__ = ["Folded", "Step", "dead_units", "fold", "sides_of"]
