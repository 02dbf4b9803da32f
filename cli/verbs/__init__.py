"""The verbs, one module each: NAME, HELP (one line), configure(parser), run(args) -> exit status.

A verb imports numpy and the rest of the library inside `run`, so that help stays quick.
"""

from __future__ import annotations

import importlib
from argparse import Namespace
from typing import Protocol, cast

from ..options import Parser

NAMES = ("show", "compare", "canonicalize", "align", "teleport", "similarity", "record", "convert", "dedup", "query")
"""All verbs, in the order of the help."""


class Verb(Protocol):
    """What a verb's module has."""

    NAME: str
    HELP: str

    @staticmethod
    def configure(parser: Parser) -> None:
        """Add the verb's arguments."""

    @staticmethod
    def run(args: Namespace) -> int:
        """Do it; return the exit status."""


def load(name: str) -> Verb:
    """The module of a verb, by its name."""
    return cast(Verb, importlib.import_module(f"{__name__}.{name}"))
