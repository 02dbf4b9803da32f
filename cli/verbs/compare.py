"""canon compare: distance, evidence and a verdict on two networks."""

from __future__ import annotations

from argparse import Namespace

from ..options import Parser, add_common, add_gauge, add_reading, add_seed

NAME = "compare"
HELP = "distance and verdict on two networks, modulo symmetry"

_ABOUT = """\
Both networks are folded, brought to one gauge and matched unit by unit before
anything is measured. The report ends with the verdict, on the last line:

  identical          the same graph, and the same bytes in every tensor
  equivalent         one is the other, relabelled and rescaled
  same-to-precision  the same, up to the rounding of a coarser type
  same-function      equal outputs, though no relabelling or rescaling is found
  related            common descent: the evidence is printed
  independent        evidence was looked for, and there is none
  undecided          what would settle it is named"""

_EPILOG = """\
distances:
  For each space, from 0 (the same) over 1 (orthogonal) to at most 1.41: raw as
  stored, normalised with units scaled alike, matched with units paired as
  well, and beside it chance, the same on shuffled weights. Raw is not
  invariant: rescaling units, which changes no output, drives it to 1.

units file:
  --units FILE.csv writes a line a unit of A: space; a, b (numbers of the unit
  and its partner as stored, from 0); distance and correlation of their
  incoming weights, each beside chance for the space; scale (the factor from B
  to A, sign included); runner_up (the next best unit of B) and
  runner_up_ratio (distance of the partner over that of the runner-up); flags
  (dead, constant, duplicate, negligible, ambiguous).

examples:
  canon compare a.h5 b.h5
  canon compare run.h5:100 run.h5:200    two checkpoints of one run
  canon compare a.h5 b.h5 --units units.csv
  canon compare a.h5 b.h5 --json - | jq .distance.matched
  canon compare weights-a.h5 weights-b.h5 --activation relu
  canon compare small.h5 wide.h5 --partial

exit status:
  0  identical or equivalent    1  any other verdict    2  trouble"""


def configure(parser: Parser) -> None:
    """Add the arguments of `canon compare`."""
    parser.tell(NAME, HELP, _ABOUT, _EPILOG)
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
    text = "take rotations of residual streams out as well, where RMS norms alone read them"
    parser.add_argument("--rotations", action="store_true", help=text)
    add_reading(parser)
    add_seed(parser)
    add_common(parser)


def run(args: Namespace) -> int:
    """Compare two files; 0 for the same network, 1 for any other verdict."""
    from canon.compare import Options, compare

    from ..console import Messages
    from ..reading import read_pair
    from ..report import MANY_UNITS, print_comparison, units_csv
    from ..text import write_json, write_text

    messages = Messages(args.quiet)
    with messages.step(f"reading {args.a} and {args.b}") as tell:
        a, b = read_pair(args, messages)
        few = sum(len(t) for t in a.network.tensors.values() if t.ndim > 1) <= MANY_UNITS
        units = args.units is not None or (few and args.json != "-")
        result = compare(a, b, Options(args.gauge, units, args.full, args.partial, args.seed, args.rotations), tell)
    if args.units not in (None, "-"):
        write_text(units_csv(result), args.units)
    if args.json:
        write_json(result.as_dict(units=args.units is not None), args.json)
    if args.json != "-":
        told = [f"{side}: {note}" for side, run in (("a", a), ("b", b)) for note in run.notes]
        print_comparison(result, units=args.units == "-", told=told)
    return 0 if result.same else 1
