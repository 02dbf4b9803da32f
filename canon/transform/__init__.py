"""Networks moved within their orbit, in the architecture that was read."""

from canon.transform.moves import Moved, align, canonicalize, teleport

__all__ = ["Moved", "align", "canonicalize", "teleport"]
