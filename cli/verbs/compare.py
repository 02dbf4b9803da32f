"""canon compare: distance, evidence and a verdict on two networks."""

from __future__ import annotations

from argparse import Namespace

from ..options import Parser, add_common, add_gauge, add_reading, add_seed

NAME = "compare"
HELP = "distance and verdict on two networks, modulo symmetry"

_EPILOG = """\
Both networks are folded, brought to one gauge and matched unit by unit before anything is measured. The verdict, the
last line, is one of: identical, equivalent, same-to-precision, same-function, related, independent, undecided.

examples:
  canon compare a.h5 b.h5
  canon compare run.h5:100 run.h5:200     two checkpoints of one run
  canon compare a.h5 b.h5 --units units.csv
  canon compare weights-a.h5 weights-b.h5 --architecture model.json --activation relu
  canon compare a.h5 b.h5 --json - | jq .distance.matched

exit status:
  0  identical or equivalent    1  anything else    2  trouble"""


def configure(parser: Parser) -> None:
    """Add the arguments of `canon compare`."""
    parser.epilog = _EPILOG
    parser.add_argument("a", metavar="A[:STEP]", help="a file; the last checkpoint unless a step is named")
    parser.add_argument("b", metavar="B[:STEP]", help="another one")
    parser.add_argument(
        "--units",
        metavar="FILE.csv",
        nargs="?",
        const="-",
        help="list every unit with its partner: with the result, or in a file",
    )
    add_gauge(parser, "incoming", "balanced")
    text = "chance and the lower bound over all units, not a sample of 256"
    parser.add_argument("--full", action="store_true", help=text)
    text = "compare what the two have in common where their graphs differ"
    parser.add_argument("--partial", action="store_true", help=text)
    add_reading(parser)
    add_seed(parser)
    add_common(parser)


def run(args: Namespace) -> int:
    """Compare two files; 0 for the same network, 1 for any other verdict."""
    from canon.compare import Options, compare

    from ..console import Messages
    from ..reading import read
    from ..report import MANY_UNITS, print_comparison, units_csv
    from ..text import write_json, write_text

    messages = Messages(args.quiet)
    with messages.step(f"reading {args.a}") as tell:
        a = read(args.a, args, messages)
        tell(f"reading {args.b}")
        b = read(args.b, args, messages)
        few = sum(len(t) for t in a.network.tensors.values() if t.ndim > 1) <= MANY_UNITS
        units = args.units is not None or (few and args.json != "-")
        result = compare(a, b, Options(args.gauge, units, args.full, args.partial, args.seed), tell)
    if args.units not in (None, "-"):
        write_text(units_csv(result), args.units)
    if args.json:
        write_json(result.as_dict(units=args.units is not None), args.json)
    if args.json != "-":
        told = [f"{side}: {note}" for side, run in (("a", a), ("b", b)) for note in run.notes]
        print_comparison(result, units=args.units == "-", told=told)
    return 0 if result.same else 1
