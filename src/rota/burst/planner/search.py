"""Exact search: every plan that no other one beats in both time and GPU time.

A dynamic programme over the sizes of a graph's layers (:mod:`~rota.burst.planner.structure`), whose
states keep all unbeaten pairs of seconds and GPU-seconds instead of the best one.
"""

from collections.abc import Iterator, Sequence
from itertools import product

from rota.burst.planner.costs import Costs
from rota.burst.planner.front import (
    GPU_SECONDS,
    GPUS,
    NOTHING,
    SECONDS,
    Front,
    Part,
    best,
    in_turn,
    point,
    thinned,
    unbeaten,
)
from rota.burst.planner.plan import Group, Plan, fullest_bytes
from rota.burst.planner.structure import Branches, Decision, Piece, Structure, Transfer
from rota.errors import InputError

LEAST_POINTS, MOST_POINTS = 500, 200_000_000
Sizes = dict[int, int]  # size of each variable that has one
Away = tuple[bool, bool]  # is the fork, and is the join, on other GPUs than the piece


def unbeaten_plans(
    costs: Costs, structure: Structure | None = None, *, side_by_side: bool = True
) -> list[Plan]:
    """All plans of which none is beaten in time and GPU time, the fastest first.

    Branches from one fork to one join run one after another or, with ``side_by_side``, on GPUs of
    their own where there are enough; these take as long as the longest of them. Raises InputError
    if no plan fits into the memory of a GPU.
    """
    search = _Search(costs, structure or Structure(costs.graph), side_by_side)
    front = search.whole()
    if costs.memory_bytes is not None and not len(front):
        least = min(
            sum(costs.held_bytes(i, size) for i in range(len(costs.graph.layers)))
            for size in costs.sizes
        )
        raise InputError(
            f"{costs.graph.name} at batch {costs.batch} does not fit: the fullest GPU holds at "
            f"least about {least / 2**30:.3g} GiB and may hold {costs.memory_bytes / 2**30:.3g}; "
            "allow more memory, more GPUs or a smaller batch"
        )
    rows = unbeaten(front.figures, memory=False, width=False)
    return [search.plan(front, int(row)) for row in rows]


def most_points(variables: int, *, memory: bool) -> int:
    """How many plans are kept of a part of a graph that has so many sizes to decide.

    There are about as many unbeaten ones as the square of the number of layers has, and more where
    memory counts. All are kept of up to some hundred sizes (some thirty where memory counts); of
    more, some that lie evenly among them.
    """
    return max(LEAST_POINTS, MOST_POINTS // (10 if memory else 1) // variables**2)


class _Search:
    def __init__(self, costs: Costs, structure: Structure, side_by_side: bool) -> None:
        self._costs, self._structure, self._side_by_side = costs, structure, side_by_side
        self._most = most_points(len(structure.members), memory=costs.memory_bytes is not None)
        self._known: dict[tuple[int, tuple[int, ...], Away], Front] = {}
        self._nodes = {
            (variable, size): self._node(variable, size)
            for variable in structure.members
            for size in costs.sizes
        }
        self._counted = set(self._in_branches(structure.pieces)) if side_by_side else set()

    def whole(self) -> Front:
        """The front of the whole graph."""
        for piece in self._structure.pieces:  # in order, so that no call goes deep
            for sizes in product(self._costs.sizes, repeat=len(piece.scope)):
                self._front(piece, dict(zip(piece.scope, sizes, strict=True)), (False, False))
        rest = [self._front(piece, {}, (False, False)) for piece in self._structure.rest]
        return self._after(rest, width=False)

    def plan(self, front: Front, row: int) -> Plan:
        """The plan of a point."""
        figures = front.figures[:, row]
        groups: dict[int, Group] = {}
        stack = [(front, row, 0)]
        while stack:
            made, at, first = stack.pop()
            if made.choice is not None:
                variable, size = made.choice
                for layer in self._structure.members[variable]:
                    groups[layer] = Group(first, size)
            if made.rows is None:
                continue
            number, one, other = made.rows[:, at]
            part = made.parts[number]
            stack.append((part.first, one, first))
            behind = first + int(part.first.figures[GPUS, one]) if part.beside else first
            stack.append((part.second, other, behind))
        ordered = tuple(groups[layer] for layer in range(len(groups)))
        # The front counts the fullest GPUs of branches side by side as if they were the same ones.
        held = fullest_bytes(self._costs, ordered)
        return Plan(ordered, float(figures[SECONDS]), float(figures[GPU_SECONDS]), held)

    def _node(self, variable: int, size: int) -> Front:
        """A variable's own layers on so many GPUs."""
        members, costs = self._structure.members[variable], self._costs
        alone_s = sum(costs.alone_s(layer, size) for layer in members)
        held = sum(costs.held_bytes(layer, size) for layer in members)
        return point(alone_s, alone_s * size, held, size, choice=(variable, size))

    def _in_branches(self, pieces: Sequence[Piece]) -> Iterator[int]:
        """The pieces of which the GPUs in use at once count, by id."""
        for piece in pieces:
            if isinstance(piece, Branches) and len(piece.bodies) > 1:
                inside = list(piece.pieces)
                while inside:
                    each = inside.pop()
                    yield id(each)
                    if isinstance(each, Branches | Decision):
                        inside += each.pieces

    def _front(self, piece: Piece, sizes: Sizes, away: Away) -> Front:
        key = (id(piece), tuple(sizes[v] for v in piece.scope), away)
        if key not in self._known:
            self._known[key] = self._computed(piece, sizes, away)
        return self._known[key]

    def _computed(self, piece: Piece, sizes: Sizes, away: Away) -> Front:
        if isinstance(piece, Transfer):
            sending, taking = (sizes[v] for v in piece.between)
            moved = away[0] != away[1]
            seconds = self._costs.transfer_s(piece.source, sending, taking, moved)
            return point(seconds, seconds * taking)
        if isinstance(piece, Branches):
            return self._branches(piece, sizes, away)
        assert isinstance(piece, Decision)
        return self._decided(piece, sizes, away)

    def _decided(self, piece: Decision, sizes: Sizes, away: Away) -> Front:
        """A variable of any size, and the pieces around it."""
        width = id(piece) in self._counted
        parts = []
        for size in self._costs.sizes:
            within = sizes | {piece.variable: size}
            fronts = [self._nodes[piece.variable, size]]
            for each in piece.pieces:
                outer: Away = (False, False)
                if piece.ends is not None and each.ends is not None:
                    first = each.ends[1] == piece.variable
                    outer = (away[0], False) if first else (False, away[1])
                fronts.append(self._front(each, within, outer))
            single = in_turn([front for front in fronts if front.rows is None])
            others = [front for front in fronts if front.rows is not None]
            parts.append(Part(single, self._after(others, width=width)))
        return self._best(parts, width=width)

    def _branches(self, piece: Branches, sizes: Sizes, away: Away) -> Front:
        """Pieces from one fork to one join, each beside those before it or after them."""
        bare = [each for each in piece.pieces if each not in piece.bodies]
        made = in_turn([NOTHING, *(self._front(each, sizes, away) for each in bare)])
        counted = id(piece) in self._counted
        for at, each in enumerate(piece.bodies):
            parts = [Part(made, self._front(each, sizes, away))]
            if at and self._side_by_side:
                parts.append(Part(made, self._front(each, sizes, (True, True)), beside=True))
            last = at == len(piece.bodies) - 1
            width = counted or (self._side_by_side and not last)
            made = self._best(parts, width=width)
        return made

    def _best(self, parts: Sequence[Part], *, width: bool) -> Front:
        costs = self._costs
        return thinned(best(parts, costs.gpus, costs.memory_bytes, width=width), self._most)

    def _after(self, fronts: Sequence[Front], *, width: bool) -> Front:
        """The fronts' plans one after another."""
        made = fronts[0] if fronts else NOTHING
        for front in fronts[1:]:
            made = self._best([Part(made, front)], width=width)
        return made
