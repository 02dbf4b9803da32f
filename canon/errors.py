"""What can go wrong, as one tree. Every message is one line that says where and what, and one that says what to do.

CanonError
├── ReadError        a file that cannot be read as a network
│   ├── UnknownFormat
│   ├── CorruptFile
│   └── MissingExtra
├── WriteError       an output that cannot be written as asked
├── GraphError       an architecture that does not hold together
│   ├── UnsupportedOp
│   ├── ShapeConflict
│   └── AmbiguousGraph
├── MismatchError    two networks without a common symmetry
├── NumericError     values that no comparison can use
│   └── NotFinite
└── UsageError       a request that makes no sense
"""

from __future__ import annotations


class CanonError(Exception):
    """Base of all errors that canon raises on purpose.

    where: the file, tensor, layer or option it is about ("" when the edge adds it later);
    what: the fact; hint: what to do about it ("" when there is nothing to say).
    """

    def __init__(self, where: str, what: str, hint: str = "") -> None:
        super().__init__(where, what, hint)
        self.where, self.what, self.hint = where, what, hint

    def at(self, where: str) -> CanonError:
        """The same error, with an outer place named in front of the inner one."""
        inner = f"{where}: {self.where}" if self.where and self.where != where else where
        moved = type(self)(inner, self.what, self.hint)
        moved.__cause__ = self
        return moved

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n{self.hint}" if self.hint else head


class ReadError(CanonError):
    """A file that cannot be read as a network."""


class UnknownFormat(ReadError):
    """A file whose content is no format that canon knows."""


class CorruptFile(ReadError):
    """A file of a known format that is damaged, truncated or contradicts itself."""


class MissingExtra(ReadError):
    """A file that needs an optional dependency which is not installed."""


class WriteError(CanonError):
    """An output that cannot be written as asked; what was there before is untouched."""


class GraphError(CanonError):
    """An architecture that does not hold together."""


class UnsupportedOp(GraphError):
    """A layer or operation that canon does not know and cannot treat as opaque."""


class ShapeConflict(GraphError):
    """Tensors or values whose shapes contradict the architecture."""


class AmbiguousGraph(GraphError):
    """A file that allows several architectures; canon does not guess."""


class MismatchError(CanonError):
    """Two networks that have no common symmetry."""


class NumericError(CanonError):
    """Values that no comparison can use."""


class NotFinite(NumericError):
    """NaN or infinity in a tensor."""


class UsageError(CanonError):
    """A request that makes no sense."""
