"""Entry point of the command `canon`: picks the verb, and turns every error into one line and an exit status."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from itertools import pairwise

from canon import __version__
from canon.errors import CanonError, UsageError

from . import verbs
from .options import Parser
from .text import did_you_mean, printable, write_json

TROUBLE, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
FEW_CORES = 4
"""Up to this many cores, numpy's linear algebra runs on one thread unless OPENBLAS_NUM_THREADS says otherwise."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these words (those of the process by default) and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character shows its escape
            stream.reconfigure(errors="backslashreplace")
    if (os.cpu_count() or 1) <= FEW_CORES:
        # where another process has a core, threads that wait for each other cost ten times what they gain
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    warnings.simplefilter("ignore", RuntimeWarning)  # overflow and the like are answered in words, not by numpy's lines
    try:
        status = _run(words)
        sys.stdout.flush()  # a closed pipe or a full disk shows here, not when the interpreter ends
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        return BROKEN_PIPE
    except Exception as error:
        if os.environ.get("CANON_DEBUG") == "1":
            traceback.print_exc()
        _report(_as_canon(error), json=_json_on_stdout(words))
        return TROUBLE


def _run(words: list[str]) -> int:
    """Pick the verb and run it; --help and --version end here too."""
    try:
        return _verb(words)
    except SystemExit as stop:  # argparse's way to end after --help
        return stop.code if isinstance(stop.code, int) else 0


def _verb(words: list[str]) -> int:
    if words and words[0] in verbs.NAMES:
        verb = verbs.load(words[0])
        parser = Parser(f"canon {words[0]}", verb.HELP)
        verb.configure(parser)
        return verb.run(parser.parse(words[1:]))
    top = Parser("canon", "Compare trained networks modulo relabelling and rescaling of their hidden units.", _overview())
    top.usage = "canon VERB ...\n       canon VERB --help"
    top.add_argument("--version", action="version", version=f"canon {__version__}")
    if words and not words[0].startswith("-"):
        near = did_you_mean(words[0], verbs.NAMES)
        raise UsageError("", f"there is no verb {words[0]!r}", near or f"The verbs are {', '.join(verbs.NAMES)}.")
    top.parse(words)
    top.print_help(sys.stderr)
    return TROUBLE


def _overview() -> str:
    rows = [f"  {name:<14}{verbs.load(name).HELP}" for name in verbs.NAMES]
    status = "exit status:\n  0  the same, or written as asked    1  different    2  trouble"
    return "\n".join(["verbs:", *rows, "", "canon VERB --help says more.", "", status])


def _as_canon(error: Exception) -> CanonError:
    """Any error as where, what and hint."""
    if isinstance(error, CanonError):
        return error
    if isinstance(error, OSError):
        where = error.filename if isinstance(error.filename, str) else ""
        return CanonError(where, error.strerror or str(error) or type(error).__name__)
    if isinstance(error, MemoryError):
        return CanonError("", f"not enough memory ({error})" if str(error) else "not enough memory")
    what = traceback.format_exception_only(error)[-1].strip()
    return CanonError("", f"internal error: {what}", "Please report it, with what the same command prints under CANON_DEBUG=1.")


def _json_on_stdout(words: list[str]) -> bool:
    """Whether the words ask for JSON on stdout; they may be the very words that could not be parsed."""
    return "--json=-" in words or any(pair == ("--json", "-") for pair in pairwise(words))


def _report(error: CanonError, json: bool) -> None:
    """Say what went wrong: a line, a hint, and the JSON object where the caller reads JSON."""
    lines = [": ".join(part for part in ("canon", printable(error.where), printable(error.what)) if part)]
    lines += [printable(line) for line in error.hint.splitlines()]
    sys.stderr.write("\n".join(lines) + "\n")
    try:
        if json:
            value = {"schema": "canon.error/1", "where": error.where, "what": error.what, "hint": error.hint}
            write_json(value, "-")
        sys.stdout.flush()
    except OSError:
        _drop_stdout()


def _drop_stdout() -> None:
    """Stdout cannot be written: what is still buffered must not raise once more when the interpreter ends."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: not a real file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
