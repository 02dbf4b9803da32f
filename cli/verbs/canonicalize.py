"""canon canonicalize: a network written in its canonical form."""

from __future__ import annotations

from argparse import Namespace

from ..options import Parser, add_common, add_gauge, add_reading, add_seed, add_writing

NAME = "canonicalize"
HELP = "write a network in its canonical form"

_ABOUT = """\
Every relabelled and rescaled copy of a network has one canonical form. OUT is
a copy of FILE with its weights replaced, in the architecture that was read;
the outputs of both are checked against each other before OUT is written."""

_EPILOG = """\
gauges:
  incoming   every unit's incoming weights, bias included, have norm 1
  balanced   the least sum of squares over all rescalings
  exact      powers of two and signs only: equal bytes for equal networks,
             for hashing

examples:
  canon canonicalize run.h5 -o canonical.h5
  canon canonicalize run.h5:100 -o canonical.h5 --gauge exact
  canon canonicalize run.h5 -o folded.h5 --folded

exit status:
  0  written    2  trouble, OUT is as it was"""


def configure(parser: Parser) -> None:
    """Add the arguments of `canon canonicalize`."""
    parser.tell(NAME, HELP, _ABOUT, _EPILOG)
    parser.add_argument("file", metavar="FILE[:STEP]", help="the file to bring to its canonical form")
    add_writing(parser)
    add_gauge(parser, "incoming", "balanced", "exact")
    add_reading(parser)
    add_seed(parser)
    add_common(parser)


def run(args: Namespace) -> int:
    """Write the canonical form; 0."""
    from canon.transform import canonicalize

    from ..console import Messages
    from ..reading import read
    from ..writing import write_moved

    messages = Messages(args.quiet)
    with messages.step(f"reading {args.file}") as tell:
        source = read(args.file, args, messages)
        moved = canonicalize(source.network, args.gauge, args.folded, args.seed, tell)
        notes = write_moved(moved, source, args, tell)
    for note in notes:
        messages.note(note)
    return 0
