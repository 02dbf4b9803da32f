"""canon similarity: how alike two networks' representations are, layer by layer and unit by unit."""

from __future__ import annotations

import argparse
from argparse import Namespace
from typing import TYPE_CHECKING

from ..options import Parser, add_common, add_reading, add_seed, one_of

if TYPE_CHECKING:
    from canon.similarity.choosing import Given

    from ..console import Messages

NAME = "similarity"
HELP = "how alike two networks' representations are, beside chance"

_ABOUT = """\
Compares what units do, not what weights are: activations on the same samples.
They are computed from probes (--probes), taken from arrays in the files
(--activations) or from what canon record stored; where there is none of it,
both networks are run on seeded noise, and the report says so. Every figure
stands beside its null: the same measure with the samples paired at random."""

_EPILOG = """\
measures:
  matching_hard, matching_hard_unsigned, matching_soft, matching_partial
      units paired by their correlation; unsigned: or with their negative
  cka, cka_biased, cka_minibatch, cka_standardised; cka_rbf, cka_rbf_biased,
  cka_rbf_minibatch
      centred kernel alignment, unbiased unless said; linear, Gaussian
  cca, svcca, pwcca, regression
      canonical correlations; variance of b that a predicts linearly
  procrustes, procrustes_size, angular_shape
      distances after the best rotation
  permutation_angle, permutation_distance
      distances after the best relabelling
  rsa_pearson, rsa_spearman, rsa_cosine, neighbour_jaccard, mutual_knn
      do both find the same samples unlike, or the same samples near?
  disagreement, jensen_shannon
      of outputs with a class each
  --measures takes some of them, or all. A rescaled copy of a network looks
  unlike it to measures that see the scale of single units: cka, procrustes
  and others. cka_standardised, cca and matching_* do not see it.

figures:
  value; chance (mean and sd over permutations of the samples); z, how many sd
  the value is more alike than chance; p = (1 + permutations at least as alike)
  / (1 + permutations); calibrated, 0 at chance and 1 at the same; reference,
  the value between a and each --reference, such as another seed.

units:
  --units lists for each unit of a its partner in b, the correlation r, the
  runner-up, shares of samples over zero, and flags (dead, constant, rare,
  duplicate, ambiguous); and which units are found on both sides, or on one.

examples:
  canon similarity a.h5 b.h5 --probes images.npz
  canon similarity a.h5 b.h5 --probes data.h5:test/x --reference seed1.h5
  canon similarity a.csv b.csv --measures all --plot map.svg
  canon similarity a.h5 b.h5 --activations layer_3 --units units.csv

exit status:
  0  compared    2  trouble"""


def _words(word: str) -> list[str]:
    """An argument type: names separated by commas."""
    return [part for part in word.split(",") if part]


def _count(word: str) -> int:
    if not word.isdigit() or len(word) > 9:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number from 0")
    return int(word)


def add_layers(parser: argparse.ArgumentParser) -> None:
    """Which values: --layers."""
    text = "values to take: names, or patterns with * and ?; all for every value (default: each layer after its activation)"
    parser.add_argument("--layers", metavar="NAME,...", type=_words, action="extend", default=[], help=text)


def configure(parser: Parser) -> None:
    """Add the arguments of `canon similarity`."""
    parser.tell(NAME, HELP, _ABOUT, _EPILOG)
    parser.add_argument("a", metavar="A[:STEP]", help="a network, or a file of activations")
    parser.add_argument("b", metavar="B[:STEP]", help="another one")
    parser.add_argument("--probes", metavar="FILE[:DATASET]", help="samples to run both on: HDF5, .npz or .csv")
    text = "arrays that hold the activations; named twice: that of a, then that of b"
    parser.add_argument("--activations", metavar="NAME", action="append", default=[], help=text)
    add_layers(parser)
    text = "what places of an image are: samples, units (flattened), or averaged over (mean); default samples"
    parser.add_argument("--positions", metavar="HOW", type=one_of("samples", "units", "mean"), default="samples", help=text)
    text = "of arrays with more than two axes: which axis is that of units, first or last"
    parser.add_argument("--channels", metavar="WHICH", type=one_of("first", "last"), help=text)
    parser.add_argument("--samples", metavar="N", type=_count, help="the first N samples only; of noise, N of them (1000)")
    text = "measures to take, or all (default: seven that suit most)"
    parser.add_argument("--measures", metavar="NAME,...", type=_words, action="extend", default=[], help=text)
    parser.add_argument("--map", metavar="MEASURE", help="the measure of the map of layers (default cka_standardised)")
    text = "for the null (default: 99, fewer where layers are very wide; 0: none)"
    parser.add_argument("--permutations", metavar="N", type=_count, help=text)
    text = "other networks to measure a against, as a yardstick: the same architecture from other seeds, say"
    parser.add_argument("--reference", metavar="FILE", nargs="+", action="extend", default=[], help=text)
    parser.add_argument(
        "--units", metavar="FILE.csv", nargs="?", const="-", help="list every unit: with the result, or in a file"
    )
    text = "draw the map, and unit correlations of each pair (needs matplotlib: pip install 'canonform[plot]')"
    parser.add_argument("--plot", metavar="FILE.svg|png", help=text)
    add_reading(parser)
    add_seed(parser)
    add_common(parser)


def run(args: Namespace) -> int:
    """Compare two sides' representations; 0."""
    from canon.errors import UsageError
    from canon.similarity import MEASURES, Computed, Options, similarity
    from canon.similarity.choosing import Request, odd_layers, sources

    from ..console import Messages
    from ..similarity_report import print_similarity, units_csv
    from ..text import did_you_mean, write_json, write_text

    for name in (*args.measures, *([args.map] if args.map else [])):
        if name not in MEASURES and (name != "all" or name == args.map):
            hint = did_you_mean(name, MEASURES) or f"There are {', '.join(MEASURES)}."
            raise UsageError(NAME, f"there is no measure {name!r}", hint)
    if args.plot is not None:
        from ..plot import check

        check(args.plot)
    measures = tuple(MEASURES) if "all" in args.measures else tuple(args.measures)
    messages = Messages(args.quiet)
    with messages.step(f"reading {args.a} and {args.b}") as tell:
        given = _given(args, messages)
        request = Request(
            args.probes,
            tuple(args.activations),
            tuple(args.layers),
            args.positions,
            args.channels,
            args.samples,
            args.seed,
        )
        a, b, *references = sources(given, request)
        odd = odd_layers(a.run.network, list(a.layers)) if isinstance(a, Computed) else frozenset()
        options = Options(
            measures,
            **({"lead": args.map} if args.map else {}),
            permutations=args.permutations,
            seed=args.seed,
            units=args.units is not None or args.plot is not None,
            unsigned=odd,
        )
        result = similarity(a, b, options, references, tell)
        if args.plot is not None:
            tell(f"drawing {args.plot}")
            from ..plot import draw

            draw(result, args.plot)
    if args.units not in (None, "-"):
        write_text(units_csv(result), args.units)
    if args.json:
        write_json(result.as_dict(units=args.units is not None), args.json)
    if args.json != "-":
        print_similarity(result, units=args.units == "-")
    return 0


def _given(args: Namespace, messages: Messages) -> list[Given]:
    """All files named, read as networks where they are to be."""
    from canon.errors import ReadError
    from canon.similarity.choosing import Given, is_table, only_arrays

    from ..options import split_step
    from ..reading import read, read_pair

    words = [args.a, args.b, *args.reference]
    arrays = [bool(args.activations) or is_table(split_step(word)[0]) for word in words]
    if not any(arrays[:2]):
        try:
            runs = [*read_pair(args, messages), *(read(word, args, messages) for word in args.reference)]
            return [Given(run.path, run) for run in runs]
        except ReadError as error:
            if not any(only_arrays(split_step(word)[0]) for word in words):
                hint = f"{error.hint} If it holds activations, name them: --activations NAME.".lstrip()
                raise type(error)(error.where, error.what, hint) from error
    out = []
    for word, table in zip(words, arrays, strict=True):
        path = split_step(word)[0]
        table = table or only_arrays(path)
        out.append(Given(path, None) if table else Given(path, read(word, args, messages)))
    return out
