"""Real files: every pair of RELATED.tsv that is one network stands in one group, and each that does not is explained."""

import csv
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from canon.compare import compare
from canon.errors import MismatchError
from canon.formats import read
from canon.zoo import Found, Index, Processes, dedup, scan

ROOT = Path(os.environ.get("CANON_REAL_FILES", "none"))
pytestmark = pytest.mark.skipif(not ROOT.is_dir(), reason="CANON_REAL_FILES is not set")

APART = {
    # the tensors of one model, saved under two: a critic and a generator are no one network, whatever weights they hold
    frozenset({"nested-gan-rsyamil/wgangp_critic.h5", "nested-gan-rsyamil/wgangp_generator.h5"}): "mismatch",
    # Theano turns its kernels around: the same numbers, written by Theano's backend, are another function than TensorFlow's
    frozenset({"dl4j-weights/conv2d_theano_2.h5", "dl4j-weights/conv2d_tensorflow_2.h5"}): "undecided",
    # Keras 1 does not record its backend: both of its files have two readings, and are one network with either. They stand
    # with the one of Keras 2 that is kept, to which the other is no copy
    frozenset({"dl4j-weights/conv2d_theano_2.h5", "dl4j-weights/conv2d_tensorflow_1.h5"}): "identical",
    frozenset({"dl4j-weights/conv2d_theano_2.h5", "dl4j-weights/conv2d_theano_1.h5"}): "identical",
}
"""Pairs of the same tensors that stand in no common group, and what comparing them alone says."""


@pytest.fixture(scope="module")
def found() -> Iterator[tuple[Found, dict[str, str]]]:
    with Index() as index:
        scan([str(ROOT)], index, Processes(2))
        yield dedup(index, Processes(2)), dict(index.unreadable())


def pairs() -> list[tuple[str, str, str]]:
    with (ROOT / "RELATED.tsv").open() as f:
        return [(row["relation"], row["a"], row["b"]) for row in csv.DictReader(f, delimiter="\t")]


def places(found: Found) -> dict[str, tuple[str, str]]:
    """File -> (the file kept, what it is to it)."""
    out = {}
    for group in found.groups:
        keep = str(Path(group.keep.place.path).relative_to(ROOT))
        out[keep] = (keep, "keep")
        for link in group.links:
            out[str(Path(link.file.place.path).relative_to(ROOT))] = (keep, link.kind)
    return out


def test_pairs_of_the_same_bytes_or_tensors_stand_together(found: tuple[Found, dict[str, str]]) -> None:
    where = places(found[0])
    same = [(a, b) for relation, a, b in pairs() if relation in ("same-bytes", "same-tensors")]
    assert len(same) > 50
    apart = {frozenset((a, b)) for a, b in same if a not in where or b not in where or where[a][0] != where[b][0]}
    assert apart == set(APART)
    for a, b in same:
        if frozenset((a, b)) not in APART:
            assert where[a][1] in ("keep", "identical", "equivalent"), (a, where[a])
            assert where[b][1] in ("keep", "identical", "equivalent"), (b, where[b])


@pytest.mark.parametrize("pair", APART, ids=lambda p: min(p))
def test_what_stands_apart_does_so_for_a_reason(pair: frozenset[str]) -> None:
    a, b = (read(ROOT / name) for name in sorted(pair))
    if APART[pair] == "mismatch":
        with pytest.raises(MismatchError, match="yet all their tensors are the same"):
            compare(a, b)
    else:
        assert compare(a, b).verdict == APART[pair]


def test_near_and_partial_pairs_are_no_copies(found: tuple[Found, dict[str, str]]) -> None:
    where = places(found[0])
    other = [(a, b) for relation, a, b in pairs() if relation not in ("same-bytes", "same-tensors")]
    assert len(other) > 15
    for a, b in other:
        assert where.get(a, (a, ""))[0] != where.get(b, (b, ""))[0], (a, b)


def test_no_group_holds_what_is_not_related(found: tuple[Found, dict[str, str]]) -> None:
    """Every group of more than the pairs told is a group of the pairs' closure: nothing was made up."""
    known: dict[str, set[str]] = {}
    for relation, a, b in pairs():
        if relation in ("same-bytes", "same-tensors"):
            whole = known.get(a, {a}) | known.get(b, {b})
            known.update(dict.fromkeys(whole, whole))
    for group in found[0].groups:
        members = {str(Path(f.place.path).relative_to(ROOT)) for f in (group.keep, *(x.file for x in group.links))}
        assert members <= known[next(iter(members))], members


def test_what_is_unreadable_says_why(found: tuple[Found, dict[str, str]]) -> None:
    told = {str(Path(path).relative_to(ROOT)): error for path, error in found[1].items()}
    assert {name for name in told if "/" not in name} == {"MANIFEST.tsv", "ODDITIES.md", "README.md", "RELATED.tsv"}
    for name, error in told.items():
        assert error, name
        assert "internal error" not in error, (name, error)
        assert "\n" not in error
    assert not found[0].failed
