"""Reading what the command line names: FILE[:STEP] with --architecture, --activation and what state dicts leave out."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from typing import TYPE_CHECKING

from .options import TOLD, split_step

if TYPE_CHECKING:
    from canon.run import Run

    from .console import Messages


def read(word: str, args: Namespace, messages: Messages | None = None) -> Run:
    """The run that a word of the command line names; what its reader found worth telling goes to `messages`."""
    from canon.formats import read as read_file

    path, step = split_step(word)
    options = {name: value for name in TOLD if (value := getattr(args, name, None)) is not None}
    run = read_file(path, step or None, args.architecture, args.activation, options)
    if messages is not None:
        for note in run.notes:
            messages.note(f"canon: {word}: {note}")
    return run


def read_pair(args: Namespace, messages: Messages) -> tuple[Run, Run]:
    """Both runs that `args.a` and `args.b` name; one without a graph of its own is read by the other's, where that fits."""
    from canon.errors import CanonError

    words = [args.a, args.b]
    runs = _asked(words, args)
    for i, other in ((0, 1), (1, 0)):
        if args.architecture is None and runs[i].graph in ("chain", "none") and runs[other].graph == "config":
            with contextlib.suppress(CanonError):  # it does not fit: the two are compared as they are
                runs[i] = read(words[i], _lending(args, runs[other]))
    for word, run in zip(words, runs, strict=True):
        for note in run.notes:
            messages.note(f"canon: {word}: {note}")
    return runs[0], runs[1]


def _asked(words: list[str], args: Namespace) -> list[Run]:
    """Runs of two words; where one of them asks for what its file does not tell, the other's graph answers, if it fits."""
    from canon.errors import CanonError, UsageError

    runs: list[Run | None] = []
    asks: list[UsageError] = []
    for word in words:
        try:
            runs.append(read(word, args))
        except UsageError as error:
            runs.append(None)
            asks.append(error)
    lender = next((run for run in runs if run is not None and run.graph not in ("chain", "none")), None)
    if asks and (lender is None or args.architecture is not None):
        raise asks[0]
    found: list[Run] = []
    for word, run in zip(words, runs, strict=True):
        if run is None and lender is not None:
            try:
                run = read(word, _lending(args, lender))
            except CanonError:
                raise asks[0] from None
        found += [] if run is None else [run]
    return found


def _lending(args: Namespace, lender: Run) -> Namespace:
    """The same request with an architecture."""
    return Namespace(**{**vars(args), "architecture": lender.path})
