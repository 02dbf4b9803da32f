"""A graph for a run that has none of its own: borrowed from another run, tensor for tensor."""

from __future__ import annotations

from dataclasses import replace

from canon.errors import MismatchError
from canon.network import Network
from canon.run import Run

UNRECORDED = "nonlinearities are not recorded: only relabelling of units is certain"
NO_CHAIN = "the graph is not recorded and shapes prove no chain of layers: no unit is moved"
EPSILON = "the epsilon of batch norms is not recorded:"
"""How the notes begin that say what a file without a graph leaves open."""

_ABOUT_THE_OLD_GRAPH = (NO_CHAIN, UNRECORDED, EPSILON)


def borrow(run: Run, lender: Run) -> Run:
    """The run's tensors in the lender's graph: paired by name where all names agree, else in stored order.

    Raises MismatchError naming the first tensor that does not fit.
    """
    mine, theirs = run.network.tensors, lender.network.tensors
    if len(mine) != len(theirs):
        raise MismatchError("", f"holds {len(mine)} tensors, and the architecture of {lender.path} takes {len(theirs)}")
    by_name = set(mine) == set(theirs)
    pairs = {b: (b if by_name else a) for a, b in zip(mine, theirs, strict=True)}
    for b, a in pairs.items():
        if mine[a].shape != theirs[b].shape:
            raise MismatchError(
                a, f"has shape {mine[a].shape}, and {b!r} of the architecture of {lender.path} has {theirs[b].shape}"
            )
    ops = tuple(replace(op, params={role: pairs[t] for role, t in op.params.items()}) for op in lender.network.ops)
    network = Network(mine, ops, lender.network.inputs, lender.network.outputs)
    paired = "by name" if by_name else f"in order, as {next(iter(pairs))!r} with {next(iter(pairs.values()))!r}"
    kept = tuple(note for note in run.notes if not note.startswith(_ABOUT_THE_OLD_GRAPH))
    notes = (*kept, f"the graph is borrowed from {lender.path}, tensors paired {paired}")
    return run.with_network(network, graph="borrowed", activations_known=lender.activations_known, notes=notes)
