"""The search for a matching: anchored starts, coordinate descent, the stored labelling always among the candidates.

Anchored: spaces in order of their writers (or backward, from the outputs), each matched on the parameters that connect it
to what is matched already. For members of one orbit that is exact. Coordinate descent then takes one
space at a time, those with most parameters around them first, and skips spaces whose neighbours have not moved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from canon.matching.assign import assign
from canon.matching.heads import Heads, best_turns
from canon.matching.problem import Problem, State
from canon.pieces import Piece

_STILL = 1e-10
"""Relative gain of a sweep under which the search stops."""
_SWEEPS = 100


@dataclass(frozen=True)
class Matching:
    """state: the relabelling and signs found; objective: sum of <A, g B>; start: where the search began ("stored", "from
    the inputs", "from the outputs"); sweeps: how many the descent took; proved: spaces whose last assignment was proved.
    """

    state: State
    objective: float
    start: str
    sweeps: int
    proved: frozenset[str]


def search(problem: Problem, tell: Callable[[str], None] = lambda _: None) -> Matching:
    """The best of all starts after coordinate descent."""
    found: list[Matching] = []
    starts: dict[str, Callable[[], State]] = {
        "from the inputs": lambda: anchored(problem),
        "stored": lambda: stored(problem),
        "from the outputs": lambda: anchored(problem, backward=True),
    }
    for name, start in starts.items():
        tell(f"matching, {name}")
        begin = start()
        if any(_same(begin, other.state) for other in found):
            continue
        found.append(descend(problem, begin, name))
    return max(found, key=lambda m: m.objective)


def stored(problem: Problem) -> State:
    """The stored labelling, with the best signs: of every unit with its own number, space after space."""
    state = problem.identity()
    for space in problem.free:
        use = [(p, i) for p, i in problem.of[space] if p.axes[i].role == "in"] or problem.of[space]
        if any(p.axes[i].signs for p, i in use):
            state.signs.update(problem.own_signs(space, state, use))
    return turned(problem, state)


def turned(problem: Problem, state: State) -> State:
    """The same labels and signs with the best turns of all heads."""
    if not problem.turned_spaces:
        return state
    state = state.copy()
    chained = any(sum(bool(a.turn) for a in p.axes) > 1 for p in problem.pieces)
    for _ in range(3 if chained else 1):  # where heads read heads, each has to be turned for the other
        state.turns.update(best_turns(problem, state))
    return state


def anchored(problem: Problem, backward: bool = False, role: str = "") -> State:
    """Match spaces one after the other on what connects them to the inputs (or outputs) and to spaces already matched.

    role: "in" or "out" to look at incoming or outgoing parameters alone.
    """
    state = problem.identity()
    done: set[str] = set()
    waiting = list(reversed(problem.free)) if backward else list(problem.free)
    while waiting:
        if "" in problem.turned_spaces:
            state.turns.update(best_turns(problem, state, [""], settled=done))
        ready = next((s for s in waiting if _anchors(problem, s, done, role)), waiting[0])
        waiting.remove(ready)
        use = _anchors(problem, ready, done, role)
        if use:
            place(problem, state, ready, use, normalise=True)
        done.add(ready)
    return state


def _anchors(problem: Problem, space: str, done: set[str], role: str) -> list[tuple[Piece, int]]:
    """The pieces around a space whose other axes do not move any more."""
    own = {space, problem.inner.get(space, "")}
    return [
        (p, i)
        for p, i in problem.of[space]
        if role in ("", p.axes[i].role)
        and all(k == i or _still(problem, x.space, space, own, done) for k, x in enumerate(p.axes))
    ]


def _still(problem: Problem, other: str, space: str, own: set[str], done: set[str]) -> bool:
    """Whether another axis does not move any more: fixed, matched, or the copies inside the unit that is matched."""
    return not other or other in done or (other in own and other != space) or problem.symmetry.spaces[other].over in done


def place(
    problem: Problem, state: State, space: str, use: list[tuple[Piece, int]] | None = None, normalise: bool = False
) -> tuple[bool, bool]:
    """Match one space with all others held; (whether it moved, whether the assignment is proved optimal)."""
    similarity = problem.similarity(space, state, use)
    total = similarity.total()
    if normalise:
        a, b = problem.norms(space, use)
        total = total / np.maximum(a, np.finfo(float).tiny)[:, None] / np.maximum(b, np.finfo(float).tiny)[None, :]
    result = assign(total)
    before = (state.perms[space], {g: state.signs[g] for g in state.signs})
    rows = np.arange(len(total))
    if not normalise and total[rows, result.partner].sum() <= total[rows, state.perms[space]].sum() * (1 + 1e-14):
        result = type(result)(state.perms[space], result.proved)  # no gain: stay, so that ties cannot turn in circles
    state.perms[space] = result.partner
    state.signs.update(similarity.signs_at(result.partner))
    inner = similarity.inner_at(result.partner)
    if inner is not None:
        state.perms[problem.inner[space]] = inner
    if isinstance(similarity, Heads):
        state.turns.update(similarity.turns_at(result.partner, inner))
    moved = not np.array_equal(before[0], result.partner) or any(
        not np.array_equal(v, state.signs[g]) for g, v in before[1].items()
    )
    return moved or inner is not None or isinstance(similarity, Heads), result.proved


def descend(problem: Problem, start: State, name: str, spaces: list[str] | None = None) -> Matching:
    """Coordinate descent from a start."""
    state = start.copy()
    order = sorted(spaces or problem.free, key=lambda s: -len(problem.of[s]))
    neighbours = {s: {x.space for p, _ in problem.of[s] for x in p.axes if x.space} - {s} for s in problem.free}
    stale = set(order)
    proved: set[str] = set()
    value = problem.objective(state)
    sweeps = 0
    while stale and sweeps < _SWEEPS:
        sweeps += 1
        for space in order:
            if space not in stale:
                continue
            stale.discard(space)
            moved, sure = place(problem, state, space)
            proved = proved | {space} if sure else proved - {space}
            if moved:
                stale |= neighbours[space] & set(order)
        after = problem.objective(state)
        if after <= value + _STILL * max(abs(value), abs(after)):
            value = max(value, after)
            break
        value = after
    return Matching(state, value, name, sweeps, frozenset(proved))


def _same(a: State, b: State) -> bool:
    return all(np.array_equal(p, b.perms[s]) for s, p in a.perms.items()) and all(
        np.array_equal(v, b.signs[g]) for g, v in a.signs.items()
    )
