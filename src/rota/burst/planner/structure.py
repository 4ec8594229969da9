"""The order in which the sizes of a graph's layers are decided, one after the other.

Layers that must have one size are one *variable*. A *piece* is a part of the graph of which only
the sizes of a few variables at its border, its *scope*, still matter to the rest. Deciding a
variable joins the pieces that it borders into one. In a chain every piece has a scope of one; a
block of branches becomes a piece between its fork and its join.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from rota.model.layer_graph import LayerGraph

MOST_SIZES = 4  # variables that a decision may depend on, the decided one included


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of the graph; ``scope`` are the variables at its border, rising.

    ``ends`` are its fork and its join if all of it lies on paths from the one to the other.
    """

    scope: tuple[int, ...]
    ends: tuple[int, int] | None = None

    @cached_property
    def first(self) -> float:
        """The lowest variable inside; inf for a transfer, which has none inside."""
        return inf


@dataclass(frozen=True, eq=False)
class Transfer(Piece):
    """The output of layer ``source`` goes from one variable to another, ``between`` them."""

    source: int = 0
    between: tuple[int, int] = (0, 0)


@dataclass(frozen=True, eq=False)
class Decision(Piece):
    """The size of ``variable``, with all pieces that it borders."""

    variable: int = 0
    pieces: tuple[Piece, ...] = ()

    @cached_property
    def first(self) -> float:
        """The lowest variable inside."""
        return min([self.variable, *(piece.first for piece in self.pieces)])


@dataclass(frozen=True, eq=False)
class Branches(Piece):
    """Pieces from one fork to one join: each runs beside those before it, or after them."""

    pieces: tuple[Piece, ...] = ()

    @cached_property
    def first(self) -> float:
        """The lowest variable inside."""
        return min(piece.first for piece in self.pieces)

    @property
    def bodies(self) -> tuple[Piece, ...]:
        """The pieces that have layers."""
        return tuple(piece for piece in self.pieces if not isinstance(piece, Transfer))


class Structure:
    """A graph's variables and the order of decisions.

    ``variable`` has the variable of each layer, ``members`` the layers of each variable. ``pieces``
    are in the order in which they can be computed; ``rest`` are those that none contains.
    ``tangled`` are layers that share a size only because they are too entangled to decide alone.
    """

    def __init__(self, graph: LayerGraph) -> None:
        self.variable = _of_one_size(graph)
        self.tied = {self.variable[i] for i, layer in enumerate(graph.layers) if layer.tied_to}
        joined: set[int] = set()
        while (tangle := self._decide(graph)) is not None:
            joined.add(min(tangle))
            self.variable = [min(tangle) if v in tangle else v for v in self.variable]
            self.tied.add(min(tangle))
        self.members: dict[int, list[int]] = {}
        for layer, variable in enumerate(self.variable):
            self.members.setdefault(variable, []).append(layer)
        self.tangled = [i for i, variable in enumerate(self.variable) if variable in joined]

    @property
    def has_branches(self) -> bool:
        """True if two branches or more with layers go from one fork to one join."""
        return any(isinstance(piece, Branches) and len(piece.bodies) > 1 for piece in self.pieces)

    def _decide(self, graph: LayerGraph) -> set[int] | None:
        """Find the order; else the variables that have to be joined into one first."""
        variable = self.variable
        self.pieces: list[Piece] = []
        open_pieces: list[Piece] = []
        for source, taker in graph.edges:
            between = (variable[source], variable[taker])
            if between[0] != between[1]:
                border = (min(between), max(between))
                free = self.tied.isdisjoint(between)
                open_pieces.append(Transfer(border, between if free else None, source, between))
        self.pieces += open_pieces
        left = set(variable)
        near: dict[int, set[int]] = {v: {v} for v in left}
        for piece in open_pieces:
            for v in piece.scope:
                near[v].update(piece.scope)
        while left:
            fewest = min(len(near[v]) for v in left)
            candidates = [v for v in left if len(near[v]) == fewest]
            # A fork is decided after its branches: they are known as such only between two ends.
            links = _links(open_pieces, candidates)
            chosen = min(candidates, key=lambda v: (not self._is_link(links[v], v), v))
            if len(near[chosen]) > MOST_SIZES:
                return near[chosen]
            own = [piece for piece in open_pieces if chosen in piece.scope]
            open_pieces = [piece for piece in open_pieces if chosen not in piece.scope]
            scope = tuple(sorted(near[chosen] - {chosen}))
            directed = self._is_link(links[chosen], chosen)
            ends = links[chosen].ends if directed else None
            made = Decision(scope, ends, chosen, tuple(self._gathered(own)))
            self.pieces.append(made)
            open_pieces.append(made)
            left.remove(chosen)
            around = near.pop(chosen) - {chosen}
            for v in around:
                near[v] |= around
                near[v].discard(chosen)
        self.rest = tuple(open_pieces)
        return None

    def _gathered(self, pieces: Sequence[Piece]) -> list[Piece]:
        """The pieces, those from one fork to one join as the branches that they are."""
        by_ends: dict[tuple[int, int], list[Piece]] = {}
        others: list[Piece] = []
        for piece in pieces:
            if piece.ends is None:
                others.append(piece)
            else:
                by_ends.setdefault(piece.ends, []).append(piece)
        for ends, together in by_ends.items():
            if len(together) == 1:
                others += together
            else:
                together.sort(key=lambda piece: piece.first)
                branches = Branches(together[0].scope, ends, tuple(together))
                self.pieces.append(branches)
                others.append(branches)
        return others

    def _is_link(self, link: "_Link", variable: int) -> bool:
        """True if the variable lies between one that comes before it and one that comes after."""
        alone = len(link.before) == len(link.after) == 1 and not link.undirected
        return alone and variable not in self.tied and link.before != link.after


@dataclass
class _Link:
    """The variables before and after a variable, and if others border it in no direction."""

    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)
    undirected: bool = False

    @property
    def ends(self) -> tuple[int, int]:
        return min(self.before), min(self.after)


def _links(pieces: Iterable[Piece], variables: Iterable[int]) -> dict[int, _Link]:
    """The neighbours of each of these variables."""
    links = {v: _Link() for v in variables}
    for piece in pieces:
        if piece.ends is None:
            for v in piece.scope:
                if v in links and len(piece.scope) > 1:
                    links[v].undirected = True
            continue
        first, last = piece.ends
        if first in links:
            links[first].after.add(last)
        if last in links:
            links[last].before.add(first)
    return links


def _of_one_size(graph: LayerGraph) -> list[int]:
    """For each layer the first one of those that share its size."""
    first = list(range(len(graph.layers)))

    def root(i: int) -> int:
        while first[i] != i:
            i = first[i]
        return i

    for i, layer in enumerate(graph.layers):
        shared: Iterable[str] = layer.inputs if layer.keeps_size else ()
        for name in (*shared, *([layer.tied_to] if layer.tied_to else ())):
            a, b = sorted((root(i), root(graph.index[name])))
            first[b] = a
    return [root(i) for i in range(len(first))]
